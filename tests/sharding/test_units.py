"""Units: every operator in one, and nothing moves inside, judged by the boxes of pieces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Operator, OperatorGraph, Spec
from meshwright.graph.pieces import Box, pieces
from meshwright.graph.text import parse_graph
from meshwright.sharding.states import PARTIAL, WHOLE
from meshwright.sharding.unit import Member, OpGroup, states_inside
from meshwright.sharding.units import units
from support.baseline_graphs import (
    FUSED,
    PLAIN,
    convolutional,
    recommendation,
    recurrent,
    transformer,
)
from support.training_graphs import TINY, random_graph, tiny

SMALL = (
    convolutional(),
    transformer(),
    FUSED,
    PLAIN,
    recurrent(),
    recommendation(20, 90, 40),
)
RANDOMS = st.randoms(use_true_random=False)


@pytest.mark.parametrize("graph", SMALL, ids=lambda graph: graph.name)
def test_small_graphs(graph: OperatorGraph) -> None:
    judge(graph)


@pytest.mark.parametrize("name", TINY)
def test_tiny_models(name: str) -> None:
    judge(tiny(name))


@given(RANDOMS)
def test_random_graphs(random: Random) -> None:
    judge(random_graph(random))


def judge(graph: OperatorGraph) -> None:
    groups = units(graph)
    judge_membership(graph, groups)
    for unit in groups:
        judge_ports(graph, unit)
        for number in range(len(unit.splits)):
            for parts in (2, 3, 4):
                if unit.cuttable(number, parts):
                    judge_inside(graph, unit, number, parts)
        for one, other in combinations(range(len(unit.splits)), 2):
            if unit.cuttable(one, 2) and unit.cuttable(other, 2):
                judge_shapes(graph, unit, {one: 2, other: 2})


def judge_membership(graph: OperatorGraph, units: tuple[OpGroup, ...]) -> None:
    """All members, in the order of units, are the graph's operators in an order of running."""
    names = [member.operator for unit in units for member in unit.members]
    assert sorted(names) == sorted(operator.name for operator in graph.operators)
    known = {tensor.name for tensor in (*graph.inputs, *graph.buffers)}
    known |= {parameter.tensor.name for parameter in graph.parameters}
    by_name = {operator.name: operator for operator in graph.operators}
    position = {operator.name: place for place, operator in enumerate(graph.operators)}
    for unit in units:
        assert unit.name == unit.members[0].operator
        places = [position[member.operator] for member in unit.members]
        assert places == sorted(places)
        for member in unit.members:
            operator = by_name[member.operator]
            assert member.call == graph.call(operator)
            assert {name for name in operator.inputs if name is not None} <= known
            known |= {tensor.name for tensor in operator.outputs}


def boxes(member: Member, number: int, parts: int) -> list[tuple[tuple[Box | None, ...], ...]]:
    """For each part the boxes that a member reads and makes under a split of its unit."""
    split = member.splits[number]
    if split is not None:
        return [(piece.inputs, piece.outputs) for piece in pieces(member.call, split, parts)]
    call = member.call
    reads = tuple(None if s is None else tuple((0, n) for n in s.shape) for s in call.inputs)
    makes = tuple(tuple((0, n) for n in spec.shape) for spec in call.outputs)
    return [(reads, makes)] * parts


def judge_inside(graph: OperatorGraph, unit: OpGroup, number: int, parts: int) -> None:
    """What each part reads of the unit is exactly what the same part made; no pending sums."""
    output_boxes: dict[str, list[Box | None]] = {}
    pending: set[str] = set()
    for member, operator in with_operators(graph, unit):
        cut = boxes(member, number, parts)
        split = member.splits[number]
        for index, name in enumerate(operator.inputs):
            if name in output_boxes:
                assert [reads[index] for reads, _ in cut] == output_boxes[name]
                if name in pending:
                    assert family_of(operator).view, "a sum is read before it is summed up"
        passes = any(name in pending for name in operator.inputs)
        for index, tensor in enumerate(operator.outputs):
            output_boxes[tensor.name] = [makes[index] for _, makes in cut]
            if passes or (split is not None and split.role == "reduction"):
                pending.add(tensor.name)
        if member is not unit.members[0] and split is not None:
            assert split.halo is None
            assert split.statistics == 0


def judge_shapes(graph: OperatorGraph, unit: OpGroup, degrees: dict[int, int]) -> None:
    """Cut along two splits at once, the largest pieces still fit together."""
    specs: dict[str, Spec] = {}
    for member, operator in with_operators(graph, unit):
        piece = member.piece(degrees)
        for name, spec in zip(operator.inputs, piece.inputs, strict=True):
            if name in specs:
                assert spec == specs[name]
        specs.update(zip((t.name for t in operator.outputs), piece.outputs, strict=True))


def judge_ports(graph: OperatorGraph, unit: OpGroup) -> None:
    """Ports name what enters and leaves, in the states in which pieces read and make it."""
    operators = [operator for _, operator in with_operators(graph, unit)]
    written = {tensor.name for operator in operators for tensor in operator.outputs}
    fixed = {tensor.name for tensor in (*graph.inputs, *graph.buffers)}
    read = {name for operator in operators for name in operator.inputs if name is not None}
    assert {boundary.tensor for boundary in unit.inputs} == read - written - fixed
    inside = {operator.name for operator in operators}
    outside = {n for n in written if {r.name for r in graph.consumers[n]} - inside}
    assert [boundary.tensor for boundary in unit.outputs] == [
        n for n in in_order(operators) if n in outside
    ]
    states = list(port_states(graph, unit))
    for boundary in unit.inputs:
        assert ("read", boundary.tensor, boundary.forward) in states
    for boundary in unit.outputs:
        assert ("made", boundary.tensor, boundary.forward) in states


def port_states(graph: OperatorGraph, unit: OpGroup) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every tensor that is read or made, in its state under each split, from the boxes."""
    pending: list[set[str]] = [set() for _ in unit.splits]
    for member, operator in with_operators(graph, unit):
        for index, name in enumerate(operator.inputs):
            if name is not None:
                dims = (None if s is None else s.inputs[index] for s in member.splits)
                yield "read", name, tuple(WHOLE if dim is None else dim for dim in dims)
        for index, tensor in enumerate(operator.outputs):
            states = []
            for number, split in enumerate(member.splits):
                passed = split is None and any(n in pending[number] for n in operator.inputs)
                if passed or (split is not None and split.role == "reduction"):
                    pending[number].add(tensor.name)
                    states.append(PARTIAL)
                else:
                    dim = None if split is None else split.outputs[index]
                    states.append(WHOLE if dim is None else dim)
            yield "made", tensor.name, tuple(states)


def with_operators(graph: OperatorGraph, unit: OpGroup) -> list[tuple[Member, Operator]]:
    by_name = {operator.name: operator for operator in graph.operators}
    return [(member, by_name[member.operator]) for member in unit.members]


def in_order(operators: list[Operator]) -> list[str]:
    return [tensor.name for operator in operators for tensor in operator.outputs]


HALOS = parse_graph("""graph halos
input x: float32[n=4, c=2, h=8, w=8]
parameter k: float32[o=2, i=2, kh=3, kw=3]
parameter l: float32[o=2, i=2, kh=3, kw=3]
operator a: a: float32[n=4, c=2, h=6, w=6] = conv2d(x, k)
operator r: r: float32[n=4, c=2, h=6, w=6] = relu(a)
operator b: b: float32[n=4, c=2, h=4, w=4] = conv2d(r, l)
output b""")


def test_halos_are_the_rows_beyond_a_cut() -> None:
    second = units(HALOS)[-1]
    (boundary,) = (boundary for boundary in second.inputs if boundary.tensor == "r")
    row = 4 * (4 * 2 * 6)
    expected = [0] * len(second.splits)
    for number, split in enumerate(second.splits):
        if split.halo is not None:
            one, other = pieces(second.members[0].call, split, 2)
            dim = split.inputs[0]
            assert dim is not None
            first, last = one.inputs[0], other.inputs[0]
            assert first is not None
            assert last is not None
            expected[number] = (first[dim][1] - last[dim][0]) * row
    assert any(expected)
    assert list(boundary.halo) == expected


ENDING = """graph ending
input x: float32[n=8, i=4]
parameter v: float32[o=6, i=4]
parameter w: float32[o=5, i=6]
operator y: y: float32[n=8, o=6] = linear(x, v)
operator z: z: float32[n=8, o=5] = linear(y, w)
operator s: s: float32[] = mean(z)
"""


def sums(end: str) -> dict[str, list[str]]:
    """For each unit the splits that leave something that it makes as a pending sum."""
    graph = parse_graph(ENDING + end)
    return {
        unit.name: [
            split.name
            for number, split in enumerate(unit.splits)
            if any(states[number] == PARTIAL for states in states_inside(unit, graph).values())
        ]
        for unit in units(graph)
    }


def test_no_output_is_a_pending_sum() -> None:
    """What others read may be one; of a loss the runtime adds up the terms."""
    whole = sums("output z\noutput s")
    assert whole["y"] == ["inner"]
    assert whole["z"] == []
    assert whole["s"] == []
    loss = sums("output s\nloss s")
    assert loss["z"] == ["inner"]
    assert loss["s"]
