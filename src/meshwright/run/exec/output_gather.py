"""All-gather of a model's outputs, and the shards of their gradients. Enters: the pieces that a
rank made of some tensors. Leaves: these tensors, as the rank's user wants them, and the other way
round for gradients.

A rank that gave the whole batch gets whole tensors, and gives whole gradients, the same as every
other rank's. One that gave its share of the samples gets the rows of these, and the gradient of a
loss of these alone: as with DDP, what is learnt from is the mean of the shares' losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import beyond, shape_of
from meshwright.lower.data_shares import DataShares
from meshwright.lower.script import Script
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.lower.transfers import transfer
from meshwright.run.comm.resharding import Action, Resharder, cut
from meshwright.sharding.states import WHOLE, gradient_needed
from meshwright.sharding.unit import states_inside

Pieces = dict[tuple[str, int], Tensor]
"""By tensor and micro-batch."""


class _Way(NamedTuple):
    """How a tensor comes to users."""

    lying: TensorPlacement
    """As it arrives, of each micro-batch."""
    action: Action


class OutputGather:
    """The outputs of a script."""

    def __init__(
        self, script: Script, mover: Resharder, shares: DataShares, names: Sequence[str]
    ) -> None:
        self._outputs = [_Output(script, mover, shares, name) for name in names]

    def gathered(self, pieces: Mapping[tuple[str, int], Tensor], *, share: bool) -> list[Tensor]:
        """The tensors, in the order of their names; all ranks call it."""
        return [output.gathered(pieces, share=share) for output in self._outputs]

    def cut(
        self, gradients: Sequence[Tensor], *, share: bool
    ) -> Iterator[tuple[tuple[str, int], Tensor]]:
        """Pieces for this rank of gradients that all ranks have; all ranks call it."""
        for output, gradient in zip(self._outputs, gradients, strict=True):
            yield from output.cut(gradient, share=share)


class _Output:
    """One of them."""

    def __init__(self, script: Script, mover: Resharder, shares: DataShares, name: str) -> None:
        self.name, self._script, self._mover, self._shares = name, script, mover, shares
        self._shape = script.plan.graph.specs[name].shape
        self._there = script.parallel.made[name].forward
        self._micro_batches = range(script.parallel.samples.micro_batches)
        self._machine = script.parallel.machine

    def gathered(self, pieces: Mapping[tuple[str, int], Tensor], *, share: bool) -> Tensor:
        local = self._local if share else None
        way = self._whole if local is None else local
        parts = []
        for micro in self._cut_micro_batches:
            part = way.action(pieces.get((self.name, micro)))
            assert part is not None, "an output arrives everywhere"
            parts.append(part)
        dim = self._script.parallel.samples.dims.get(self.name, WHOLE)
        result = parts[0] if len(parts) == 1 else torch.cat(parts, dim)
        if not share or local is not None or self._rows is None:
            return result
        return result.index_select(self._sample_dim, self._own_rows.to(result.device))

    def cut(self, gradient: Tensor, *, share: bool) -> Iterator[tuple[tuple[str, int], Tensor]]:
        whole, local = gradient, share and self._local is not None
        if share:
            whole = gradient / self._shares.shares
            whole = whole if local else self._of_all_shares(whole)
        if not self._there.holds(self._mover.here):
            return
        wanted = self._there._replace(states=tuple(map(gradient_needed, self._there.states)))
        for micro in self._cut_micro_batches:
            box = beyond(wanted.box(self._mover.here), self._frame(micro))
            part = cut(whole, self._among_own(box) if local else box)
            yield (self.name, micro), part.contiguous()

    @property
    def _cut_micro_batches(self) -> range:
        """Those that each make a part; one that all make alike is that of the last."""
        cuts = self._script.parallel.samples.dims.get(self.name, WHOLE) >= 0
        return self._micro_batches if cuts else self._micro_batches[-1:]

    def _frame(self, micro: int) -> Box:
        return self._script.parallel.samples.frame(self.name, self._shape, micro)

    @cached_property
    def _whole(self) -> _Way:
        states = (WHOLE,) * len(self._there.states)
        return self._way(self._there._replace(states=states, exact=None))

    def _way(self, lying: TensorPlacement) -> _Way:
        steps = transfer(self._there, lying)
        return _Way(lying, self._mover.action(steps, self._mover.dtype(self.name)))

    @cached_property
    def _local(self) -> _Way | None:
        """How a share's rows come to its ranks, where rows are made by ranks of their share."""
        if self._rows is None or self._there.exact is not None:
            return None
        dim, machine = self._sample_dim, self._machine
        states = tuple(state if state == dim else WHOLE for state in self._there.states)
        lying = self._there._replace(states=states)
        if not lying.divides:
            return None
        for device, share in enumerate(self._shares.own):
            coordinates = machine.coordinates(device)
            boxes = (
                beyond(lying.box(coordinates), self._frame(m)) for m in self._cut_micro_batches
            )
            rows = [row for box in boxes for row in range(*box[dim])]
            if rows != self._rows[share]:
                return None
        return self._way(lying)

    @cached_property
    def _sample_dim(self) -> int:
        """Along which samples lie; WHOLE if along none."""
        script = self._script
        unit = script.plan.units[script.parallel.made[self.name].unit]
        if unit.samples is None:
            return WHOLE
        return states_inside(unit, script.plan.graph)[self.name][unit.samples]

    @cached_property
    def _rows(self) -> list[list[int]] | None:
        """For each share the rows of this tensor that are of its samples; None if it has none."""
        if self._sample_dim < 0:
            return None
        batch = sum(map(len, self._shares.rows))
        size = self._shape[self._sample_dim]
        if not batch or size % batch:
            raise InputError(
                f"output {self.name!r} has {size} rows for {batch} samples",
                "give every rank the whole batch",
            )
        each = size // batch
        return [[r * each + k for r in rows for k in range(each)] for rows in self._shares.rows]

    @cached_property
    def _own_rows(self) -> Tensor:
        assert self._rows is not None
        return torch.tensor(self._rows[self._shares.own[self._mover.rank]])

    def _among_own(self, box: Box) -> Box:
        """A box of this rank's rows, seen from the first of them."""
        assert self._rows is not None
        rows, dim = self._rows[self._shares.own[self._mover.rank]], self._sample_dim
        first = rows.index(box[dim][0])
        size = shape_of(box)[dim]
        return (*box[:dim], (first, first + size), *box[dim + 1 :])

    def _of_all_shares(self, gradient: Tensor) -> Tensor:
        """A whole gradient from those of all shares."""
        shares = self._shares
        heard = [torch.empty_like(gradient) for _ in shares.own]
        dist.all_gather(heard, gradient.contiguous())
        parts = dict(zip(shares.own, heard, strict=True))
        if self._rows is None:
            return torch.stack(list(parts.values())).sum(0)
        whole = gradient.new_zeros(self._shape)
        for share, part in parts.items():
            rows = torch.tensor(self._rows[share], device=whole.device)
            whole.index_copy_(self._sample_dim, rows, part)
        return whole
