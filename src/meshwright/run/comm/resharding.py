"""Resharding executed on ranks: the collectives and box exchanges of a transfer. Enters: the steps
of a transfer and this rank's piece of a tensor. Leaves: what the transfer leaves here. Which
transfers there are, and when, is told by `script`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import torch
from torch import Tensor

from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.cost.collective import Collective
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import elements, shape_of, within
from meshwright.lower.chains import DeviceChains
from meshwright.lower.device_mesh import Coordinates, MeshSizes
from meshwright.lower.reduction_recipes import Reductions
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.lower.transfers import (
    BoxMove,
    Exchange,
    GroupCollective,
    Step,
    received_boxes,
    sent_boxes,
)
from meshwright.plan.plan import Plan
from meshwright.run.comm import chaining
from meshwright.run.comm.communicator import Communicator
from meshwright.run.comm.programs import Reducer
from meshwright.sharding.states import PARTIAL

Action = Callable[[Tensor | None], Tensor | None]
"""What one step does to this rank's piece; None where it has none."""


class Resharder:
    """What this rank does of transfers."""

    def __init__(self, plan: Plan, wire: Communicator, rank: int, device: torch.device) -> None:
        self._wire, self.rank, self._device = wire, rank, device
        self._graph = plan.graph
        self._machine = MeshSizes.of(plan.cluster)
        self.here: Coordinates = self._machine.coordinates(rank)
        self._reductions = Reductions(plan)
        self._reducers: dict[object, Reducer] = {}
        self.chains = DeviceChains(plan, rank)

    def takes_part(self, steps: Sequence[Step]) -> bool:
        """Whether this rank has anything to do with a transfer."""
        return any(
            placement.holds(self.here) for step in steps for placement in (step.before, step.after)
        )

    def action(self, steps: Sequence[Step], dtype: torch.dtype) -> Action:
        """What this rank does for a transfer of a tensor of some dtype."""
        actions = [
            self._exchange(step, dtype)
            if isinstance(step, Exchange)
            else self._together(step, dtype)
            for step in steps
        ]

        def perform(piece: Tensor | None) -> Tensor | None:
            for act in actions:
                piece = act(piece)
            return piece

        return perform

    def dtype(self, tensor: str) -> torch.dtype:
        """The dtype of a tensor of the graph."""
        return torch_dtype(self._graph.specs[tensor].dtype)

    def filled(
        self, piece: Tensor | None, lying: TensorPlacement, dtype: torch.dtype
    ) -> Tensor | None:
        """A piece of this rank; zeros if it should hold one and nothing came."""
        if piece is not None or not lying.holds(self.here):
            return piece
        return torch.zeros(shape_of(lying.box(self.here)), dtype=dtype, device=self._device)

    def reducer(self, inside: tuple[int, ...], beside: tuple[int, ...], size: float) -> Reducer:
        """What sums over some factors, by the program that the plan has for it."""
        recipe = self._reductions.recipe(inside, beside, size, self.rank)
        if recipe not in self._reducers:
            self._reducers[recipe] = Reducer(self._wire, recipe)
        return self._reducers[recipe]

    def members(self, inside: Sequence[int]) -> tuple[int, ...]:
        """The group of this rank along some factors."""
        return tuple(map(self._machine.device, self._machine.along(inside, self.here)))

    def _exchange(self, step: Exchange, dtype: torch.dtype) -> Action:
        getting = tuple(received_boxes(step, self.here)) if step.after.holds(self.here) else None
        giving = tuple(sent_boxes(step, self.here)) if step.before.holds(self.here) else ()
        target = None if getting is None else step.after.box(self.here)
        alone = PARTIAL in step.before.states or step.before.exact is not None

        def exchange(piece: Tensor | None) -> Tensor | None:
            sends = [(move.target, _taken(piece, move)) for move in giving]
            arriving = [self._arriving(piece, move, dtype) for move in getting or ()]
            pairs = list(zip(getting or (), arriving, strict=True))
            self._wire.exchange(
                sends, [(m.source, data) for m, data in pairs if m.source != self.rank]
            )
            return None if target is None else _joined(target, pairs, dtype, self._device, alone)

        return exchange

    def _arriving(self, piece: Tensor | None, move: BoxMove, dtype: torch.dtype) -> Tensor:
        if move.source == self.rank:
            return _taken(piece, move)
        return torch.empty(shape_of(move.box), dtype=dtype, device=self._device)

    def _together(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        if not (step.before.holds(self.here) or step.after.holds(self.here)):
            return lambda piece: piece
        match step.kind:
            case Collective.ALL_REDUCE:
                return self._all_reduce(step, dtype)
            case Collective.REDUCE_SCATTER:
                return self._reduce_scatter(step, dtype)
            case Collective.ALL_GATHER:
                return self._all_gather(step, dtype)
            case Collective.REDUCE:
                return self._reduce(step, dtype)
            case Collective.BROADCAST:
                return self._broadcast(step, dtype)
            case _:
                assert_never(step.kind)

    def _all_reduce(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        size = elements(step.before.box(self.here)) * dtype.itemsize
        reducer = self.reducer(step.inside, step.beside, size)

        def act(piece: Tensor | None) -> Tensor | None:
            assert piece is not None
            data = piece.clone(memory_format=torch.contiguous_format)
            reducer.all_reduce(data)
            return data

        return act

    def _reduce_scatter(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        own_box = step.before.box(self.here)
        links = self.chains.scattered(step.inside, elements(own_box) * dtype.itemsize)
        boxes = [within(box, own_box) for box in self._boxes(step, after=True)]
        shape = shape_of(step.after.box(self.here))

        def act(piece: Tensor | None) -> Tensor | None:
            assert piece is not None
            parts = [cut(piece, box).reshape(-1) for box in boxes]
            return chaining.reduce_scatter(self._wire, parts, links).view(shape)

        return act

    def _all_gather(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        whole = step.after.box(self.here)
        boxes = self._boxes(step, after=False)
        sizes = [elements(box) for box in boxes]
        links = self.chains.gathered(step.inside, max(sizes) * dtype.itemsize)
        self._wire.prepare(link.members for link in links)

        def act(piece: Tensor | None) -> Tensor | None:
            assert piece is not None
            flat = piece.contiguous().view(-1)
            parts = chaining.all_gather(self._wire, flat, sizes, links)
            if len(whole) and boxes[0][1:] == whole[1:]:
                return torch.cat(parts).view(shape_of(whole))
            result = torch.empty(shape_of(whole), dtype=dtype, device=self._device)
            for box, part in zip(boxes, parts, strict=True):
                cut(result, within(box, whole)).copy_(part.view(shape_of(box)))
            return result

        return act

    def _reduce(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        root = self._root(step.inside, step.after)
        size = elements(step.before.box(self.here)) * dtype.itemsize
        links = self.chains.rooted(Collective.REDUCE, step.inside, size, root)

        def act(piece: Tensor | None) -> Tensor | None:
            assert piece is not None
            data = piece.clone(memory_format=torch.contiguous_format)
            chaining.reduce(self._wire, data, links)
            return data if self.rank == root else None

        return act

    def _broadcast(self, step: GroupCollective, dtype: torch.dtype) -> Action:
        root = self._root(step.inside, step.before)
        box = step.after.box(self.here)
        size = elements(box) * dtype.itemsize
        links = self.chains.rooted(Collective.BROADCAST, step.inside, size, root)

        def act(piece: Tensor | None) -> Tensor | None:
            data = piece
            if data is None:
                data = torch.empty(shape_of(box), dtype=dtype, device=self._device)
            data = data.contiguous()
            chaining.broadcast(self._wire, data, links)
            return data

        return act

    def _root(self, inside: Sequence[int], placement: TensorPlacement) -> int:
        """The member of this rank's group along some factors that holds a tensor."""
        holders = self._machine.along(inside, self.here)
        return next(self._machine.device(c) for c in holders if placement.holds(c))

    def _boxes(self, step: GroupCollective, *, after: bool) -> list[Box]:
        """What each member of this rank's group holds, or will hold."""
        lying = step.after if after else step.before
        return [
            lying.box(coordinates) for coordinates in self._machine.along(step.inside, self.here)
        ]


def cut(data: Tensor, box: Box) -> Tensor:
    """A box of a tensor, as a view."""
    for dim, (first, last) in enumerate(box):
        if (first, last) != (0, data.shape[dim]):
            data = data.narrow(dim, first, last - first)
    return data


def _taken(piece: Tensor | None, move: BoxMove) -> Tensor:
    assert piece is not None
    return cut(piece, within(move.box, move.source_box))


def _joined(
    target: Box,
    pairs: Sequence[tuple[BoxMove, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    summed: bool,
) -> Tensor:
    """What arrived, put together; where pieces overlap, and sums are pending, added up."""
    if len(pairs) == 1 and pairs[0][0].box == target:
        return pairs[0][1].contiguous()
    result = torch.zeros(shape_of(target), dtype=dtype, device=device)
    for move, data in pairs:
        place = cut(result, within(move.box, target))
        if summed and dtype != torch.bool:
            place += data
        else:
            place.copy_(data)
    return result
