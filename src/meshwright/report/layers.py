"""Small graphs in layers, as text. Enters: boxes that read each other. Leaves: where all of them
stand and the columns of their ports; `wires` draws it. What the boxes mean is not known here.

Every box stands one layer below the lowest that it reads. A tensor that is read further down
passes through the layers between in a lane of its own, so wires join neighbouring layers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

GAP = 3
"""Columns between two boxes."""

SWEEPS = 6
"""Times that boxes are moved towards what they read and what reads them."""

Port = tuple[int, int]
"""An output: the number of a box, and which of its outputs."""


class Box(NamedTuple):
    """Something to be drawn; a bare one has no frame, a marked one a double frame."""

    label: str
    reads: tuple[Port, ...] = ()
    outputs: int = 1
    bare: bool = False
    marked: bool = False


class Place(NamedTuple):
    """A box, or the lane of a tensor, in its layer."""

    box: int
    lane: int | None
    """The output that passes by; None for the box itself."""
    left: int
    width: int


class Wire(NamedTuple):
    """A tensor between two layers: the column where it begins and those where it ends."""

    begin: int
    ends: tuple[int, ...]


class Layout(NamedTuple):
    """All layers from the top, and the wires below each."""

    boxes: tuple[Box, ...]
    layers: tuple[tuple[Place, ...], ...]
    wires: tuple[tuple[Wire, ...], ...]


_Key = tuple[int, int | None]
"""A box, or one of its outputs that passes by."""


def layout(boxes: Sequence[Box]) -> Layout:
    """Where everything stands; boxes come after those that they read.

    >>> found = layout([Box("x", bare=True), Box("relu", ((0, 0),))])
    >>> [(place.left, place.width) for layer in found.layers for place in layer]
    [(4, 1), (0, 8)]
    """
    work = _Layering(boxes)
    work.order()
    for sweep in range(SWEEPS):
        work.align(upwards=sweep % 2 == 0)
    return work.finished()


def ports(width: int, count: int) -> list[int]:
    """The columns of ports on a side of a box, from its left.

    >>> ports(9, 1), ports(9, 2)
    ([4], [2, 6])
    """
    return [(2 * n + 1) * width // (2 * count) for n in range(count)]


class _Layering:
    """Boxes and lanes by layer, in order from the left, each with its left column."""

    def __init__(self, boxes: Sequence[Box]) -> None:
        self._boxes = tuple(boxes)
        self._depth = _depths(self._boxes)
        self._layers: list[list[_Key]] = [[] for _ in range(max(self._depth) + 1)]
        for number in range(len(boxes)):
            self._layers[self._depth[number]].append((number, None))
        for box, output in self._lanes():
            for depth in range(self._depth[box] + 1, self._last(box, output)):
                self._layers[depth].append((box, output))
        self._left = {(depth, key): 0.0 for depth, keys in enumerate(self._layers) for key in keys}

    def _lanes(self) -> list[Port]:
        return list(dict.fromkeys(own for box in self._boxes for own in box.reads))

    def _last(self, box: int, output: int) -> int:
        return max(
            self._depth[n] for n, own in enumerate(self._boxes) if (box, output) in own.reads
        )

    def _readers(self, depth: int, key: _Key) -> Iterator[tuple[int, _Key, int]]:
        """Who takes what of this in the next layer: the output, the reader, its port."""
        box, lane = key
        outputs = range(self._boxes[box].outputs) if lane is None else (lane,)
        for below in self._layers[depth + 1] if depth + 1 < len(self._layers) else ():
            for output in outputs:
                if below == (box, output):
                    yield output, below, 0
                elif below[1] is None:
                    reads = self._boxes[below[0]].reads
                    yield from (
                        (output, below, n) for n, own in enumerate(reads) if own == (box, output)
                    )

    def width(self, key: _Key) -> int:
        """Columns that something takes."""
        own = self._boxes[key[0]]
        if key[1] is not None:
            return 1
        return len(own.label) if own.bare else len(own.label) + 4

    def _enters(self, key: _Key) -> list[int]:
        count = 1 if key[1] is not None else len(self._boxes[key[0]].reads)
        return ports(self.width(key), count) if count else []

    def _leaves(self, key: _Key, output: int) -> int:
        outputs = self._boxes[key[0]].outputs
        return 0 if key[1] is not None else ports(self.width(key), outputs)[output]

    def order(self) -> None:
        """From the bottom up, everything stands over the middle of what reads it."""
        for depth in range(len(self._layers) - 2, -1, -1):
            below = {key: n for n, key in enumerate(self._layers[depth + 1])}

            def middle(key: _Key, depth: int = depth, below: Mapping[_Key, int] = below) -> float:
                found = [
                    below[reader] + (port + 0.5) / max(1, len(self._enters(reader)))
                    for _, reader, port in self._readers(depth, key)
                ]
                return sum(found) / len(found) if found else float(len(below))

            self._layers[depth].sort(key=middle)

    def align(self, *, upwards: bool) -> None:
        """Moves every layer towards the one below it, or above it."""
        order = range(len(self._layers))
        for depth in reversed(order) if upwards else order:
            wanted = [
                _mean(self._pulls(depth, key, upwards=upwards), self._left[depth, key])
                for key in self._layers[depth]
            ]
            widths = [self.width(key) for key in self._layers[depth]]
            for key, left in zip(self._layers[depth], spread(wanted, widths), strict=True):
                self._left[depth, key] = left

    def _pulls(self, depth: int, key: _Key, *, upwards: bool) -> Iterator[float]:
        """Left columns at which a wire of this would be straight."""
        if upwards:
            for output, reader, port in self._readers(depth, key):
                column = self._left[depth + 1, reader] + self._enters(reader)[port]
                yield column - self._leaves(key, output)
        elif depth:
            for above in self._layers[depth - 1]:
                for output, reader, port in self._readers(depth - 1, above):
                    if reader == key:
                        column = self._left[depth - 1, above] + self._leaves(above, output)
                        yield column - self._enters(key)[port]

    def finished(self) -> Layout:
        """The layout with the leftmost column at 0."""
        first = min(map(round, self._left.values()))
        left = {at: round(value) - first for at, value in self._left.items()}
        layers = tuple(
            tuple(Place(key[0], key[1], left[depth, key], self.width(key)) for key in keys)
            for depth, keys in enumerate(self._layers)
        )
        return Layout(self._boxes, layers, tuple(map(tuple, self._wires(left))))

    def _wires(self, left: Mapping[tuple[int, _Key], int]) -> Iterator[list[Wire]]:
        for depth, keys in enumerate(self._layers[:-1]):
            ends: dict[int, list[int]] = {}
            for key in keys:
                for output, reader, port in self._readers(depth, key):
                    begin = left[depth, key] + self._leaves(key, output)
                    column = left[depth + 1, reader] + self._enters(reader)[port]
                    ends.setdefault(begin, []).append(column)
            yield [Wire(begin, tuple(columns)) for begin, columns in ends.items()]


def _depths(boxes: tuple[Box, ...]) -> list[int]:
    """The layer of every box: what reads nothing stands right above its first reader."""
    depths: list[int] = []
    for box in boxes:
        depths.append(1 + max((depths[read] for read, _ in box.reads), default=-1))
    last = max(depths)
    for number, box in enumerate(boxes):
        readers = [depths[n] for n, own in enumerate(boxes) if number in dict(own.reads)]
        if box.bare and not readers:
            depths[number] = last
        elif not box.reads:
            depths[number] = min(readers) - 1
    return depths


def _mean(found: Iterable[float], otherwise: float) -> float:
    values = list(found)
    return sum(values) / len(values) if values else otherwise


def spread(wanted: Sequence[float], widths: Sequence[int]) -> list[float]:
    """Left columns nearest to those wanted (least squares) that keep the order and the gaps.

    Without widths that is isotonic regression, which joins neighbours that are in the wrong order
    into blocks at their mean.

    >>> spread([0.0, 0.0], [3, 3])
    [-3.0, 3.0]
    """
    offsets = [sum(widths[:n]) + GAP * n for n in range(len(widths))]
    blocks: list[tuple[float, int]] = []
    for target, offset in zip(wanted, offsets, strict=True):
        mean, count = target - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, size = blocks.pop()
            mean, count = (mean * count + other * size) / (count + size), count + size
        blocks.append((mean, count))
    settled = [float(round(mean)) for mean, count in blocks for _ in range(count)]
    return [left + offset for left, offset in zip(settled, offsets, strict=True)]
