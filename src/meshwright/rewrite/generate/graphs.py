"""Canonical forms of small graphs, packed as integers (for orderly generation).

Enters, leaves: `Graph`s. A node is (template, operand, ...); an operand below `FIRST` is a
variable, else output o of node j as FIRST + 2 j + o. Every tensor that nobody reads is an output;
the graph without nodes is the first variable itself.

The canonical form is the least sequence of nodes, over all orders in which operands come before
readers, both orders of commuting operands, and variables numbered by first use. Every prefix of a
canonical graph is canonical (a lesser prefix would make a lesser graph), so extending canonical
graphs by a node, and keeping what is canonical, meets every graph exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

from meshwright.rewrite.generate.operator_templates import Templates

Node = tuple[int, ...]
Graph = tuple[Node, ...]
Names = tuple[int, ...]
"""Names[i] is what variable i of a canonical graph is called."""

VARIABLES = 4
FIRST = 8
NOTHING = 255
"""Fills up nodes of fewer operands in packed form."""


def tensor(node: int, output: int = 0) -> int:
    """An output of a node as an operand."""
    return FIRST + 2 * node + output


def made_by(operand: int) -> int:
    """The node of which an operand is an output."""
    return (operand - FIRST) // 2


def variables(graph: Graph) -> list[int]:
    """Every variable that is read, in the order of first use."""
    if not graph:
        return [0]
    return list(dict.fromkeys(r for node in graph for r in node[1:] if r < FIRST))


def outputs(graph: Graph, templates: Templates) -> list[int]:
    """Every tensor that nobody reads."""
    if not graph:
        return [0]
    read = {r for node in graph for r in node[1:]}
    tensors = (tensor(j, o) for j, n in enumerate(graph) for o in range(templates[n[0]].outputs))
    return [r for r in tensors if r not in read]


def canonical(graph: Graph, templates: Templates) -> tuple[Graph, list[Names]]:
    """The canonical form, and every way in which its variables can be called.

    Several ways are symmetries of the graph. The nodes may come in any order.

    >>> from meshwright.rewrite.generate.operator_templates import ALGEBRA
    >>> canonical(((1, 10, 3), (0, 2)), ALGEBRA)  # add(relu(c), d)
    (((0, 0), (1, 1, 8)), [(2, 3)])
    """
    form, states = _written(graph, templates)
    return form, sorted({_names(refs) for refs, _ in states})


def placed(graph: Graph, templates: Templates) -> tuple[Graph, Names, dict[int, int]]:
    """The canonical form, what its variables are called, and where every operand went."""
    form, states = _written(graph, templates)
    refs = min((refs for refs, _ in states), key=_names)
    return form, _names(refs), refs


def _written(graph: Graph, templates: Templates) -> tuple[Graph, list[_State]]:
    nodes: list[Node] = []
    states: list[_State] = [({}, frozenset())]
    for place in range(len(graph)):
        best, states = _least(graph, templates, states, place)
        nodes.append(best)
    return tuple(nodes), states


def _names(refs: dict[int, int]) -> Names:
    return tuple(r for r in refs if r < FIRST)


def is_canonical(graph: Graph, templates: Templates) -> bool:
    """Whether a graph is its own canonical form."""
    states: list[_State] = [({}, frozenset())]
    for place, node in enumerate(graph):
        best, states = _least(graph, templates, states, place)
        if best != node:
            return False
    return True


_State = tuple[dict[int, int], frozenset[int]]
"""New operands by old ones (variables in the order of their new numbers), and nodes placed."""


def _least(
    graph: Graph, templates: Templates, states: list[_State], place: int
) -> tuple[Node, list[_State]]:
    """The least node that can come next, and every state after it."""
    best: Node = (NOTHING,)
    kept: list[tuple[dict[int, int], frozenset[int], int, Node]] = []
    for refs, placed in states:
        for j, node in enumerate(graph):
            if j in placed or node[0] > best[0]:
                continue
            if any(r >= FIRST and r not in refs for r in node[1:]):
                continue
            for written in _orders(node, refs, templates):
                code = _code(written, refs)
                if code < best:
                    best, kept = code, []
                if code == best:
                    kept.append((refs, placed, j, written))
    return best, [_after(*choice, place, templates) for choice in kept]


def _orders(node: Node, refs: dict[int, int], templates: Templates) -> Iterator[Node]:
    """The orders of commuting operands that can give the least code: known ones ascend."""
    if not templates[node[0]].commutes:
        yield node
        return
    known = sorted((r for r in node[1:] if r in refs), key=refs.__getitem__)
    fresh = [r for r in node[1:] if r not in refs]
    old = [r for r in known if refs[r] < FIRST]
    rest = [r for r in known if refs[r] >= FIRST]
    for order in set(permutations(fresh)):
        yield (node[0], *old, *order, *rest)


def _code(node: Node, refs: dict[int, int]) -> Node:
    fresh: dict[int, int] = {}
    count = sum(r < FIRST for r in refs)
    code = [node[0]]
    for r in node[1:]:
        if r in refs:
            code.append(refs[r])
        else:
            code.append(fresh.setdefault(r, count + len(fresh)))
    return tuple(code)


def _after(
    refs: dict[int, int],
    placed: frozenset[int],
    j: int,
    node: Node,
    place: int,
    templates: Templates,
) -> _State:
    after = dict(refs)
    count = sum(r < FIRST for r in refs)
    for r in node[1:]:
        if r not in after:
            after[r] = count
            count += 1
    for output in range(templates[node[0]].outputs):
        after[tensor(j, output)] = tensor(place, output)
    return after, placed | {j}


def renamed(graph: Graph, names: Names) -> Graph:
    """A canonical graph with its variables called otherwise."""
    return tuple((n[0], *(names[r] if r < FIRST else r for r in n[1:])) for n in graph)


def width(templates: Templates) -> int:
    """Bytes of a packed node."""
    return 1 + max(template.arity for template in templates)


def pack(graph: Graph, node_bytes: int) -> bytes:
    """A graph in `node_bytes` bytes a node; packed graphs of a size sort as graphs do."""
    fill = (NOTHING,) * node_bytes
    return bytes(byte for node in graph for byte in (*node, *fill)[:node_bytes])


def unpack(packed: bytes, node_bytes: int) -> Graph:
    """The way back from `pack`."""
    nodes = (packed[at : at + node_bytes] for at in range(0, len(packed), node_bytes))
    return tuple(tuple(byte for byte in node if byte != NOTHING) for node in nodes)
