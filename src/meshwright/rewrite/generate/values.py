"""Hash-consing of tensors: those that many graphs share are computed once. Enters: nodes. Leaves:
digests of outputs.

A tensor is known by its operator and its operands, so graphs share what they have in common. The
last operator of the largest graphs is computed and forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from meshwright.graph.notation import Definition
from meshwright.rewrite.generate.field import TYPE, OperatorArrays, Values, digest, variable_value
from meshwright.rewrite.generate.graph_terms import LETTERS, SizeNames, term_of
from meshwright.rewrite.generate.graphs import FIRST, VARIABLES, Graph, Node, outputs, tensor
from meshwright.rewrite.generate.operator_templates import SPLIT, Templates
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Tensor, Term, Variable
from meshwright.rewrite.language.types import FRONT, Type


class KnownTensor(NamedTuple):
    """A tensor: how it is written, its type, value and digest."""

    term: Tensor
    type: Type
    value: Values
    digest: int


class Store:
    """Tensors by number: variables first."""

    def __init__(self, templates: Templates, known: Mapping[str, Definition] = DEFINITIONS) -> None:
        self.templates = templates
        self._field = OperatorArrays(known)
        self._tensors = [
            KnownTensor(
                Variable(LETTERS[v]), TYPE, variable_value(v), digest(TYPE, variable_value(v))
            )
            for v in range(VARIABLES)
        ]
        self._made: dict[Node, tuple[int, ...]] = {}
        self._digests: dict[Node, tuple[int, ...]] = {}

    def places(self, graph: Graph) -> dict[int, int] | None:
        """The number of every tensor of a graph by operand; nothing if an operator misfits."""
        numbers = {v: v for v in range(VARIABLES)}
        for j, node in enumerate(graph):
            outputs = self.keep(self.key(node, numbers))
            if not outputs:
                return None
            for output, number in enumerate(outputs):
                numbers[tensor(j, output)] = number
        return numbers

    def plain(self, graph: Graph) -> frozenset[int]:
        """The operands of a graph that are in one piece, with one copy and no sums to be taken."""
        places = self.places(graph)
        assert places is not None, "only graphs that fit have values"
        return frozenset(
            operand
            for operand, number in places.items()
            if all(axis.degree == 1 for axis in self._tensors[number].type)
            and all(axis.size == 1 for axis in self._tensors[number].type[:FRONT])
        )

    def key(self, node: Node, places: dict[int, int]) -> Node:
        """A node by the numbers of its operands, commuting ones in order."""
        operands = [places[r] for r in node[1:]]
        if self.templates[node[0]].commutes:
            operands.sort()
        return (node[0], *operands)

    def keep(self, key: Node) -> tuple[int, ...]:
        """The outputs of an operator on known tensors; none if it cannot take them."""
        if key not in self._made:
            tensors = self._run(key)
            first = len(self._tensors)
            self._tensors += tensors
            self._made[key] = tuple(range(first, first + len(tensors)))
        return self._made[key]

    def digests(self, key: Node) -> tuple[int, ...]:
        """The digests of the outputs of an operator, whose values are forgotten."""
        if key in self._made:
            return tuple(self._tensors[number].digest for number in self._made[key])
        if key not in self._digests:
            self._digests[key] = tuple(tensor.digest for tensor in self._run(key))
        return self._digests[key]

    def fits(self, key: Node) -> bool:
        """Whether an operator can take these tensors."""
        template = self.templates[key[0]]
        if template.operator == SPLIT:
            return bool(self.keep(key))
        return (
            self._field.types(template, tuple(self._tensors[n].type for n in key[1:])) is not None
        )

    def _run(self, key: Node) -> list[KnownTensor]:
        template = self.templates[key[0]]
        inputs = [self._tensors[number] for number in key[1:]]
        types = tuple(tensor.type for tensor in inputs)
        output_types = self._field.types(template, types)
        term = term_of(template, tuple(tensor.term for tensor in inputs), SizeNames())
        if output_types is None or not isinstance(term, Term):
            return []
        values = self._field.run(template, types, [tensor.value for tensor in inputs])
        return [
            KnownTensor(
                Term(term.operator, term.inputs, term.attributes, output),
                type_, value, digest(type_, value),
            )
            for output, (type_, value) in enumerate(zip(output_types, values, strict=True))
        ]  # fmt: skip

    def outputs(self, graph: Graph) -> list[tuple[int, int]]:
        """The digest and the operand of every output, in the order of digests."""
        places = self.places(graph)
        assert places is not None, "only graphs that fit have outputs"
        return sorted(
            (self._tensors[places[operand]].digest, operand)
            for operand in outputs(graph, self.templates)
        )

    def output_digests(
        self, graph: Graph, last: tuple[int, ...], rest: tuple[int, ...]
    ) -> list[int]:
        """The digests of outputs: these of the last node, these operands of the others."""
        places = self.places(graph[:-1])
        assert places is not None, "a graph that fits under one naming fits under all"
        last_digests = self.digests(self.key(graph[-1], places))
        digests = [last_digests[output] for output in last] + [
            self._tensors[places[r]].digest for r in rest
        ]
        digests.sort()
        return digests


assert VARIABLES <= FIRST
