"""Hybrid parallelism from degrees of DP, TP, CP, PP and EP, laid out as Megatron does. Enters: a
graph, a cluster, a `ParallelConfig`. Leaves: a `Plan`.

    pipeline   stages of equally many layers sit at coordinates; with virtual stages each device
               has several runs of layers
    data       cuts samples
    tensor     cuts layers inside as Megatron does (`tensor`), tables along words, heads along
               their outputs; norms and residuals are copies or, with sequence parallelism, cut
               along positions
    context    cuts positions; keys and values are gathered in front of attention
    expert     cuts the experts of grouped products, along the innermost of the context and data
               factors, if folded of the tensor factors before them; what is between them keeps the
               roles of those

What a unit cannot be cut along it is cut along otherwise, if it holds no parameters: samples, then
any dim that is not summed over. A loss, whose rows are positions, is so cut by all axes but the
tensor axis, which cuts it along classes where the head is (vocabulary-parallel).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.once import once
from meshwright.baselines.degrees.facts import EXPERT, layer_starts, transformer_facts
from meshwright.baselines.degrees.parallel_config import Axis, ParallelConfig
from meshwright.baselines.degrees.placed import mesh_factors_of_axes, rows_of
from meshwright.baselines.degrees.refusals import divisibility_problems, refusals
from meshwright.baselines.degrees.sequence import sequence_splits
from meshwright.baselines.roles import named_split, seat
from meshwright.baselines.tensor import head_splits, tensor_splits
from meshwright.cluster.cluster import Cluster
from meshwright.graph.families.embedding import KINDS as TABLES
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout, MeshFactor, factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import sharding_classes, units

VOCABULARY = "vocabulary"
"""The split of a table that cuts its rows."""


def configured(
    graph: OperatorGraph,
    cluster: Cluster,
    config: ParallelConfig,
    taken: Mapping[Axis, tuple[int, ...]] | None = None,
) -> Plan:
    """The plan that a configuration means; refuses one that does not divide. Axes lie in their
    order, or on the factors that are given.
    """
    problems = refusals(graph, cluster, config) if taken is None else ()
    for problem in problems or divisibility_problems(transformer_facts(graph), config):
        raise problem
    parts, mesh_factors = units(graph), factors(cluster)
    if taken is None:
        taken = mesh_factors_of_axes(rows_of(config.degrees, cluster), cluster)
    seats = _seats(graph, parts, mesh_factors, taken["pipeline"], config)
    layouts = _Layouts(graph, parts, mesh_factors, taken, config)
    planned = [layouts.of(number, seats[number]) for number in range(len(parts))]
    return Plan.of(f"configuration: {config}", graph, cluster, planned, config.options)


def _seats(
    graph: OperatorGraph,
    parts: Sequence[OpGroup],
    mesh_factors: Sequence[MeshFactor],
    along: Sequence[int],
    config: ParallelConfig,
) -> list[dict[int, str]]:
    """Where each unit sits along the pipeline's factors."""
    starts = layer_starts(graph)
    # A last run may have no layers: it begins where one more would.
    bounds = (*starts, 2 * starts[-1] - starts[max(0, len(starts) - 2)])
    firsts = [bounds[cut] for cut in cuts_of(config, len(starts))[1:-1]]
    position = {operator.name: number for number, operator in enumerate(graph.operators)}
    room = [mesh_factors[factor] for factor in along]
    unit_seats = []
    seats = [dict(zip(along, seat(n, room), strict=True)) for n in range(config.pipeline)]
    for unit in parts:
        run = bisect_right(firsts, position[unit.name])
        unit_seats.append(seats[run % config.pipeline])
    return unit_seats


def virtual_stage_starts(starts: Sequence[int], runs: int) -> list[int]:
    """Where the second and later of so many runs of layers begin, given where layers do.

    Layers that do not divide by the runs are cut as if embedding and head were a layer each, if
    that divides (Megatron's --account-for-embedding-in-pipeline-split), or else by rounding up: the
    last run, which has the head besides, has the fewer.

    >>> virtual_stage_starts([2, 4, 6, 8, 10, 12], 4), virtual_stage_starts([2, 4, 6, 8, 10], 3)
    ([4, 8, 12], [6, 10])
    """
    layers = len(starts)
    each, left = divmod(layers + 2, runs)
    if layers % runs and not left:
        bounds = (*starts, 2 * starts[-1] - starts[-2])
        return [bounds[run * each - 1] for run in range(1, runs)]
    return [starts[-(-run * layers // runs)] for run in range(1, runs)]


def cuts_of(config: ParallelConfig, layers: int) -> list[int]:
    """The layers at which runs begin, and the number of layers.

    >>> cuts_of(ParallelConfig(pipeline=2), 8)
    [0, 4, 8]
    >>> cuts_of(ParallelConfig(pipeline=2, stages=(5, 3)), 8)
    [0, 5, 8]
    """
    if config.stages:
        return [0, *accumulate(config.stages)]
    return [0, *virtual_stage_starts(range(layers), config.pipeline * config.chunks), layers]


def layers_per_virtual_stage(config: ParallelConfig, layers: int) -> tuple[int, ...]:
    """How many layers each run has."""
    return tuple(second - first for first, second in pairwise(cuts_of(config, layers)))


def with_virtual_stage_layers(config: ParallelConfig, counts: Sequence[int]) -> ParallelConfig:
    """With so many layers in each run, named where they are not those of `virtual_stage_starts`."""
    even = replace(config, stages=(), uneven=True)
    layers = tuple(counts)
    return (
        even
        if layers_per_virtual_stage(even, sum(layers)) == layers
        else replace(even, stages=layers)
    )


class _Splits(NamedTuple):
    """For each unit that takes part in an axis the number of its split."""

    tensor: Mapping[int, int]
    sequence: Mapping[int, int]
    head: int
    """The first unit behind the layers that the tensor axis cuts along its outputs."""


@once
def _splits(graph: OperatorGraph) -> _Splits:
    """What Megatron cuts: layers inside, tables of words, and what reads the last hidden states."""
    parts = units(graph)
    splits = tensor_splits(graph, parts)
    parameters = {parameter.tensor.name for parameter in graph.parameters}
    behind = max(splits, default=-1)
    for number, unit in enumerate(parts):
        if number in splits:
            continue
        split = None
        if unit.members[0].call.kind in TABLES:
            split = named_split(unit, VOCABULARY)
        elif number > behind and any(boundary.tensor in parameters for boundary in unit.inputs):
            split = named_split(unit, "channel")
        if split is not None:
            splits[number] = split
    heads = [number for number in splits if number > behind]
    splits |= {n: split for n, split in head_splits(graph, parts).items() if n > behind}
    return _Splits(splits, sequence_splits(parts), min(heads, default=len(parts)))


class _Layouts:
    """Roles of factors, unit by unit."""

    def __init__(
        self,
        graph: OperatorGraph,
        parts: Sequence[OpGroup],
        mesh_factors: Sequence[MeshFactor],
        taken: Mapping[Axis, tuple[int, ...]],
        config: ParallelConfig,
    ) -> None:
        self._parts, self._own, self._taken, self._config = parts, mesh_factors, taken, config
        self._splits = _splits(graph)
        self._alike, self._kept, self._between = (
            sharding_classes(graph),
            _kept(graph),
            _between(graph),
        )
        self._known: dict[object, Layout] = {}
        """By all of a unit that counts; copies of a layer are laid out once for each seat."""
        axes: list[Axis] = ["tensor"] if config.folded else []
        inner = [f for axis in (*axes, "context", "data") for f in reversed(taken[axis])]
        self._experts = _innermost(inner, mesh_factors, config.expert)

    def of(self, number: int, seated: Mapping[int, str]) -> Layout:
        """The layout of one unit."""
        tensor = self._splits.tensor.get(number)
        sequence = self._splits.sequence.get(number)
        key = (
            self._alike[number], self._kept[number], self._between[number], tensor, sequence,
            number <= self._splits.head, tuple(seated.values()),
        )  # fmt: skip
        if key not in self._known:
            self._known[key] = self._laid(number, seated, tensor, sequence)
        return self._known[key]

    def _laid(
        self, number: int, seated: Mapping[int, str], tensor: int | None, sequence: int | None
    ) -> Layout:
        unit, roles = self._parts[number], dict(seated)
        for axis in ("data", "context", "tensor"):
            free = [factor for factor in self._taken[axis] if factor not in roles]
            if EXPERT in unit.extents:
                spread = [factor for factor in free if factor in self._experts]
                self._cut(unit, roles, spread, [named_split(unit, EXPERT)])
                free = [factor for factor in free if factor not in spread]
            self._cut(unit, roles, free, self._choices(axis, number, tensor, sequence))
        return Layout(tuple(roles.get(factor, REPLICA) for factor in range(len(self._own))))

    def _choices(
        self, axis: Axis, number: int, tensor: int | None, sequence: int | None
    ) -> list[int | None]:
        """The splits that an axis may cut, the one it means first."""
        unit = self._parts[number]
        if axis == "data":
            return [unit.samples]
        if axis == "tensor":
            if tensor is not None and number <= self._splits.head:
                return [tensor]
            if tensor is None and not (self._config.sequence or self._between[number]):
                return []
        first = [tensor] if axis == "tensor" and tensor is not None else []
        if sequence is not None:
            return [*first, sequence]
        return [*first, unit.samples, *([] if self._kept[number] else _others(unit))]

    def _cut(
        self,
        unit: OpGroup,
        roles: dict[int, str],
        along: Sequence[int],
        choices: Iterable[int | None],
    ) -> None:
        """Give factors the first of some splits that they can cut, all of them together."""
        ways = math.prod(self._own[factor].size for factor in along)
        for split in choices:
            if split is None or not along:
                continue
            name = unit.splits[split].name
            before = math.prod(self._own[f].size for f, role in roles.items() if role == name)
            micro = unit.micro_ways(split, self._config.micro_batches)
            if unit.cuttable(split, ways * before * micro):
                roles.update(dict.fromkeys(along, name))
                return


def _others(unit: OpGroup) -> Iterator[int]:
    """Splits that sum nothing."""
    for number, split in enumerate(unit.splits):
        if split.role != "reduction" and number != unit.samples:
            yield number


@once
def _kept(graph: OperatorGraph) -> tuple[bool, ...]:
    """For each unit whether it has parameters."""
    parameters = {parameter.tensor.name for parameter in graph.parameters}
    return tuple(
        any(boundary.tensor in parameters for boundary in unit.inputs) for unit in units(graph)
    )


@once
def _between(graph: OperatorGraph) -> tuple[bool, ...]:
    """For each unit whether it has no parameters and reads what the tensor axis has cut, not
    summed; or comes behind the head, where copies would be of all words.
    """
    parts, splits = units(graph), _splits(graph)
    maker = {boundary.tensor: n for n, unit in enumerate(parts) for boundary in unit.outputs}
    cut = {
        number: parts[number].splits[split].role != "reduction"
        for number, split in splits.tensor.items()
    }
    return tuple(
        not kept
        and (
            number > splits.head
            or any(cut.get(maker.get(boundary.tensor, -1), False) for boundary in unit.inputs)
        )
        for number, (unit, kept) in enumerate(zip(parts, _kept(graph), strict=True))
    )


def _innermost(
    among: Iterable[int], mesh_factors: Sequence[MeshFactor], degree: int
) -> frozenset[int]:
    """The first of some factors that multiply to a degree."""
    chosen: set[int] = set()
    left = degree
    for factor in among:
        if left % mesh_factors[factor].size == 0:
            chosen.add(factor)
            left //= mesh_factors[factor].size
    return frozenset(chosen)
