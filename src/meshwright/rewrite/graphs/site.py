"""Rewrite state: a graph indexed for matching, as a persistent value. Enters: an `OperatorGraph`.
Leaves: the same, indexed.

A site is a value: an edit gives another site and leaves the first as it was. Dicts are copied
shallowly, which for a graph of some hundred operators takes microseconds. What operators mean to
rules and how tensors lie in pieces is worked out once for each operator, when it comes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec

from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import Operator, OperatorGraph, Tensor
from meshwright.graph.running_statistics import following
from meshwright.rewrite.graphs.readings import Settings
from meshwright.rewrite.graphs.types_of import readings_of, typed
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.types import Type


class Node(NamedTuple):
    """An operator of the graph, and what it is to rules."""

    operator: Operator
    term: str
    """The operator of the rule language; empty for one of which no rule speaks."""
    settings: Settings
    operands: tuple[str, ...]
    """The tensors that it reads, in the order of the rule language."""


class Site(NamedTuple):
    """The operators of a graph in order, by name and by what they make and read."""

    frame: OperatorGraph
    """Everything but the operators."""
    nodes: dict[str, Node]
    """By name, in an order in which they can run."""
    makers: dict[str, tuple[str, int]]
    """For each tensor that an operator makes its name and the number of the output."""
    readers: dict[str, tuple[str, ...]]
    """For each tensor that is read by operators their names."""
    types: dict[str, Type]
    tensors: dict[str, Tensor]
    behind: Mapping[str, str]
    """Of operators that follow the same running statistics, the one that does so just before."""

    @property
    def graph(self) -> OperatorGraph:
        """The graph as it stands."""
        operators = tuple(node.operator for node in self.nodes.values())
        return msgspec.structs.replace(self.frame, operators=operators)

    @property
    def ends(self) -> frozenset[str]:
        """Tensors that are wanted outside."""
        loss = () if self.frame.loss is None else (self.frame.loss,)
        return self.frame.returned.union(self.frame.outputs, loss)

    def loses(self, operators: Iterable[str], outputs: Container[str]) -> bool:
        """Whether what the model returns is made on the way to outputs of these operators."""
        returned = self.frame.returned
        return bool(returned) and any(
            output.name in returned and output.name not in outputs
            for name in operators
            for output in self.nodes[name].operator.outputs
        )

    def reads(self, node: Node) -> tuple[str, ...]:
        """Which operators of the rule language made what a node reads; empty for others."""
        operators = []
        for name in node.operands:
            maker = self.makers.get(name)
            operators.append("" if maker is None else self.nodes[maker[0]].term)
        return tuple(operators)


def site_of(graph: OperatorGraph, known: Mapping[str, Definition] = DEFINITIONS) -> Site:
    """A graph, indexed."""
    nodes: dict[str, Node] = {}
    readings = readings_of(graph, known)
    for operator in graph.operators:
        reading = readings[operator.name]
        names = [name for name in operator.inputs if name is not None]
        nodes[operator.name] = (
            Node(operator, "", (), tuple(names))
            if reading is None
            else Node(operator, reading.operator, reading.settings,
                      tuple(names[number] for number in reading.order))
        )  # fmt: skip
    return Site(
        frame=msgspec.structs.replace(graph, operators=()),
        nodes=nodes,
        makers={tensor.name: (op.name, output) for op in graph.operators
                for output, tensor in enumerate(op.outputs)},
        readers={tensor: tuple(op.name for op in consumers)
                 for tensor, consumers in graph.consumers.items() if consumers},
        types=typed(graph, readings, known),
        tensors=dict(graph.tensors),
        behind={after.name: before.name for calls in following(graph).values()
                for before, after in pairwise(calls)},
    )  # fmt: skip


class Ancestry:
    """Which operators come before which: bits of those that must run before a node, and its own."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @cached_property
    def _bits(self) -> dict[str, int]:
        ancestors: dict[str, int] = {}
        for number, (name, node) in enumerate(self._site.nodes.items()):
            bits = 1 << number
            for read_ in node.operands:
                maker = self._site.makers.get(read_)
                if maker is not None:
                    bits |= ancestors[maker[0]]
            ancestors[name] = bits | ancestors.get(self._site.behind.get(name, ""), 0)
        return ancestors

    @cached_property
    def _place(self) -> dict[str, int]:
        return {name: 1 << number for number, name in enumerate(self._site.nodes)}

    def depends(self, tensors: Iterable[str], operators: Iterable[str]) -> bool:
        """Whether any of these operators must run before any of these tensors is there."""
        wanted = 0
        for name in operators:
            wanted |= self._place[name]
        makers = (self._site.makers.get(name) for name in tensors)
        return any(self._bits[maker[0]] & wanted for maker in makers if maker is not None)
