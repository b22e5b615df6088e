"""Orderly generation of small graphs: all canonical extensions of a graph by one node. Enters: an
`ExploreJob`. Leaves: an `ExploredChunk`.

Jobs know nothing of each other, so they run in any process and in any order. A chunk holds the new
graphs, a key for each way to call their variables (graphs with equal keys compute the same and have
the same type), and the steps by which smaller rules lead from them to other graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from itertools import combinations_with_replacement, permutations, product

import msgspec

from meshwright.graph.notation import parse_definitions
from meshwright.rewrite.generate.field import TYPE, digest, variable_value
from meshwright.rewrite.generate.graphs import (
    FIRST,
    VARIABLES,
    Graph,
    Names,
    Node,
    canonical,
    is_canonical,
    outputs,
    pack,
    renamed,
    tensor,
    unpack,
    variables,
    width,
)
from meshwright.rewrite.generate.operator_templates import Templates
from meshwright.rewrite.generate.parts import Lesser, SubpatternReducer
from meshwright.rewrite.generate.values import Store

OUTPUTS = 2
"""Of a side of a rule, at most."""


class ExploreJob(msgspec.Struct, frozen=True, kw_only=True):
    """Graphs to extend by a node; `remaining` nodes can still be added after that."""

    templates: Templates
    parents: tuple[bytes, ...]
    remaining: int
    lesser: tuple[Lesser, ...]
    """What smaller rules make of smaller graphs."""
    definitions: tuple[str, ...]
    """Lines of the operators that are defined."""

    @property
    def stamp(self) -> str:
        """Tells this job from every other."""
        return blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()


class EqualGraph(msgspec.Struct, frozen=True, array_like=True):
    """A graph of a chunk equals this graph with its variables called so."""

    graph: int
    other: bytes
    names: Names
    guarded: bool


class ExploredChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a job finds, in the order of packed graphs."""

    graphs: tuple[bytes, ...]
    """With one or two outputs."""
    keys: bytes
    """Eight bytes for each graph and each order of its variables."""
    steps: tuple[EqualGraph, ...]
    parents: tuple[bytes, ...]
    """Graphs that can be extended again."""


def nothing() -> ExploredChunk:
    """The graph without nodes, which all others extend."""
    return ExploredChunk(
        graphs=(b"",), keys=key([digest(TYPE, variable_value(0))], 1), steps=(), parents=(b"",)
    )


def explore(job: ExploreJob) -> ExploredChunk:
    """All canonical extensions of the job's graphs."""
    templates, node_bytes = job.templates, width(job.templates)
    known = parse_definitions("\n".join(job.definitions))
    store, reducer = Store(templates, known), SubpatternReducer(templates, job.lesser)
    graphs: list[bytes] = []
    keys: list[bytes] = []
    steps: list[EqualGraph] = []
    parents: list[bytes] = []
    for packed in job.parents:
        for graph in sorted(extensions(unpack(packed, node_bytes), store)):
            unread = outputs(graph, templates)
            if job.remaining and len(unread) <= OUTPUTS + job.remaining:
                parents.append(pack(graph, node_bytes))
            if len(unread) <= OUTPUTS:
                steps += _steps(graph, len(graphs), reducer, store)
                graphs.append(pack(graph, node_bytes))
                keys += _keys(graph, unread, store)
    return ExploredChunk(
        graphs=tuple(graphs), keys=b"".join(keys), steps=tuple(steps), parents=tuple(parents)
    )


def extensions(parent: Graph, store: Store) -> Iterator[Graph]:
    """Every canonical graph that is the parent and a last node, and whose operators fit."""
    templates = store.templates
    places = store.places(parent)
    assert places is not None, "parents fit"
    count = len(variables(parent)) if parent else 0
    tensors = [
        tensor(j, o) for j, node in enumerate(parent) for o in range(templates[node[0]].outputs)
    ]
    for t, template in enumerate(templates):
        for operands in _operands(count, tensors, template.arity, template.commutes):
            node = (t, *operands)
            if node in parent or _comes_before(node, parent, count):
                continue
            graph = (*parent, node)
            if store.fits(store.key(node, places)) and is_canonical(graph, templates):
                yield graph


def _operands(
    count: int, tensors: list[int], arity: int, commutes: bool
) -> Iterator[tuple[int, ...]]:
    """Operands of a last node: known tensors, and new variables in the order of their numbers."""
    fresh = range(count, min(count + arity, VARIABLES))
    operands = [*range(count), *fresh, *tensors]
    choose = (
        combinations_with_replacement(operands, arity)
        if commutes
        else product(operands, repeat=arity)
    )
    for chosen in choose:
        new = list(dict.fromkeys(r for r in chosen if count <= r < FIRST))
        if new == list(range(count, count + len(new))):
            yield chosen


def _comes_before(node: Node, parent: Graph, count: int) -> bool:
    """Whether a node could stand before the last one and be less: then it is not the last."""
    if not parent or node >= parent[-1]:
        return False
    known = count - sum(r < FIRST for r in set(parent[-1][1:]))
    end = tensor(len(parent) - 1)
    return all(r < known or FIRST <= r < end for r in node[1:])


@cache
def orders(count: int) -> tuple[Names, ...]:
    """Every way to call this many variables, in a fixed order that begins with their own names."""
    return tuple(permutations(range(count)))


def _keys(graph: Graph, unread: list[int], store: Store) -> Iterator[bytes]:
    end = tensor(len(graph) - 1)
    last = tuple(r - end for r in unread if r >= end)
    rest = tuple(r for r in unread if r < end)
    count = len(variables(graph))
    for names in orders(count):
        digests = store.output_digests(renamed(graph, names), last, rest)
        yield key(digests, count)


def key(digests: list[int], count: int) -> bytes:
    """A number for outputs in the order of digests, and for how many variables are read."""
    text = b"".join(part.to_bytes(8, "big") for part in digests)
    return blake2b(text, digest_size=8, salt=bytes([count])).digest()


def _steps(
    graph: Graph, number: int, reducer: SubpatternReducer, store: Store
) -> Iterator[EqualGraph]:
    """Symmetries of a graph, and what smaller rules make of it."""
    node_bytes = width(reducer.templates)
    for names in canonical(graph, reducer.templates)[1][1:]:
        yield EqualGraph(number, pack(graph, node_bytes), names, guarded=False)
    for other, names, guarded in reducer.steps(graph, store.plain(graph[:-1])):
        yield EqualGraph(number, pack(other, node_bytes), names, guarded)
