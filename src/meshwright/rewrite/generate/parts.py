"""Subpattern reduction: convex parts of a graph replaced by known smaller rules (pruning). Enters:
a graph. Leaves: graphs that it may be rewritten to.

Every convex part of fewer operators is looked up among smaller graphs and replaced by what smaller
rules have joined it with. Whether the result still fits and computes the same where the part stands
is not known here: the caller compares keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from meshwright.rewrite.generate.graphs import (
    FIRST,
    VARIABLES,
    Graph,
    Names,
    Node,
    made_by,
    placed,
    tensor,
    unpack,
    width,
)
from meshwright.rewrite.generate.operator_templates import Templates


class Lesser(msgspec.Struct, frozen=True, array_like=True):
    """A graph and one that rules have joined it with, its variables called so.

    Both have their outputs listed, in matching order.
    """

    graph: bytes
    outputs: tuple[int, ...]
    other: bytes
    names: Names
    other_outputs: tuple[int, ...]
    guarded: bool
    """Whether some rule on the way holds only for inputs in one piece."""


class SubpatternReducer:
    """Looks up parts of graphs, each shape of a part once."""

    def __init__(self, templates: Templates, lesser: Sequence[Lesser]) -> None:
        self.templates = templates
        self._width = width(templates)
        self._lesser: dict[Graph, list[Lesser]] = defaultdict(list)
        for one in lesser:
            self._lesser[unpack(one.graph, self._width)].append(one)
        self._sizes = {len(graph) for graph in self._lesser}
        self._placed: dict[Graph, tuple[Graph, Names, dict[int, int]]] = {}

    def steps(self, graph: Graph, plain: frozenset[int]) -> Iterator[tuple[Graph, Names, bool]]:
        """The canonical form of every graph that one replacement gives, and whether it is guarded.

        A part whose replacement is guarded has to read operands in one piece: those in `plain`.
        """
        for mask in range(1, 2 ** len(graph) - 1):
            part = tuple(j for j in range(len(graph)) if mask >> j & 1)
            if len(part) in self._sizes and (after := _after(graph, part)) is not None:
                for reduced, guarded in self._replaced(graph, part, after, plain):
                    form, names, _ = placed(reduced, self.templates)
                    yield form, names, guarded

    def _replaced(
        self, graph: Graph, part: tuple[int, ...], after: frozenset[int], plain: frozenset[int]
    ) -> Iterator[tuple[Graph, bool]]:
        """The graph with its part replaced in every way that is known."""
        inputs, local = _cut_out(graph, part)
        if len(inputs) > VARIABLES:
            return
        if local not in self._placed:
            self._placed[local] = placed(local, self.templates)
        form, names, went = self._placed[local]
        called = [inputs[name] for name in names]
        for one in self._lesser.get(form, ()):
            if not one.guarded or plain.issuperset(inputs):
                spliced = _Splice(self.templates)
                for j, node in enumerate(graph):
                    if j not in part and j not in after:
                        spliced.add(j, node)
                moved = self._put(one, called, spliced)
                for place, j in enumerate(part):
                    for o in range(self.templates[graph[j][0]].outputs):
                        if went[tensor(place, o)] in moved:
                            spliced.went[tensor(j, o)] = moved[went[tensor(place, o)]]
                for j in sorted(after):
                    spliced.need(j, graph)
                yield tuple(spliced.nodes), one.guarded

    def _put(self, one: Lesser, called: Sequence[int], onto: _Splice) -> dict[int, int]:
        """Puts a replacement on top; where the outputs of what it replaces went."""
        inside = _Splice(self.templates, onto)
        for v, name in enumerate(one.names):
            inside.went[v] = onto.get(called[name])
        for j, node in enumerate(unpack(one.other, self._width)):
            inside.add(j, node)
        pairs = zip(one.outputs, one.other_outputs, strict=True)
        return {output: inside.went[other] for output, other in pairs}


def _after(graph: Graph, part: tuple[int, ...]) -> frozenset[int] | None:
    """The other nodes that come after a part; nothing if one of them is read by the part."""
    after: set[int] = set()
    for j, node in enumerate(graph):
        before = {made_by(r) for r in node[1:] if r >= FIRST}
        if j in part:
            if before & after:
                return None
        elif not before.isdisjoint(after.union(part)):
            after.add(j)
    return frozenset(after)


def _cut_out(graph: Graph, part: tuple[int, ...]) -> tuple[list[int], Graph]:
    """The operands that a part reads, and the part as a graph of its own."""
    inputs: dict[int, int] = {}
    place = {j: n for n, j in enumerate(part)}

    def local(r: int) -> int:
        if r >= FIRST and made_by(r) in place:
            return tensor(place[made_by(r)], (r - FIRST) % 2)
        return inputs.setdefault(r, len(inputs))

    nodes = tuple((graph[j][0], *map(local, graph[j][1:])) for j in part)
    return list(inputs), nodes


class _Splice:
    """Nodes put together, equal ones once; `went` tells where operands went."""

    def __init__(self, templates: Templates, onto: _Splice | None = None) -> None:
        self.templates = templates
        self.nodes: list[Node] = onto.nodes if onto else []
        self.went: dict[int, int] = {}

    def get(self, operand: int) -> int:
        """Where an operand went; variables stay."""
        return self.went.get(operand, operand) if operand < FIRST else self.went[operand]

    def add(self, number: int, node: Node) -> None:
        """Puts a node on top, whose operands are there."""
        operands = [self.get(r) for r in node[1:]]
        renumbered = (
            node[0],
            *(sorted(operands) if self.templates[node[0]].commutes else operands),
        )
        if renumbered not in self.nodes:
            self.nodes.append(renumbered)
        place = self.nodes.index(renumbered)
        for output in range(self.templates[node[0]].outputs):
            self.went[tensor(number, output)] = tensor(place, output)

    def need(self, number: int, graph: Graph) -> None:
        """Puts a node on top, and first what it reads inside a part that was replaced."""
        for r in graph[number][1:]:
            if r >= FIRST and r not in self.went:
                self.need(made_by(r), graph)
        self.add(number, graph[number])


def merged(graph: Graph, names: Names, templates: Templates) -> Graph:
    """A graph with its variables called so, some alike; operators that become equal are one.

    >>> from meshwright.rewrite.generate.operator_templates import ALGEBRA
    >>> merged(((0, 0), (0, 1), (1, 8, 10)), (0, 0), ALGEBRA)  # add(relu(a), relu(b))
    ((0, 0), (1, 8, 8))
    """
    whole = _Splice(templates)
    whole.went = dict(enumerate(names))
    for j, node in enumerate(graph):
        whole.add(j, node)
    return tuple(whole.nodes)
