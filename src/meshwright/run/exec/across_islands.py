"""The hierarchical reduction of gradients across unequal groups. Enters: a plan over islands, and
what each rank of it keeps. Leaves: sums on all of them.

Inside a part gradients are reduced already, each element on one rank or on several (copies). Of an
element e let r_i(e) be the rank of part i that answers for it: copies share theirs out in runs of
equal length. Elements with the same (r_1, ..., r_k) are summed by one all-reduce of these k ranks:

    across    all-reduce over (r_1(e), ..., r_k(e)), once for each such group
    inside    all-gather among the copies of a part, level by level where that is cheaper

So each byte of a gradient leaves an island once in each direction for every other island's ring,
whatever the sizes and layouts of the islands. Groups are visited in one order by everybody, so that
none waits in a circle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from meshwright.base.errors import InputError
from meshwright.collectives.gather import Runs, cheapest_gather, gather_groups
from meshwright.graph.model import OperatorGraph, Parameter
from meshwright.lower.ownership import Holdings, Region
from meshwright.lower.script import Script
from meshwright.plan.island_plan import gather_pricer, gradient_bytes
from meshwright.plan.model import Plan
from meshwright.run.comm.communicator import Communicator
from meshwright.run.exec.executor import Executor

Members = tuple[int, ...]
"""Ranks, ascending."""

Places = NDArray[np.int64]


class AnsweringRanks(NamedTuple):
    """A parameter on one part: who answers for which elements."""

    answers: Places
    """[elements] the part's rank, counted in the part."""
    copies: dict[tuple[Region, ...], Members]
    """Ranks of the part that keep the same."""


class Stretch(NamedTuple):
    """Elements of a parameter on this rank, by their places in what it keeps."""

    parameter: str
    places: Tensor


class Across:
    """Sums gradients over the parts of a plan, as seen by one rank of them."""

    def __init__(
        self,
        plans: Sequence[Plan],
        ranks: Sequence[Members],
        rank: int,
        store: Store,
        backend: str,
        names: Collection[str] | None = None,
    ) -> None:
        """Enter besides: the parameters that all parts have, if not all."""
        self._rank, self._ranks, self._store, self._backend = rank, ranks, store, backend
        self._groups: dict[Members, dist.ProcessGroup] = {}
        own = next(n for n, members in enumerate(ranks) if rank in members)
        self._local, graph = rank - ranks[own][0], plans[own].graph
        wanted = [
            parameter
            for parameter in graph.parameters
            if parameter.trainable and (names is None or parameter.tensor.name in names)
        ]
        kept = [_kept(one, wanted) for one in plans]
        mine = Holdings(Script(plans[own]))
        self._levels, self._runs = plans[own].cluster.hierarchy, _runs(plans[own], wanted)
        self._sums: dict[Members, list[Stretch]] = {}
        self._copies: dict[Members, list[tuple[Stretch, ...]]] = {}
        for name in kept[0]:
            regions = mine.regions(name, self._local)
            if regions:
                self._prepare(name, regions, [one[name] for one in kept], own, graph)
        if len(ranks) > 1:
            for members in sorted(self._sums):
                self._group(members)

    def _prepare(
        self,
        name: str,
        regions: tuple[Region, ...],
        kept: list[AnsweringRanks],
        own: int,
        graph: OperatorGraph,
    ) -> None:
        shape = graph.specs[name].shape
        elements = _elements(shape, regions)
        answering = [one.answers[elements] + self._ranks[n][0] for n, one in enumerate(kept)]
        mine = np.flatnonzero(answering[own] == self._rank)
        rows = np.stack([one[mine] for one in answering])
        groups, number = np.unique(rows, axis=1, return_inverse=True)
        for at in range(groups.shape[1]):
            members = tuple(int(one) for one in groups[:, at])
            places = torch.from_numpy(mine[np.flatnonzero(number.reshape(-1) == at)])
            self._sums.setdefault(members, []).append(Stretch(name, places))
        copies = kept[own].copies[regions]
        if len(copies) > 1:
            parts = tuple(
                Stretch(
                    name,
                    torch.from_numpy(np.flatnonzero(answering[own] == self._ranks[own][0] + one)),
                )
                for one in copies
            )
            self._copies.setdefault(copies, []).append(parts)

    def _group(self, members: Members) -> dist.ProcessGroup:
        """The process group of some ranks, made once by all of them in the same order."""
        if members not in self._groups:
            name = PrefixStore("_".join(map(str, members)), self._store)
            place = members.index(self._rank)
            made: dist.ProcessGroupGloo | dist.ProcessGroupNCCL
            if self._backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                made = dist.ProcessGroupNCCL(name, place, len(members), options)
            else:
                patience = dist.distributed_c10d.default_pg_timeout
                made = dist.ProcessGroupGloo(name, place, len(members), patience)
            self._groups[members] = made  # type: ignore[assignment]
        return self._groups[members]

    def reduce(self, executor: Executor, weight: float) -> None:
        """Sum the gradients of a step over all parts, each times its weight."""
        pieces = executor.parameters.pieces
        found = {
            name: piece.gradient.reshape(-1).clone()
            for name, piece in pieces.items()
            if piece.gradient is not None
        }
        if not found and self._sums:
            raise InputError("the step left no gradients", "train a model with parameters")
        for own in found.values():
            own.mul_(weight)
        for members in sorted(self._sums):
            stretches = [own for own in self._sums[members] if own.parameter in found]
            for alike in _by_dtype(stretches, found):
                total = torch.cat([found[own.parameter][own.places] for own in alike])
                if len(members) > 1:
                    options = dist.AllreduceOptions()
                    self._group(members).allreduce([total], options).wait()
                _put(found, alike, total)
        for copies in sorted(self._copies):
            self._gather(executor, copies, found)
        executor.wire.finish()
        for name, own in found.items():
            piece = pieces[name]
            assert piece.gradient is not None
            piece.gradient = own.view(piece.gradient.shape)

    def _gather(self, executor: Executor, copies: Members, found: dict[str, Tensor]) -> None:
        """Let copies of a part have what each of them has summed."""
        every = [parts for parts in self._copies[copies] if parts[0].parameter in found]
        for dtype in dict.fromkeys(found[parts[0].parameter].dtype for parts in every):
            alike = [parts for parts in every if found[parts[0].parameter].dtype == dtype]
            here = copies.index(self._local)
            mine = torch.cat([found[p[here].parameter][p[here].places] for p in alike])
            sizes = [sum(len(p[n].places) for p in alike) for n in range(len(copies))]
            groups = gather_groups(self._levels, self._runs, copies)
            given = dict(zip(copies, sizes, strict=True))
            gathered = _gathered(executor.wire, self._local, mine, given, groups)
            for number, rank in enumerate(copies):
                _put(found, [parts[number] for parts in alike], gathered[rank])

    def total(self, loss: Tensor, devices: int) -> Tensor:
        """The sum of what all parts have, of which every rank of a part has the same."""
        everybody = tuple(rank for members in self._ranks for rank in members)
        if len(everybody) == 1:
            return loss
        own = (loss.detach().double() / devices).reshape(1).clone()
        self._group(everybody).allreduce([own], dist.AllreduceOptions()).wait()
        return own[0].to(loss.dtype)


def _runs(plan: Plan, parameters: Sequence[Parameter]) -> Runs:
    """Over which levels to gather, as predicted; in one go where there is nothing to gather."""
    held = gradient_bytes(parameters) / plan.cluster.devices
    return cheapest_gather(gather_pricer(plan.cluster, plan.backend), held).runs


def _gathered(
    wire: Communicator,
    rank: int,
    mine: Tensor,
    sizes: dict[int, int],
    steps: Sequence[Sequence[tuple[int, ...]]],
) -> dict[int, Tensor]:
    """What each of some ranks holds, by AllGathers in groups one after the other."""
    holds: dict[int, Members] = {own: (own,) for own in sizes}
    now = mine
    for groups in steps:
        for group in groups:
            if rank in group:
                parts = [sum(sizes[own] for own in holds[member]) for member in group]
                now = torch.cat(wire.all_gather(now, parts, group))
        for group in groups:
            every = tuple(own for member in group for own in holds[member])
            holds |= dict.fromkeys(group, every)
    cut = torch.split(now, [sizes[own] for own in holds[rank]])
    return dict(zip(holds[rank], cut, strict=True))


def _kept(plan: Plan, parameters: Sequence[Parameter]) -> dict[str, AnsweringRanks]:
    """Who answers for which elements of each parameter."""
    holdings, found = Holdings(Script(plan)), {}
    for parameter in parameters:
        name, shape = parameter.tensor.name, parameter.tensor.shape
        copies: dict[tuple[Region, ...], list[int]] = {}
        for rank in range(plan.cluster.devices):
            regions = holdings.regions(name, rank)
            if regions:
                copies.setdefault(regions, []).append(rank)
        answers = np.full(parameter.tensor.spec.elements, -1, np.int64)
        for regions, ranks in copies.items():
            elements = _elements(shape, regions)
            for rank, own in zip(ranks, np.array_split(elements, len(ranks)), strict=True):
                answers[own] = rank
        assert (answers >= 0).all(), f"nobody keeps some of {name!r}"
        found[name] = AnsweringRanks(answers, {key: tuple(ranks) for key, ranks in copies.items()})
    return found


def _elements(shape: tuple[int, ...], regions: tuple[Region, ...]) -> Places:
    """The elements of a tensor, counted row by row, in the order in which a rank keeps them."""
    whole = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
    ordered = sorted(regions, key=lambda own: own.first)
    parts = [whole[tuple(slice(*ends) for ends in own.box)].reshape(-1) for own in ordered]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _by_dtype(stretches: list[Stretch], found: dict[str, Tensor]) -> list[list[Stretch]]:
    """Stretches that can travel together."""
    alike: dict[torch.dtype, list[Stretch]] = {}
    for own in stretches:
        alike.setdefault(found[own.parameter].dtype, []).append(own)
    return list(alike.values())


def _put(found: dict[str, Tensor], stretches: list[Stretch], values: Tensor) -> None:
    for own, part in zip(
        stretches, torch.split(values, [len(one.places) for one in stretches]), strict=True
    ):
        found[own.parameter][own.places] = part
