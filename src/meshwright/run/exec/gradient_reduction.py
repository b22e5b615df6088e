"""Gradient reduction: buckets all-reduced or reduce-scattered, ZeRO parameters gathered. Enters: a
bucket of parameters. Leaves: for each of this rank's pieces the gradient of what its optimizer
sees.

Gradients of a bucket that are summed over the same devices travel as one row of numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from meshwright.lower.buckets import Bucket, BucketParameter, CopySum
from meshwright.lower.chains import ChainLink
from meshwright.lower.gradient_sums import GradientSum, alone, gathered, sums
from meshwright.lower.script import Script
from meshwright.lower.transfers import GroupCollective
from meshwright.run.comm import chaining
from meshwright.run.comm.communicator import Communicator
from meshwright.run.comm.programs import Reducer
from meshwright.run.comm.resharding import Action, Resharder
from meshwright.run.exec.parameters import ParameterPiece, Parameters, Sharing

Left = dict[int, Tensor | None]
"""The gradient that this rank leaves on each return."""


class GradientReducer:
    """What this rank does to settle the gradients of buckets."""

    def __init__(
        self, script: Script, parameters: Parameters, mover: Resharder, wire: Communicator
    ) -> None:
        self._script, self._parameters, self._mover, self._wire = script, parameters, mover, wire
        self._returns = script.parallel.returns
        self._adds = script.plan.options.sums > 1
        self._actions: dict[int, Action] = {}
        """Of the returns that travel by themselves."""
        self._known: dict[str, tuple[GradientSum, ...]] = {}
        """What is summed of each bucket, by the name of its first parameter."""

    def prepare(self, bucket: Bucket) -> None:
        """Make the process groups that a bucket needs, at a moment when all members do."""
        for gradient_sum in self._sums(bucket):
            pieces = self._pieces(gradient_sum.parameters)
            if gradient_sum.step is None:
                for links in (
                    self._scattering(gradient_sum.parameters),
                    self._gathering(gradient_sum.parameters),
                ):
                    self._wire.prepare(link.members for link in links)
                if gradient_sum.copies is not None:
                    self._copying(gradient_sum.copies, pieces)
            else:
                self._reducer(gradient_sum.step, pieces)
        for kept in bucket.parameters:
            for number in alone(self._script.parallel, kept):
                steps = self._returns[number].steps
                if steps and self._mover.takes_part(steps):
                    self._actions[number] = self._mover.action(steps, self._mover.dtype(kept.name))

    def _sums(self, bucket: Bucket) -> tuple[GradientSum, ...]:
        first = bucket.parameters[0].name
        if first not in self._known:
            self._known[first] = sums(self._script.parallel, bucket, self._mover.here)
        return self._known[first]

    def _pieces(self, parameters: Iterable[BucketParameter]) -> list[ParameterPiece]:
        return [self._parameters.pieces[kept.name] for kept in parameters]

    def _reducer(self, step: GroupCollective, pieces: Sequence[ParameterPiece]) -> Reducer:
        size = sum(piece.data.nbytes for piece in pieces)
        return self._mover.reducer(step.inside, step.beside, size)

    def travels(self, bucket: Bucket) -> bool:
        """Whether settling a bucket takes anything but this rank."""
        return any(
            self._returns[number].steps or (piece is not None and piece.sharing is not None)
            for kept in bucket.parameters
            for piece in [self._parameters.pieces.get(kept.name)]
            for number in kept.returns
        )

    def settle(self, bucket: Bucket, left: Left, micro: int) -> list[Tensor]:
        """Sum the gradients of a bucket and put them beside what the optimizer sees, with those of
        micro-batches before; it returns them too, for whoever waits for them.
        """
        totals: dict[str, Tensor] = {}
        for gradient_sum in self._sums(bucket):
            self._sum_together(gradient_sum, left, totals)
        for kept in bucket.parameters:
            for number in alone(self._script.parallel, kept):
                self._add(kept, number, left, totals)
        return [
            self._put(self._parameters.pieces[kept.name], totals.get(kept.name), micro)
            for kept in bucket.parameters
            if kept.returns and kept.name in self._parameters.pieces
        ]

    def keep(self, bucket: Bucket, left: Left, micro: int) -> None:
        """The same for a bucket of which nothing travels."""
        for kept in bucket.parameters:
            piece = self._parameters.pieces.get(kept.name)
            if piece is None or not kept.returns:
                continue
            total: Tensor | None = None
            for number in kept.returns:
                gradient = left[number]
                if gradient is not None:
                    total = gradient if total is None else total + gradient
            self._put(piece, total, micro)

    def _put(self, piece: ParameterPiece, gradient: Tensor | None, micro: int) -> Tensor:
        if micro and piece.gradient is not None:
            return piece.gradient if gradient is None else piece.gradient.add_(gradient)
        if gradient is None:
            piece.gradient = torch.zeros_like(piece.seen)
        else:
            # What more is added to must be nobody else's.
            piece.gradient = gradient.clone() if self._adds else gradient
        return piece.gradient

    def gather(self, bucket: Bucket) -> None:
        """Put the sharded pieces of a bucket together from what the optimizers have seen."""
        for alike in gathered(self._script.parallel, bucket, self._mover.here):
            pieces = self._pieces(alike)
            sharings = [_sharing(piece) for piece in pieces]
            row = torch.cat([piece.seen.detach() for piece in pieces])
            sizes = [sum(cuts) for cuts in zip(*(s.sizes for s in sharings), strict=True)]
            parts = chaining.all_gather(self._wire, row, sizes, self._gathering(alike))
            for i, part in enumerate(parts):
                shards = torch.split(part, [s.sizes[i] for s in sharings])
                for piece, sharing, shard in zip(pieces, sharings, shards, strict=True):
                    # Autograd does not look: what it keeps is gathered again before it is used.
                    sharing.shards(piece.data.data.view(-1))[i].copy_(shard)

    def _sum_together(
        self, gradient_sum: GradientSum, left: Left, totals: dict[str, Tensor]
    ) -> None:
        pieces = self._pieces(gradient_sum.parameters)
        rows = [
            _row(left.get(kept.returns[0]), piece)
            for kept, piece in zip(gradient_sum.parameters, pieces, strict=True)
        ]
        if gradient_sum.step is None:
            self._scatter(gradient_sum, rows, totals)
            return
        row = torch.cat(rows) if len(rows) > 1 else rows[0].clone()
        self._reducer(gradient_sum.step, pieces).all_reduce(row)
        for piece, part in zip(pieces, torch.split(row, [r.numel() for r in rows]), strict=True):
            totals[piece.name] = part.view(piece.data.shape)

    def _scatter(
        self, together: GradientSum, rows: Sequence[Tensor], totals: dict[str, Tensor]
    ) -> None:
        pieces = self._pieces(together.parameters)
        sharings = [_sharing(piece) for piece in pieces]
        cuts = [s.shards(row) for row, s in zip(rows, sharings, strict=True)]
        parts = [torch.cat(shards) for shards in zip(*cuts, strict=True)]
        total = chaining.reduce_scatter(self._wire, parts, self._scattering(together.parameters))
        if together.copies is not None and total.numel():
            self._copying(together.copies, pieces).all_reduce(total)
        sizes = [sharing.sizes[sharing.own] for sharing in sharings]
        for piece, shard in zip(pieces, torch.split(total, sizes), strict=True):
            totals[piece.name] = shard

    def _copying(self, copies: CopySum, pieces: Sequence[ParameterPiece]) -> Reducer:
        """What sums shards over the devices that have a copy of them."""
        cuts = zip(*(_sharing(piece).sizes for piece in pieces), strict=True)
        size = max(map(sum, cuts)) * pieces[0].data.itemsize
        return self._mover.reducer(*copies, size)

    def _scattering(self, parameters: Sequence[BucketParameter]) -> tuple[ChainLink, ...]:
        """How the gradients of sharded parameters are summed."""
        size = sum(piece.data.nbytes for piece in self._pieces(parameters))
        return self._mover.chains.scattered(parameters[0].shards, size)

    def _gathering(self, parameters: Sequence[BucketParameter]) -> tuple[ChainLink, ...]:
        """How sharded parameters are put together."""
        size = sum(
            _sharing(piece).sizes[0] * piece.data.itemsize for piece in self._pieces(parameters)
        )
        return self._mover.chains.gathered(parameters[0].shards, size)

    def _add(
        self, kept: BucketParameter, number: int, left: Left, totals: dict[str, Tensor]
    ) -> None:
        """One more gradient of a parameter, from readers that need it otherwise than it lies."""
        return_ = self._returns[number]
        piece = self._parameters.pieces.get(kept.name)
        gradient = left.get(number)
        if return_.steps:
            if number not in self._actions:
                return
            gradient = self._mover.filled(gradient, return_.lying, self._mover.dtype(kept.name))
            gradient = self._actions[number](gradient)
        if piece is None or gradient is None:
            return
        if piece.sharing is not None:
            gradient = piece.sharing.shard(gradient.reshape(-1))
        totals[kept.name] = gradient if kept.name not in totals else totals[kept.name] + gradient


def _sharing(piece: ParameterPiece) -> Sharing:
    assert piece.sharing is not None
    return piece.sharing


def _row(gradient: Tensor | None, piece: ParameterPiece) -> Tensor:
    """A gradient as a row of numbers; zeros where none came."""
    if gradient is None:
        return piece.data.new_zeros(piece.data.numel())
    return gradient.reshape(-1)
