"""Repeated layer detection: maximal runs of identical operator blocks in a graph. Enters: a graph.
Leaves: runs of operators that are copies of one layer.

Let token(i) stand for the call of operator i. A run of period p is an interval in which
token(i) = token(i + p); it may be cut into layers at p phases. A layer is a copy of the one before
it if their operators read alike: the same operator of their own layer, or of the layer before, or
something from further away, where what is read twice in one layer is read twice in the other. The
first layer may read anything from outside in place of the layer before.

    `_runs`    intervals of equal tokens, for all periods
    `_repeat`  the best way to cut a run: as many layers as possible, then as few tensors crossing
               as possible, then as few modules in a layer as possible
    `layers`   of the repeats that do not overlap those that cover the most operators
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.base.once import once
from meshwright.graph.operator_graph import Operator, OperatorGraph

Tokens = NDArray[np.int64]


class LayerRepeat(msgspec.Struct, frozen=True, kw_only=True):
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


@once
def layers(graph: OperatorGraph, shortest: int = 2) -> tuple[LayerRepeat, ...]:
    r"""The layers that repeat, in the order of the graph; `shortest` is the least of a period.

    >>> from meshwright.graph.text import parse_graph
    >>> line = "operator {1}: {1}: float32[n=4] = {2}({0})"
    >>> steps = [line.format(f"h{i}", f"h{i + 1}", ("exp", "neg")[i % 2]) for i in range(6)]
    >>> graph = parse_graph("\n".join(["graph g", "input h0: float32[n=4]", *steps]))
    >>> layers(graph)
    (LayerRepeat(start=0, period=2, count=3),)
    """
    tokens, reads = _tokens(graph), _reads(graph)
    crossing = _crossing(reads)
    taken = np.zeros(len(tokens), dtype=bool)
    repeats: list[LayerRepeat] = []
    # By operators covered, at most for a run and exactly for a repeat, then by shortest period.
    queue: list[tuple[int, int, int, bool, RepeatedRun | LayerRepeat]] = [
        (-((run.last - run.first) // run.period * run.period), run.period, run.first, True, run)
        for run in _runs(tokens, shortest)
    ]
    heapq.heapify(queue)
    while queue:
        match heapq.heappop(queue)[-1]:
            case RepeatedRun() as run if not taken[run.first : run.last].any():
                repeat = _repeat(graph, reads, crossing, run)
                if repeat is not None:
                    covered = repeat.period * repeat.count
                    heapq.heappush(queue, (-covered, repeat.period, repeat.start, False, repeat))
            case LayerRepeat() as repeat if not taken[repeat.start : repeat.stop].any():
                repeats.append(repeat)
                taken[repeat.start : repeat.stop] = True
    return tuple(sorted(repeats, key=lambda repeat: repeat.start))


@once
def layer_of(graph: OperatorGraph) -> Mapping[str, tuple[int, int]]:
    """The repeat, by its start, and the copy in which each operator lies that is in any."""
    return {
        graph.operators[position].name: (repeat.start, index)
        for repeat in layers(graph)
        for index in range(repeat.count)
        for position in repeat.layer(index)
    }


@once
def recomputed_layers(graph: OperatorGraph, count: int = 0) -> Mapping[str, tuple[int, int]]:
    """As `layer_of`, of so many layers only, spread evenly; of all if none or more are asked for.

    Of n layers in the order of the graph c = n - k do not run again: number i where
    (n - 1 - i) c mod n < c, the last of each n / c. So wherever a pipeline is cut each stage has
    its share of both, and the last layer, whose activations are used first, keeps them.
    """
    every, total = layer_of(graph), layer_count(graph)
    if not 0 < count < total:
        return every
    order = [(repeat.start, index) for repeat in layers(graph) for index in range(repeat.count)]
    rest = total - count
    chosen = {layer for i, layer in enumerate(reversed(order)) if i * rest % total >= rest}
    return {name: layer for name, layer in every.items() if layer in chosen}


def layer_count(graph: OperatorGraph) -> int:
    """How many repeated layers there are."""
    return sum(repeat.count for repeat in layers(graph))


@once
def first_copies(graph: OperatorGraph) -> Mapping[str, str]:
    """For each operator of a repeated layer that of the first copy in its place."""
    return {
        graph.operators[position].name: graph.operators[first].name
        for repeat in layers(graph)
        for index in range(repeat.count)
        for first, position in zip(repeat.layer(0), repeat.layer(index), strict=True)
    }


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
    producers = {
        tensor.name: (position, index)
        for position, operator in enumerate(graph.operators)
        for index, tensor in enumerate(operator.outputs)
    }
    return [
        tuple(None if name is None else producers.get(name, name) for name in operator.inputs)
        for operator in graph.operators
    ]


def _crossing(reads: list[tuple[Read, ...]]) -> Tokens:
    """How many tensors are made before each position and read at it or later."""
    last_read: dict[tuple[int, int], int] = {}
    for position, inputs in enumerate(reads):
        last_read.update((read, position) for read in inputs if isinstance(read, tuple))
    change = np.zeros(len(reads) + 2, dtype=np.int64)
    for (maker, _), last in last_read.items():
        change[maker + 1] += 1
        change[last + 1] -= 1
    return np.cumsum(change)


class RepeatedRun(NamedTuple):
    """An interval of operators, from first to last + 1, whose tokens repeat."""

    first: int
    last: int
    period: int


def _runs(tokens: Tokens, shortest: int) -> Iterator[RepeatedRun]:
    """Every interval that holds two layers or more."""
    for period in range(shortest, len(tokens) // 2 + 1):
        equal = np.concatenate(([False], tokens[:-period] == tokens[period:], [False]))
        edges = np.flatnonzero(equal[1:] != equal[:-1])
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period:
                yield RepeatedRun(start, stop + period, period)


_TRIED = 16
"""Phases that are tried, those with the fewest tensors crossing first."""


def _repeat(
    graph: OperatorGraph, reads: list[tuple[Read, ...]], crossing: Tokens, run: RepeatedRun
) -> LayerRepeat | None:
    """The best way to cut a run into layers, or None if no two layers in a row are alike."""
    phases = range(run.first, min(run.first + run.period, run.last - 2 * run.period + 1))
    narrow = sorted(phases, key=lambda at: int(crossing[at + run.period]))[:_TRIED]
    repeats = filter(None, (_longest_alike(reads, at, run) for at in narrow))

    def rank(repeat: LayerRepeat) -> tuple[int, int, int]:
        modules = {_module(graph.operators[i]) for i in repeat.layer(0)}
        return -repeat.count, int(crossing[repeat.start + repeat.period]), len(modules)

    return min(repeats, key=rank, default=None)


def _longest_alike(
    reads: list[tuple[Read, ...]], phase: int, run: RepeatedRun
) -> LayerRepeat | None:
    """The longest row of layers that are copies, among those cut at one phase."""
    starts = range(phase, run.last - run.period + 1, run.period)
    loose = [_wiring(reads, at, run.period, before=0) for at in starts]
    tight = [_wiring(reads, at, run.period, before=run.period) for at in starts]
    best = LayerRepeat(start=phase, period=run.period, count=1)
    begin = 0
    for index in range(1, len(starts)):
        same = loose if index == begin + 1 else tight
        if same[index] != same[index - 1]:
            # The layer before may still be the first of a row with this one.
            begin = index - 1 if loose[index] == loose[index - 1] else index
        if index - begin + 1 > best.count:
            best = LayerRepeat(start=starts[begin], period=run.period, count=index - begin + 1)
    return best if best.count > 1 else None


def _wiring(
    reads: list[tuple[Read, ...]], start: int, period: int, before: int
) -> tuple[object, ...]:
    """What the operators of a layer read: by place back to `before` its start, else numbered."""
    far: dict[Read, int] = {}
    wiring: list[object] = []
    for inputs in reads[start : start + period]:
        for read in inputs:
            if isinstance(read, tuple) and read[0] >= start - before:
                wiring.append((read[0] - start, read[1]))
            else:
                wiring.append(None if read is None else far.setdefault(read, len(far)))
    return tuple(wiring)


def _module(operator: Operator) -> str:
    """The outermost numbered module that an operator came from.

    Of "encoder.layers.3.attention.0" it is "encoder.layers.3".
    """
    words = operator.layer.split(".")
    for index, word in enumerate(words):
        if word.isdecimal():
            return ".".join(words[: index + 1])
    return ""
