"""Reduction programs executed on ranks. Enters: a tensor and a program's recipe. Leaves: in the
tensor, the sum over this rank's reduction group, as a plain AllReduce would leave it.

Rank i is device i of the placement. Why this program is the best is not known here.
"""

from __future__ import annotations

from typing import assert_never
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.collectives.islands.island_reduction_plan import IslandReductionPlan
from meshwright.collectives.recipe import DeviceStep, Pieces, Recipe
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.cost.collective import Collective
from meshwright.run.comm.communicator import Communicator

GROUPED = (Collective.ALL_REDUCE,)
"""What gloo does by itself, for which a process group is made beforehand."""


class Reducer:
    """Sums tensors over this rank's reduction group by a program; every rank makes it and uses it
    in the same order.
    """

    def __init__(self, wire: Communicator, recipe: Recipe) -> None:
        self._wire, self._recipe = wire, recipe
        wire.prepare(step.members for step in recipe.steps if step.collective in GROUPED)

    @torch.no_grad()
    def all_reduce(self, data: Tensor, *, largest: bool = False) -> None:
        """The sum over this rank's reduction group, or the largest, in place."""
        if not self._recipe.steps:
            return
        flat = data.detach().contiguous().view(-1)
        lengths = self._recipe.lengths(flat.numel())
        now, have = flat, tuple(range(self._recipe.pieces))
        for step in self._recipe.steps:
            place = step.members.index(self._recipe.device)
            held, kept = step.held[place], step.kept[place]
            if held == have:
                now, have = self._performed(step, now, lengths, largest), kept
                continue
            # Groups of this step share devices: this one acts on some of what the rank has.
            by_piece = _by_piece(now, have, lengths)
            some = _row(by_piece, held, now)
            by_piece = {piece: tensor for piece, tensor in by_piece.items() if piece not in held}
            by_piece |= _by_piece(self._performed(step, some, lengths, largest), kept, lengths)
            have = tuple(sorted(by_piece))
            now = _row(by_piece, have, now)
        if now.data_ptr() != data.data_ptr():
            data.detach().copy_(now.view(data.shape))

    def _performed(
        self, step: DeviceStep, now: Tensor, lengths: tuple[int, ...], largest: bool
    ) -> Tensor:
        """What this rank holds after a step."""
        wire, members = self._wire, step.members
        held = [sum(lengths[piece] for piece in pieces) for pieces in step.held]
        match step.collective:
            case Collective.ALL_REDUCE:
                wire.all_reduce(now, members, largest=largest)
                return now
            case Collective.REDUCE_SCATTER:
                return wire.reduce_scatter(_parted(now, step, lengths), members, largest=largest)
            case Collective.ALL_GATHER:
                return _in_order(wire.all_gather(now, held, members), step, lengths)
            case Collective.REDUCE:
                wire.reduce(now, members, largest=largest)
                return now if self._recipe.device == members[0] else now[:0]
            case Collective.BROADCAST:
                whole = now if self._recipe.device == members[0] else now.new_empty(held[0])
                wire.broadcast(whole, members)
                return whole
            case _:
                assert_never(step.collective)


def _by_piece(now: Tensor, pieces: Pieces, lengths: tuple[int, ...]) -> dict[int, Tensor]:
    """A row of pieces, cut."""
    return dict(zip(pieces, torch.split(now, [lengths[piece] for piece in pieces]), strict=True))


def _row(by_piece: dict[int, Tensor], pieces: Pieces, like: Tensor) -> Tensor:
    """Pieces as a row."""
    return torch.cat([by_piece[piece] for piece in pieces]) if pieces else like[:0]


def _parted(now: Tensor, step: DeviceStep, lengths: tuple[int, ...]) -> list[Tensor]:
    """What each member will have of a row."""
    if sum(step.kept, ()) == step.held[0]:
        return list(torch.split(now, [sum(lengths[p] for p in pieces) for pieces in step.kept]))
    by_piece = _by_piece(now, step.held[0], lengths)
    return [_row(by_piece, pieces, now) for pieces in step.kept]


def _in_order(parts: list[Tensor], step: DeviceStep, lengths: tuple[int, ...]) -> Tensor:
    """What members held, as one row of pieces in ascending order."""
    numbers = [piece for pieces in step.held for piece in pieces]
    if numbers == sorted(numbers):
        return torch.cat(parts)
    by_piece: dict[int, Tensor] = {}
    for part, pieces in zip(parts, step.held, strict=True):
        cut = torch.split(part, [lengths[piece] for piece in pieces])
        by_piece.update(zip(pieces, cut, strict=True))
    return torch.cat([by_piece[piece] for piece in sorted(by_piece)])


AnyReductionPlan = ReductionPlan | IslandReductionPlan


def reducer(plan: AnyReductionPlan, world: dist.ProcessGroup | None = None) -> Reducer:
    """A plan's reducer for this rank, whose messages go through a process group of everybody."""
    ranks = dist.get_world_size()
    if ranks != plan.cluster.devices:
        raise InputError(
            f"the reduction plan is for {counted(plan.cluster.devices, 'device')} of cluster "
            f"{plan.cluster.name!r}, and there are {counted(ranks, 'rank')}",
            f"start {counted(plan.cluster.devices, 'rank')}, or choose a plan for a cluster of "
            f"{counted(ranks, 'device')}",
        )
    return Reducer(Communicator(world), plan.recipe(dist.get_rank()))


_reducers: WeakKeyDictionary[dist.ProcessGroup, dict[AnyReductionPlan, Reducer]] = (
    WeakKeyDictionary()
)
"""Those made so far, as long as their default process group lives."""


def all_reduce(tensor: Tensor, plan: AnyReductionPlan) -> None:
    """Sum a tensor, in place, over this rank's reduction group by the plan's program.

    Every rank calls it in the same order; process groups are made the first time.
    """
    if not dist.is_initialized():
        raise InputError(
            "there is no process group", "call torch.distributed.init_process_group first"
        )
    default = dist.group.WORLD
    assert default is not None
    known = _reducers.setdefault(default, {})
    if plan not in known:
        known[plan] = reducer(plan)
    known[plan].all_reduce(tensor)
