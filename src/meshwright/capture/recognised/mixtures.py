"""Mixtures of experts as one operator each. Enters: a captured graph. Leaves: the same function, in
which what lies between a router's choices and the weighted sum is `routed_experts`.

As they are written, a sort puts the tokens of all devices in one row. As one operator, each device
routes its own tokens (DP), or holds some experts and gets their tokens by AllToAll (EP). What was
recognised (`routing`) is taken out of the graph and told as the operator's body; where anything is
read elsewhere, or depends on the number of tokens, the graph stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from meshwright.capture.recognised.routed_parts import (
    Part,
    RoutedEnds,
    RoutedIds,
    RoutedMix,
    RoutedRow,
)
from meshwright.capture.recognised.routing import parts_of
from meshwright.graph.expert_body import ENDS, IDS, ROWS, ExpertStage, format_body, operand
from meshwright.graph.families import family_of
from meshwright.graph.family import ShapeError
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Spec

KIND, PRODUCT = "routed_experts", "_grouped_mm"

TURNING = ("transpose", "permute", "contiguous", "to", "alias")
"""Kinds that change how an operand lies, and belong to the body."""


def with_routed_experts(graph: OperatorGraph) -> OperatorGraph:
    """The graph with each mixture of experts as one operator."""
    if all(operator.kind != PRODUCT for operator in graph.operators):
        return graph
    parts = parts_of(graph)
    for name, part in parts.items():
        if isinstance(part, RoutedMix):
            graph = _replaced(graph, name, part, parts)
    return graph


class _Region(NamedTuple):
    """What is between the choices and the sum."""

    tokens: str
    operands: tuple[str, ...]
    stages: tuple[ExpertStage, ...]
    experts: int
    products: frozenset[str]
    """The operators that are grouped products."""


def _replaced(
    graph: OperatorGraph, name: str, mixed: RoutedMix, parts: dict[str, Part]
) -> OperatorGraph:
    region = _region(graph, mixed, parts)
    if region is None:
        return graph
    old = graph.producers[name]
    new = Operator(
        name=old.name,
        kind=KIND,
        inputs=(region.tokens, mixed.choices, mixed.weights, *region.operands),
        outputs=old.outputs,
        attributes=(("body", format_body(region.stages)), ("experts", region.experts)),
        layer=old.layer,
    )
    if not _fits(_call(graph, new)):
        return graph
    swapped = (new if operator.name == old.name else operator for operator in graph.operators)
    replaced = _needed(msgspec.structs.replace(graph, operators=tuple(swapped)))
    # What is read elsewhere too would be computed twice.
    return graph if region.products & replaced.named.keys() else replaced


def _region(graph: OperatorGraph, mixed: RoutedMix, parts: dict[str, Part]) -> _Region | None:
    collected = _Collected(graph, parts)
    collected.visit(mixed.value)
    counts = {end.experts for end in collected.ends}
    sources, indices = collected.tokens, {end.choices for end in collected.ends}
    if len(sources) != 1 or len(counts) != 1 or indices != {mixed.choices}:
        return None
    experts = counts.pop()
    if any(graph.specs[name].shape[:1] != (experts,) for name in collected.operands):
        return None
    return _Region(
        tokens=sources.pop(),
        operands=tuple(collected.operands),
        stages=tuple(collected.stages()),
        experts=experts,
        products=frozenset(
            operator.name for operator in collected.operators if operator.kind == PRODUCT
        ),
    )


class _Collected:
    """The operators of a body, in the order of the graph."""

    def __init__(self, graph: OperatorGraph, parts: dict[str, Part]) -> None:
        self._graph, self._parts = graph, parts
        self._named: dict[str, str] = {}
        """The names of tensors in the body."""
        self._values = 0
        self.operators: list[Operator] = []
        self.operands: dict[str, None] = {}
        self.tokens: set[str] = set()
        self.ends: set[RoutedEnds] = set()

    def visit(self, name: str) -> None:
        """Collect what a value of the body is made of."""
        if name in self._named:
            return
        match self._parts.get(name):
            case RoutedRow(_, str(tokens)):
                self.tokens.add(tokens)
                self._named[name] = ROWS
            case RoutedIds():
                self._named[name] = IDS
            case RoutedEnds() as ends:
                self.ends.add(ends)
                self._named[name] = ENDS
            case RoutedRow():
                self._take(self._graph.producers[name])
            case _:
                self._operand(name)

    def _operand(self, name: str) -> None:
        maker = self._graph.producers.get(name)
        if maker is not None and maker.kind in TURNING and self._keeps_experts(maker):
            self._take(maker)
        else:
            self.operands[name] = None
            self._named[name] = operand(len(self.operands) - 1)

    def _keeps_experts(self, maker: Operator) -> bool:
        """Whether the first dim stays the first."""
        splits = family_of(maker).splits(self._graph.call(maker))
        return any(split.inputs == (0,) and split.outputs == (0,) for split in splits)

    def _take(self, maker: Operator) -> None:
        for name in filter(None, maker.inputs):
            self.visit(name)
        if maker.outputs[0].name in self._named:
            return
        self.operators.append(maker)
        for tensor in maker.outputs:
            self._named[tensor.name] = f"v{self._values}"
            self._values += 1

    def stages(self) -> Iterator[ExpertStage]:
        """What was collected, by the names of the body."""
        for operator in self.operators:
            yield ExpertStage(
                tuple(self._named[tensor.name] for tensor in operator.outputs),
                operator.kind,
                tuple(self._named[name] for name in operator.inputs if name is not None),
                operator.attributes,
            )


def _call(graph: OperatorGraph, operator: Operator) -> Call:
    return Call(
        kind=operator.kind,
        inputs=tuple(graph.specs[name] for name in operator.inputs if name is not None),
        outputs=tuple(tensor.spec for tensor in operator.outputs),
        attributes=operator.attributes,
    )


def _fits(call: Call) -> bool:
    """Whether the family expects what was traced, and with twice the tokens twice as many rows."""
    family, (output,) = family_of(call), call.outputs
    twice = tuple(_doubled(spec) if n < 3 else spec for n, spec in enumerate(call.inputs))
    try:
        alike = family.outputs(call) == call.outputs
        more = family.outputs(msgspec.structs.replace(call, inputs=twice))
    except ShapeError:
        return False
    return alike and more == (_doubled(output),)


def _doubled(spec: Spec | None) -> Spec:
    assert spec is not None
    return Spec(spec.dtype, (2 * spec.shape[0], *spec.shape[1:]))


def _needed(graph: OperatorGraph) -> OperatorGraph:
    """The graph without operators whose results nobody reads."""
    needed: set[str | None] = {*graph.outputs, graph.loss}
    kept = []
    for operator in reversed(graph.operators):
        if not needed.isdisjoint(tensor.name for tensor in operator.outputs):
            needed.update(operator.inputs)
            kept.append(operator)
    return msgspec.structs.replace(graph, operators=tuple(reversed(kept)))
