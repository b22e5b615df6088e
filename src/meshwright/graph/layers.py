"""Layers that repeat. Enters: a graph. Leaves: runs of operators that are copies of one layer.

Let token(i) stand for the call of operator i. A run of period p is an interval in which
token(i) = token(i + p); it holds a whole number of layers, cut at one of p phases. A layer is the
same as the one before if their operators read alike: the same operator of their own layer, or
something from outside, where what is read twice inside a layer is read twice in the other as well.

    `_runs`    intervals of equal tokens, for all periods, longest first
    `_phase`   where to cut: as many layers as possible, then as few tensors crossing as possible,
               then as few modules in a layer as possible
    `layers`   the runs that do not overlap
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.graph.model import Operator, OperatorGraph

Tokens = NDArray[np.int64]


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """`count` copies of one layer of `period` operators, the first beginning at `start`."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        """Where the last copy ends."""
        return self.start + self.period * self.count

    def layer(self, index: int) -> range:
        """The positions of the operators of one copy."""
        first = self.start + index * self.period
        return range(first, first + self.period)


def layers(graph: OperatorGraph, shortest: int = 2) -> tuple[Repeat, ...]:
    r"""The layers that repeat, in the order of the graph; `shortest` is the least of a period.

    >>> from meshwright.graph.text import parse_graph
    >>> line = "operator {1}: {1}: float32[n=4] = {2}({0})"
    >>> steps = [line.format(f"h{i}", f"h{i + 1}", ("exp", "neg")[i % 2]) for i in range(6)]
    >>> graph = parse_graph("\n".join(["graph g", "input h0: float32[n=4]", *steps]))
    >>> layers(graph)
    (Repeat(start=0, period=2, count=3),)
    """
    tokens = _tokens(graph)
    reads = _reads(graph)
    crossing = _crossing(reads)
    taken = np.zeros(len(tokens), dtype=bool)
    found: list[Repeat] = []
    for first, last, period in _runs(tokens, shortest):
        if taken[first:last].any():
            continue
        repeat = _phase(graph, reads, crossing, first, last, period)
        if repeat is not None:
            found.append(repeat)
            taken[repeat.start : repeat.stop] = True
    return tuple(sorted(found, key=lambda repeat: repeat.start))


def _tokens(graph: OperatorGraph) -> Tokens:
    """Equal numbers for operators with equal calls."""
    numbers: dict[object, int] = {}
    return np.array(
        [numbers.setdefault(graph.call(op), len(numbers)) for op in graph.operators], dtype=np.int64
    )


Read = tuple[int, int] | str | None
"""The position of an operator and which of its outputs, or the name of what no operator makes."""


def _reads(graph: OperatorGraph) -> list[tuple[Read, ...]]:
    """What each operator reads."""
    made = {
        tensor.name: (position, index)
        for position, operator in enumerate(graph.operators)
        for index, tensor in enumerate(operator.outputs)
    }
    return [
        tuple(None if name is None else made.get(name, name) for name in operator.inputs)
        for operator in graph.operators
    ]


def _crossing(reads: list[tuple[Read, ...]]) -> Tokens:
    """How many tensors are made before each position and read at it or later."""
    last_read: dict[tuple[int, int], int] = {}
    for position, own in enumerate(reads):
        last_read.update((read, position) for read in own if isinstance(read, tuple))
    change = np.zeros(len(reads) + 2, dtype=np.int64)
    for (made, _), last in last_read.items():
        change[made + 1] += 1
        change[last + 1] -= 1
    return np.cumsum(change)


def _runs(tokens: Tokens, shortest: int) -> Iterator[tuple[int, int, int]]:
    """First, last + 1 and period of every interval that holds two layers or more.

    The longest first; of equally long ones that with the shortest period, since every run of
    period p is also one of period 2p.
    """
    found: list[tuple[int, int, int]] = []
    for period in range(shortest, len(tokens) // 2 + 1):
        equal = np.concatenate(([False], tokens[:-period] == tokens[period:], [False]))
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period:
                found.append((start, stop + period, period))
    yield from sorted(found, key=lambda run: (run[0] - run[1], run[2]))


def _phase(
    graph: OperatorGraph,
    reads: list[tuple[Read, ...]],
    crossing: Tokens,
    first: int,
    last: int,
    period: int,
) -> Repeat | None:
    """The best way to cut a run into layers, or None if no two layers in a row are alike."""
    best: tuple[int, int, int] | None = None
    chosen: Repeat | None = None
    narrowest = int(crossing[first:last].min())
    phases = [at for at in range(first, first + period) if at + 2 * period <= last]
    for start in sorted(phases, key=lambda at: int(crossing[at + period]))[:_TRIED]:
        repeat = _longest_alike(reads, start, last, period)
        if repeat is None:
            continue
        inner = int(crossing[repeat.start + period]) - narrowest
        modules = len({_module(graph.operators[i]) for i in repeat.layer(0)})
        rank = (-repeat.count, inner, modules)
        if best is None or rank < best:
            best, chosen = rank, repeat
    return chosen


_TRIED = 16
"""Phases that are tried, those with the fewest tensors crossing first."""


def _longest_alike(
    reads: list[tuple[Read, ...]], start: int, last: int, period: int
) -> Repeat | None:
    """The longest row of layers that read alike, among those cut at one phase."""
    starts = range(start, last - period + 1, period)
    shapes = [_shape(reads, at, period) for at in starts]
    best = run = 0
    for index in range(1, len(shapes) + 1):
        if index == len(shapes) or shapes[index] != shapes[run]:
            if index - run > best:
                best, begin = index - run, starts[run]
            run = index
    return Repeat(start=begin, period=period, count=best) if best > 1 else None


def _shape(reads: list[tuple[Read, ...]], start: int, period: int) -> tuple[object, ...]:
    """How the operators of a layer read each other; what comes from outside is numbered."""
    outside: dict[Read, int] = {}
    shape: list[object] = []
    for own in reads[start : start + period]:
        for read in own:
            if isinstance(read, tuple) and read[0] >= start:
                shape.append((read[0] - start, read[1]))
            else:
                shape.append(None if read is None else outside.setdefault(read, len(outside)))
    return tuple(shape)


def _module(operator: Operator) -> str:
    """The outermost numbered module that an operator came from.

    Of "encoder.layers.3.attention.0" it is "encoder.layers.3".
    """
    words = operator.layer.split(".")
    for index, word in enumerate(words):
        if word.isdecimal():
            return ".".join(words[: index + 1])
    return ""
