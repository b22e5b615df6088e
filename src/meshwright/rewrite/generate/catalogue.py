"""Equivalence classes of enumerated graphs by fingerprint, and their joined components. Enters:
chunks. Leaves: classes.

An element is a graph together with names for its variables. Elements with equal keys compute the
same; they are joined only where a step of smaller rules or a rule leads from one to the other. What
holds for some names holds for all: every join is made under all renamings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meshwright.rewrite.generate.explore import EqualGraph, ExploredChunk, orders
from meshwright.rewrite.generate.graphs import (
    Graph,
    Names,
    canonical,
    pack,
    unpack,
    variables,
    width,
)
from meshwright.rewrite.generate.operator_templates import Templates


class Catalogue:
    """Graphs by size and order, the keys of their elements, and components of joined elements."""

    def __init__(self, templates: Templates) -> None:
        self.templates = templates
        self._width = width(templates)
        self._graphs: list[bytes] = []
        self._levels = [0]
        """Where the graphs of each size end."""
        self._offsets: list[int] = [0]
        """Where the elements of each graph begin; the last is where all end."""
        self._keys: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._roots: list[int] = []
        self._guarded = bytearray()
        """Whether a component has a join that holds only for inputs in one piece, at its root."""

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def elements(self) -> int:
        """How many graphs there are with names for variables told apart."""
        return len(self._roots)

    def add(self, chunks: Sequence[ExploredChunk]) -> None:
        """The graphs of the next size; their steps are joins."""
        for chunk in chunks:
            self._graphs += chunk.graphs
            for packed in chunk.graphs:
                count = len(orders(len(variables(unpack(packed, self._width)))))
                self._offsets.append(self._offsets[-1] + count)
        keys = np.frombuffer(b"".join(chunk.keys for chunk in chunks), dtype=">u8")
        self._keys = np.concatenate([self._keys, keys.astype(np.uint64)])
        self._roots += range(len(self._roots), len(self._keys))
        self._guarded += bytes(len(self._keys) - len(self._guarded))
        before = self._levels[-1]
        self._levels.append(len(self._graphs))
        for guarded in (False, True):  # what holds for all inputs needs no guard
            first = before
            for chunk in chunks:
                for step in chunk.steps:
                    if step.guarded == guarded:
                        self._step(first + step.graph, step)
                first += len(chunk.graphs)

    def _step(self, graph: int, step: EqualGraph) -> None:
        """Joins what a step leads to, if it is a graph here and computes the same."""
        number = self._number(step.other)
        if number is not None and sorted(step.names) == list(range(len(step.names))):
            other = self._offsets[number] + place(step.names)
            self.join_equal(self._offsets[graph], other, guarded=step.guarded)

    def _number(self, packed: bytes) -> int | None:
        size = len(packed) // self._width
        if size + 1 >= len(self._levels):
            return None
        low, high = self._levels[size], self._levels[size + 1]
        at = bisect_left(self._graphs, packed, low, high)
        return at if at < high and self._graphs[at] == packed else None

    def graph(self, element: int) -> tuple[Graph, Names]:
        """The graph of an element and what its variables are called."""
        number = self._owner(element)
        graph = unpack(self._graphs[number], self._width)
        return graph, orders(len(variables(graph)))[element - self._offsets[number]]

    def _owner(self, element: int) -> int:
        at = bisect_left(self._offsets, element)
        return at if self._offsets[at] == element else at - 1

    def packed(self, element: int) -> bytes:
        """The graph of an element as it is stored."""
        return self._graphs[self._owner(element)]

    def element(self, graph: Graph) -> int | None:
        """The element that a graph is, whose variables are 0, 1, ... in any order."""
        form, ways = canonical(graph, self.templates)
        number = self._number(pack(form, self._width))
        if number is None or sorted(ways[0]) != list(range(len(ways[0]))):
            return None
        return self._offsets[number] + place(ways[0])

    def root(self, element: int) -> int:
        """The first element of a component."""
        roots = self._roots
        while roots[element] != element:
            roots[element] = roots[roots[element]]
            element = roots[element]
        return element

    def is_guarded(self, element: int) -> bool:
        """Whether some join of a component holds only for inputs in one piece."""
        return bool(self._guarded[self.root(element)])

    def join_equal(self, one: int, other: int, *, guarded: bool) -> None:
        """Joins two elements if they compute the same."""
        if self._keys[one] == self._keys[other]:
            self.join(one, other, guarded=guarded)

    def join(self, one: int, other: int, *, guarded: bool) -> None:
        """Joins two elements, and what both become under every renaming."""
        graph, second = self._offsets[self._owner(one)], self._offsets[self._owner(other)]
        count = self._count(one)
        for left, right in zip(
            renamings(count, one - graph), renamings(count, other - second), strict=True
        ):
            low, high = sorted((self.root(graph + left), self.root(second + right)))
            if low != high:
                self._roots[high] = low
                self._guarded[low] |= self._guarded[high] | guarded

    def _count(self, element: int) -> int:
        return len(self.graph(element)[1])

    def classes(self) -> Iterator[list[int]]:
        """Elements that compute the same, once for all renamings, in the order of the first."""
        order = np.argsort(self._keys, kind="stable")
        keys = self._keys[order]
        bounds = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1], True])
        classes = [order[low:high] for low, high in pairwise(bounds.tolist()) if high - low > 1]
        for elements in sorted(classes, key=lambda members: int(members[0])):
            first = int(elements[0])
            if self._offsets[self._owner(first)] == first:
                yield elements.tolist()

    def own_names(self, number: int) -> range:
        """The elements of a graph."""
        return range(self._offsets[number], self._offsets[number + 1])


@cache
def renamings(count: int, number: int) -> tuple[int, ...]:
    """Where names of this number go under each renaming in turn."""
    called = orders(count)[number]
    return tuple(place(tuple(order[name] for name in called)) for order in orders(count))


@cache
def place(names: Names) -> int:
    """The number of names among all orders of them."""
    return orders(len(names)).index(names)
