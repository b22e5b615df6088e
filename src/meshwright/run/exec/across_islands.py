"""Hierarchical gradient AllReduce across islands of unequal sizes. Enters: a plan over islands, and
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
from meshwright.graph.operator_graph import OperatorGraph, Parameter
from meshwright.lower.ownership import Holdings, Region
from meshwright.lower.script import Script
from meshwright.plan.island_plan import collective_pricer, gradient_bytes
from meshwright.plan.plan import Plan
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
        part = next(n for n, members in enumerate(ranks) if rank in members)
        self._local, graph = rank - ranks[part][0], plans[part].graph
        wanted = [
            parameter
            for parameter in graph.parameters
            if parameter.trainable and (names is None or parameter.tensor.name in names)
        ]
        kept = [_kept(one, wanted) for one in plans]
        mine = Holdings(Script(plans[part]))
        self._levels, self._runs = plans[part].cluster.hierarchy, _runs(plans[part], wanted)
        self._sums: dict[Members, list[Stretch]] = {}
        self._copies: dict[Members, list[tuple[Stretch, ...]]] = {}
        for name in kept[0]:
            regions = mine.regions(name, self._local)
            if regions:
                self._prepare(name, regions, [one[name] for one in kept], part, graph)
        if len(ranks) > 1:
            for members in sorted(self._sums):
                self._group(members)

    def _prepare(
        self,
        name: str,
        regions: tuple[Region, ...],
        kept: list[AnsweringRanks],
        part: int,
        graph: OperatorGraph,
    ) -> None:
        shape = graph.specs[name].shape
        elements = _elements(shape, regions)
        answering = [one.answers[elements] + self._ranks[n][0] for n, one in enumerate(kept)]
        mine = np.flatnonzero(answering[part] == self._rank)
        rows = np.stack([one[mine] for one in answering])
        groups, number = np.unique(rows, axis=1, return_inverse=True)
        for at in range(groups.shape[1]):
            members = tuple(int(one) for one in groups[:, at])
            places = torch.from_numpy(mine[np.flatnonzero(number.reshape(-1) == at)])
            self._sums.setdefault(members, []).append(Stretch(name, places))
        copies = kept[part].copies[regions]
        if len(copies) > 1:
            parts = tuple(
                Stretch(
                    name,
                    torch.from_numpy(np.flatnonzero(answering[part] == self._ranks[part][0] + one)),
                )
                for one in copies
            )
            self._copies.setdefault(copies, []).append(parts)

    def _group(self, members: Members) -> dist.ProcessGroup:
        """The process group of some ranks, made once by all of them in the same order."""
        if members not in self._groups:
            name = PrefixStore("_".join(map(str, members)), self._store)
            place = members.index(self._rank)
            group: dist.ProcessGroupGloo | dist.ProcessGroupNCCL
            if self._backend == "nccl":
                options = dist.ProcessGroupNCCL.Options()
                group = dist.ProcessGroupNCCL(name, place, len(members), options)
            else:
                patience = dist.distributed_c10d.default_pg_timeout
                group = dist.ProcessGroupGloo(name, place, len(members), patience)
            self._groups[members] = group  # type: ignore[assignment]
        return self._groups[members]

    def reduce(self, executor: Executor, weight: float) -> None:
        """Sum the gradients of a step over all parts, each times its weight."""
        pieces = executor.parameters.pieces
        gradients = {
            name: piece.gradient.reshape(-1).clone()
            for name, piece in pieces.items()
            if piece.gradient is not None
        }
        if not gradients and self._sums:
            raise InputError("the step left no gradients", "train a model with parameters")
        for gradient in gradients.values():
            gradient.mul_(weight)
        for members in sorted(self._sums):
            stretches = [
                stretch for stretch in self._sums[members] if stretch.parameter in gradients
            ]
            for alike in _by_dtype(stretches, gradients):
                total = torch.cat(
                    [gradients[stretch.parameter][stretch.places] for stretch in alike]
                )
                if len(members) > 1:
                    options = dist.AllreduceOptions()
                    self._group(members).allreduce([total], options).wait()
                _put(gradients, alike, total)
        for copies in sorted(self._copies):
            self._gather(executor, copies, gradients)
        executor.wire.finish()
        for name, gradient in gradients.items():
            piece = pieces[name]
            assert piece.gradient is not None
            piece.gradient = gradient.view(piece.gradient.shape)

    def _gather(self, executor: Executor, copies: Members, gradients: dict[str, Tensor]) -> None:
        """Let copies of a part have what each of them has summed."""
        every = [parts for parts in self._copies[copies] if parts[0].parameter in gradients]
        for dtype in dict.fromkeys(gradients[parts[0].parameter].dtype for parts in every):
            alike = [parts for parts in every if gradients[parts[0].parameter].dtype == dtype]
            place = copies.index(self._local)
            mine = torch.cat([gradients[p[place].parameter][p[place].places] for p in alike])
            sizes = [sum(len(p[n].places) for p in alike) for n in range(len(copies))]
            groups = gather_groups(self._levels, self._runs, copies)
            rank_sizes = dict(zip(copies, sizes, strict=True))
            gathered = _gathered(executor.wire, self._local, mine, rank_sizes, groups)
            for number, rank in enumerate(copies):
                _put(gradients, [parts[number] for parts in alike], gathered[rank])

    def total(self, loss: Tensor, devices: int) -> Tensor:
        """The sum of what all parts have, of which every rank of a part has the same."""
        everybody = tuple(rank for members in self._ranks for rank in members)
        if len(everybody) == 1:
            return loss
        share = (loss.detach().double() / devices).reshape(1).clone()
        self._group(everybody).allreduce([share], dist.AllreduceOptions()).wait()
        return share[0].to(loss.dtype)


def _runs(plan: Plan, parameters: Sequence[Parameter]) -> Runs:
    """Over which levels to gather, as predicted; in one go where there is nothing to gather."""
    held = gradient_bytes(parameters) / plan.cluster.devices
    return cheapest_gather(collective_pricer(plan.cluster, plan.backend), held).runs


def _gathered(
    wire: Communicator,
    rank: int,
    mine: Tensor,
    sizes: dict[int, int],
    steps: Sequence[Sequence[tuple[int, ...]]],
) -> dict[int, Tensor]:
    """What each of some ranks holds, by AllGathers in groups one after the other."""
    holds: dict[int, Members] = {holder: (holder,) for holder in sizes}
    now = mine
    for groups in steps:
        for group in groups:
            if rank in group:
                parts = [sum(sizes[holder] for holder in holds[member]) for member in group]
                now = torch.cat(wire.all_gather(now, parts, group))
        for group in groups:
            every = tuple(holder for member in group for holder in holds[member])
            holds |= dict.fromkeys(group, every)
    cut = torch.split(now, [sizes[holder] for holder in holds[rank]])
    return dict(zip(holds[rank], cut, strict=True))


def _kept(plan: Plan, parameters: Sequence[Parameter]) -> dict[str, AnsweringRanks]:
    """Who answers for which elements of each parameter."""
    holdings, answering = Holdings(Script(plan)), {}
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
            for rank, share in zip(ranks, np.array_split(elements, len(ranks)), strict=True):
                answers[share] = rank
        assert (answers >= 0).all(), f"nobody keeps some of {name!r}"
        answering[name] = AnsweringRanks(
            answers, {key: tuple(ranks) for key, ranks in copies.items()}
        )
    return answering


def _elements(shape: tuple[int, ...], regions: tuple[Region, ...]) -> Places:
    """The elements of a tensor, counted row by row, in the order in which a rank keeps them."""
    whole = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.int64).reshape(shape)
    ordered = sorted(regions, key=lambda region: region.first)
    parts = [whole[tuple(slice(*ends) for ends in region.box)].reshape(-1) for region in ordered]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _by_dtype(stretches: list[Stretch], gradients: dict[str, Tensor]) -> list[list[Stretch]]:
    """Stretches that can travel together."""
    alike: dict[torch.dtype, list[Stretch]] = {}
    for stretch in stretches:
        alike.setdefault(gradients[stretch.parameter].dtype, []).append(stretch)
    return list(alike.values())


def _put(gradients: dict[str, Tensor], stretches: list[Stretch], values: Tensor) -> None:
    for stretch, part in zip(
        stretches, torch.split(values, [len(one.places) for one in stretches]), strict=True
    ):
        gradients[stretch.parameter][stretch.places] = part
