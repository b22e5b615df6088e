"""Conversion between integer graphs and terms. Enters: graphs or terms. Leaves: terms, rules or
graphs.

Variables are called a, b, c, d; where a split cuts is a name that a condition of the rule binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshwright.rewrite.generate.graphs import FIRST, Graph, tensor
from meshwright.rewrite.generate.operator_templates import SPLIT, Template, Templates
from meshwright.rewrite.language.published import joined
from meshwright.rewrite.language.terms import (
    Condition,
    Rank,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
    nodes,
    variables,
)

LETTERS = "abcdefgh"


class SizeNames:
    """Names for the sizes at which splits cut, one for each size."""

    def __init__(self) -> None:
        self._names: dict[Size, str] = {}

    def name(self, size: Size) -> str:
        """The name of a size."""
        return self._names.setdefault(size, f"n{len(self._names)}")

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What binds the names."""
        return tuple(Condition(name, "=", size) for size, name in self._names.items())


def term_of(template: Template, inputs: tuple[Tensor, ...], places: SizeNames) -> Term | None:
    """An operator applied to terms; nothing for a split of what no concat joined."""
    if template.operator != SPLIT:
        return Term(template.operator, inputs, template.attributes)
    size = joined(inputs[0], template.attributes[0])
    if size is None:
        return None
    return Term(SPLIT, inputs, (*template.attributes, places.name(size)))


def terms_of(
    graph: Graph, outputs: Sequence[int], templates: Templates, places: SizeNames
) -> tuple[Tensor, ...]:
    """These tensors of a graph as terms."""
    terms: dict[int, Tensor] = {}

    def value(operand: int) -> Tensor:
        return Variable(LETTERS[operand]) if operand < FIRST else terms[operand]

    for j, node in enumerate(graph):
        template = templates[node[0]]
        term = term_of(template, tuple(map(value, node[1:])), places)
        assert term is not None, "graphs hold only splits that can be written"
        for output in range(template.outputs):
            terms[tensor(j, output)] = Term(term.operator, term.inputs, term.attributes, output)
    return tuple(map(value, outputs))


def rule_of(
    name: str,
    source: tuple[Graph, Sequence[int]],
    target: tuple[Graph, Sequence[int]],
    templates: Templates,
) -> Rule:
    """A rule between graphs, each with its outputs in the same order."""
    places = SizeNames()
    left = terms_of(*source, templates, places)
    right = terms_of(*target, templates, places)
    ranks = tuple(Condition(Rank(variable.name), "=", 2) for variable in variables(left))
    return Rule(name=name, source=left, target=right, conditions=(*ranks, *places.conditions))


def graph_of(
    terms: tuple[Tensor, ...], numbers: Mapping[str, int], templates: Templates
) -> Graph | None:
    """The graph of these terms; nothing if it uses other operators or reads its own outputs."""
    known = {(template.operator, template.attributes): t for t, template in enumerate(templates)}
    places: dict[Term, int] = {}
    graph: list[tuple[int, ...]] = []

    def operand(term: Tensor) -> int:
        if isinstance(term, Variable):
            return numbers[term.name]
        return tensor(places[term.node], term.output)

    for node in nodes(terms):
        attributes = node.attributes[:1] if node.operator == SPLIT else node.attributes
        if (node.operator, attributes) not in known:
            return None
        places[node] = len(graph)
        graph.append((known[node.operator, attributes], *map(operand, node.inputs)))
    if not graph:
        return () if [numbers[variable.name] for variable in variables(terms)] == [0] else None
    wanted = {operand(term) for term in terms}
    read = {r for node in graph for r in node[1:]}
    outputs = {
        tensor(j, o) for j, node in enumerate(graph) for o in range(templates[node[0]].outputs)
    }
    return tuple(graph) if wanted == outputs - read else None
