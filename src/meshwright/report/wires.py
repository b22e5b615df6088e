"""Layouts drawn with box characters. Enters: a `Layout`. Leaves: lines of styled text.

Wires run down, aside and down again; where two cross, the one that runs down is drawn over the
other, so that only a tensor that is read twice shows a fork.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text

from meshwright.report.layers import Box, Layout, Place, Wire, ports

MARK = "bold cyan"
"""Of a marked box, where there are colours."""

MOST_ORDERED = 6
"""Wires of a layer of which every order is tried."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _UP | _DOWN: "│", _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "╭", _DOWN | _LEFT: "╮", _UP | _RIGHT: "╰", _UP | _LEFT: "╯",
    _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬", _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip
_FRAMES = {False: "┌─┐│└┘┴┬", True: "╔═╗║╚╝╧╤"}


def draw(found: Layout) -> list[Text]:
    r"""The lines of a drawing, without trailing blanks.

    >>> from meshwright.report.layers import layout
    >>> boxes = [Box("x", bare=True), Box("partition", ((0, 0),), marked=True)]
    >>> print(*(line.plain for line in draw(layout(boxes))), sep="\n")
          x
          │
    ╔═════╧═════╗
    ║ partition ║
    ╚═══════════╝
    """
    canvas = _Canvas()
    for number, layer in enumerate(found.layers):
        canvas.layer(found.boxes, layer, found.wires[number] if number < len(found.wires) else ())
    return canvas.lines()


class _Canvas:
    """Cells by row and column; rows are added from the top."""

    def __init__(self) -> None:
        self._rows: list[dict[int, tuple[str, str]]] = []

    def _new_rows(self, count: int) -> list[dict[int, tuple[str, str]]]:
        rows: list[dict[int, tuple[str, str]]] = [{} for _ in range(count)]
        self._rows += rows
        return rows

    def layer(self, boxes: Sequence[Box], places: Sequence[Place], wires: Sequence[Wire]) -> None:
        """One layer and the wires below it."""
        framed = any(place.lane is None and not boxes[place.box].bare for place in places)
        rows = self._new_rows(3 if framed else 1)
        begins = {wire.begin for wire in wires}
        for place in places:
            own = boxes[place.box]
            if place.lane is not None:
                for row in rows:
                    row[place.left] = ("│", "")
            elif own.bare:
                # What is read stands at the bottom of its layer, what only reads at the top.
                _write(rows[0 if own.reads else -1], place.left, own.label, "")
            else:
                _frame(rows, place, own, begins)
        self._wires(wires)

    def _wires(self, wires: Sequence[Wire]) -> None:
        if not wires:
            return
        tracks = _tracks([wire for wire in wires if wire.ends != (wire.begin,)])
        rows = self._new_rows(max(tracks.values(), default=0) + 1)
        for number, row in enumerate(rows):
            cells: dict[int, list[int]] = {}
            for wire in wires:
                for column, mask in _cells(wire, tracks.get(wire), number):
                    cells.setdefault(column, []).append(mask)
            for column, masks in cells.items():
                row[column] = (_LINES[_shown(masks)], "")

    def lines(self) -> list[Text]:
        """What has been drawn."""
        found = []
        for row in self._rows:
            cells = [row.get(column, (" ", "")) for column in range(max(row, default=-1) + 1)]
            runs = itertools.groupby(cells, key=lambda cell: cell[1])
            found.append(Text.assemble(*(("".join(c for c, _ in run), style)
                                         for style, run in runs)))  # fmt: skip
        return found


def _write(row: dict[int, tuple[str, str]], left: int, text: str, style: str) -> None:
    for column, character in enumerate(text, left):
        row[column] = (character, style)


def _frame(
    rows: list[dict[int, tuple[str, str]]], place: Place, own: Box, begins: set[int]
) -> None:
    across, down = _FRAMES[own.marked][1], _FRAMES[own.marked][3]
    north_west, north_east, south_west, south_east, into, out = (
        _FRAMES[own.marked][n] for n in (0, 2, 4, 5, 6, 7)
    )
    style, inner = MARK if own.marked else "", across * (place.width - 2)
    _write(rows[0], place.left, f"{north_west}{inner}{north_east}", style)
    _write(rows[1], place.left, f"{down} {own.label} {down}", style)
    _write(rows[2], place.left, f"{south_west}{inner}{south_east}", style)
    for column in ports(place.width, len(own.reads)) if own.reads else ():
        rows[0][place.left + column] = (into, style)
    for column in ports(place.width, own.outputs):
        if place.left + column in begins:
            rows[2][place.left + column] = (out, style)


def _tracks(wires: Sequence[Wire]) -> dict[Wire, int]:
    """The row in which each wire runs aside: one for all if they do not meet, else in the order
    in which they overlap and cross least.
    """
    spans = [(min(w.begin, *w.ends), max(w.begin, *w.ends)) for w in wires]
    apart = all(a[1] < b[0] or b[1] < a[0] for a, b in itertools.combinations(spans, 2))
    if apart:
        return dict.fromkeys(wires, 0)
    orders: Iterator[tuple[Wire, ...]] = itertools.permutations(wires)
    if len(wires) > MOST_ORDERED:
        orders = iter([tuple(wires)])
    best = min(orders, key=_disorder)
    return {wire: number for number, wire in enumerate(best)}


def _disorder(order: tuple[Wire, ...]) -> int:
    """Crossings; wires that would run down in one column count for many."""
    total = 0
    for upper, lower in itertools.combinations(order, 2):
        # The lower one comes down past the upper track, the upper one past the lower track.
        total += _within(lower.begin, upper) + sum(_within(end, lower) for end in upper.ends)
        total += 100 * sum(end == lower.begin for end in upper.ends)
    return total


def _within(column: int, wire: Wire) -> bool:
    return min(wire.begin, *wire.ends) <= column <= max(wire.begin, *wire.ends)


def _cells(wire: Wire, track: int | None, row: int) -> Iterator[tuple[int, int]]:
    """What a wire draws in a row: columns with the sides at which it goes on."""
    if track is None:
        yield wire.begin, _UP | _DOWN
        return
    if row < track:
        yield wire.begin, _UP | _DOWN
    elif row > track:
        yield from ((end, _UP | _DOWN) for end in dict.fromkeys(wire.ends))
    else:
        first, last = min(wire.begin, *wire.ends), max(wire.begin, *wire.ends)
        for column in range(first, last + 1):
            mask = _LEFT * (column > first) | _RIGHT * (column < last)
            mask |= _UP * (column == wire.begin) | _DOWN * (column in wire.ends)
            yield column, mask


def _shown(masks: list[int]) -> int:
    """What of the wires in one cell is seen."""
    if len(masks) == 1:
        return masks[0]
    upright = [mask for mask in masks if mask == _UP | _DOWN]
    if upright:
        return upright[0]
    joined = 0
    for mask in masks:
        joined |= mask
    return joined
