"""Recognition of mixture-of-experts (MoE) routing by dataflow analysis of a graph. Enters: a
captured graph. Leaves: for each tensor that takes part its `Part`.

A mixture of experts that drops no tokens sorts them by expert, runs grouped products over the
sorted rows, and undoes the sort. With t tokens that choose k experts each, r = t k:

    index [t, k] -> flat [r] -> order, ids [r] -> tokens = order // k -> rows = x[tokens] -> body
                             -> counts [e] -> ends [e]
    body -> made [r, h] -> weighted by weights[order] -> made[inverse] -> [t, k, h] -> sum over k

Parts are followed from operator to operator, by a function for each kind (`_FOLLOWING`); what none
of them knows has no part. Nothing here changes the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from meshwright.capture.recognised.routed_parts import (
    CHOICES,
    SLOTS,
    SORTED,
    Part,
    RoutedCounts,
    RoutedEnds,
    RoutedFlat,
    RoutedIds,
    RoutedInverse,
    RoutedMade,
    RoutedMix,
    RoutedOneHot,
    RoutedOrder,
    RoutedRepeat,
    RoutedRow,
    RoutedShare,
    RoutedTokens,
)
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Operator, OperatorGraph, Value
from meshwright.graph.randomness import draws


def parts_of(graph: OperatorGraph) -> dict[str, Part]:
    """The parts of all tensors that have one."""
    reading = _Reading(graph)
    for operator in graph.operators:
        reading.read(operator)
    return reading.parts


class _Reading:
    """Parts as they are found."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph, self.parts = graph, dict[str, Part]()

    def read(self, operator: Operator) -> None:
        """Find the parts of what an operator makes."""
        names = [name or "" for name in operator.inputs]
        parts = [self.parts.get(name) for name in names]
        follow = _FOLLOWING.get(operator.kind)
        followed = None if follow is None else follow(self, operator, names, parts)
        if followed is None:
            followed = self._alike(operator, parts)
        by_output = followed if isinstance(followed, list) else [followed] * len(operator.outputs)
        for tensor, part in zip(operator.outputs, by_output, strict=False):
            if part is not None:
                self.parts[tensor.name] = part

    def _alike(self, operator: Operator, parts: list[Part | None]) -> Part | None:
        """A value of the body, if all operands are and each row is computed by itself."""
        rows = {part.choices for part in parts if isinstance(part, RoutedRow)}
        if len(rows) != 1 or not all(isinstance(part, RoutedRow) for part in parts):
            return None
        call, family = self.graph.call(operator), family_of(operator)
        if family.products or draws(call):
            return None
        alone = any(
            set(split.inputs) == {0}
            and set(split.outputs) == {0}
            and split.role != "reduction"
            and split.halo is None
            and not split.statistics
            for split in family.splits(call)
        )
        return RoutedRow(rows.pop()) if alone else None

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor."""
        return self.graph.specs[name].shape

    def choices(self, index: str) -> int:
        """How many there are."""
        tokens, chosen = self.shape(index)
        return tokens * chosen


_Made = Part | list[Part | None] | None
_Follow = Callable[[_Reading, Operator, list[str], list[Part | None]], _Made]


def _attributes(operator: Operator) -> Mapping[str, Value]:
    return dict(operator.attributes)


def _along(operator: Operator, rank: int, default: int = -1) -> int:
    """The dim that an operator names, counted from the front."""
    dim = _attributes(operator).get("dim", default)
    if isinstance(dim, tuple) and len(dim) == 1:
        (dim,) = dim
    return dim % rank if isinstance(dim, int) and rank else -1


def _reshaped(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    before, after = reading.shape(names[0]), operator.outputs[0].shape
    match parts[0]:
        case None if len(before) == 2 and after == (before[0] * before[1],):
            return RoutedFlat(names[0])
        case None if len(before) == 2 and after == (*before, 1):
            return RoutedShare(names[0], None, column=True)
        case RoutedShare(source, str(index), False) if after == (*before, 1):
            return RoutedShare(source, index, column=True)
        case RoutedMade(value, index, weights, place) if place == CHOICES:
            wanted = (*reading.shape(index), *before[1:])
            return RoutedMade(value, index, weights, SLOTS) if after == wanted else None
        case _:
            return None


def _cast(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    """Whole numbers are the same in any dtype that holds them."""
    return (
        parts[0]
        if isinstance(parts[0], RoutedIds | RoutedOrder | RoutedCounts | RoutedEnds | RoutedOneHot)
        else None
    )


def _sort(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    if _attributes(operator).get("descending", False) is not False:
        return None
    match parts[0], operator.kind:
        case RoutedFlat(source), "sort":
            return [RoutedIds(source), RoutedOrder(source)]
        case RoutedFlat(source), _:
            return RoutedOrder(source)
        case RoutedOrder(index), "argsort":
            return RoutedInverse(index)
        case _:
            return None


def _divided(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    attributes = _attributes(operator)
    floors = operator.kind == "floor_divide" or attributes.get("rounding_mode") == "floor"
    match parts:
        case [RoutedOrder(index)] if floors and attributes.get("other") == reading.shape(index)[1]:
            return RoutedTokens(index)
        case _:
            return None


def _indexed(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    if len(names) != 2 or (operator.kind == "index_select" and _along(operator, 9, 9) != 0):
        return None
    shape = reading.shape(names[0])
    match parts:
        case [None, RoutedTokens(index)] if (
            shape[:1] == reading.shape(index)[:1] and len(shape) == 2
        ):
            return RoutedRow(index, names[0])
        case [RoutedRepeat(tokens, times), RoutedOrder(index)] if times == reading.shape(index)[1]:
            return RoutedRow(index, tokens)
        case [RoutedFlat(source), RoutedOrder(index)] if source == index:
            return RoutedIds(index)
        case [RoutedFlat(source), RoutedOrder(index)] if reading.shape(source) == reading.shape(
            index
        ):
            return RoutedShare(source, index, column=False)
        case [None, RoutedIds(index)] if len(shape) > 1:
            return RoutedRow(index)
        case [RoutedRow(index, None), RoutedInverse(other)] if index == other:
            return RoutedMade(names[0], index, None, CHOICES)
        case [RoutedMade(value, index, weights, place), RoutedInverse(other)] if index == other:
            return RoutedMade(value, index, weights, CHOICES) if place == SORTED else None
        case _:
            return None


def _repeated(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    times = _attributes(operator).get("repeats")
    if parts != [None] or not isinstance(times, int) or len(reading.shape(names[0])) != 2:
        return None
    return RoutedRepeat(names[0], times) if _along(operator, 2, 9) == 0 else None


def _one_hot(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    classes = _attributes(operator).get("num_classes")
    match parts[0]:
        case RoutedFlat(source) if isinstance(classes, int):
            return RoutedOneHot(source, classes)
        case _:
            return None


def _summed(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    if _attributes(operator).get("keepdim", False):
        return None
    dim = _along(operator, len(reading.shape(names[0])))
    match parts[0]:
        case RoutedOneHot(index, experts) if dim == 0:
            return RoutedCounts(index, experts)
        case RoutedMade(value, index, str(weights), place) if place == SLOTS and dim == 1:
            return RoutedMix(value, index, weights)
        case _:
            return None


def _counted(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    """histc, with a bin for each expert."""
    attributes = _attributes(operator)
    bins = attributes.get("bins", 100)
    if not isinstance(bins, int) or (attributes.get("min", 0), attributes.get("max", 0)) != (
        0,
        bins - 1,
    ):
        return None
    match parts[0]:
        case RoutedIds(index) | RoutedFlat(index):
            return RoutedCounts(index, bins)
        case _:
            return None


def _accumulated(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    match parts[0]:
        case RoutedCounts(index, experts) if _along(operator, 1) == 0:
            return RoutedEnds(index, experts)
        case _:
            return None


def _product(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    match parts:
        case [RoutedRow(index), None, RoutedEnds(other, experts)] if index == other:
            return RoutedRow(index) if reading.shape(names[1])[:1] == (experts,) else None
        case _:
            return None


def _column(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    rank = len(reading.shape(names[0]))
    if _along(operator, rank + 1) != rank:
        return None
    match parts[0]:
        case RoutedShare(source, str(index), False):
            return RoutedShare(source, index, column=True)
        case None if rank == 2:
            return RoutedShare(names[0], None, column=True)
        case _:
            return None


def _multiplied(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    if len(parts) != 2:
        return None
    if isinstance(parts[0], RoutedShare):
        parts, names = parts[::-1], names[::-1]
    match parts:
        case [RoutedRow(index, None), RoutedShare(source, str(other), True)] if index == other:
            flat = len(reading.shape(names[0])) == 2
            return RoutedMade(names[0], index, source, SORTED) if flat else None
        case [RoutedMade(value, index, None, place), RoutedShare(source, None, True)]:
            alike = reading.shape(source) == reading.shape(index)
            return RoutedMade(value, index, source, SLOTS) if place == SLOTS and alike else None
        case _:
            return None


def _inverted(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    """index_put of 0, 1, 2 ... at the places of the order."""
    if len(parts) != 3 or _attributes(operator).get("accumulate", False):
        return None
    counting = reading.graph.producers.get(names[2])
    match parts[1]:
        case RoutedOrder(index) if counting is not None and counting.kind == "arange":
            attributes = _attributes(counting)
            wanted = (0, reading.choices(index), 1)
            alike = (
                attributes.get("start", 0),
                attributes.get("end"),
                attributes.get("step", 1),
            ) == wanted
            return RoutedInverse(index) if alike else None
        case _:
            return None


def _added(
    reading: _Reading, operator: Operator, names: list[str], parts: list[Part | None]
) -> _Made:
    """index_add of weighted rows to zeros, at their tokens."""
    empty = reading.graph.producers.get(names[0])
    if empty is None or empty.kind not in ("zeros", "zeros_like", "new_zeros"):
        return None
    if _along(operator, 2, 9) != 0 or _attributes(operator).get("alpha", 1) != 1:
        return None
    match parts[1:]:
        case [RoutedTokens(index), RoutedMade(value, other, str(weights), place)] if index == other:
            rows = reading.shape(names[0])[:1] == reading.shape(index)[:1]
            return RoutedMix(value, index, weights) if place == SORTED and rows else None
        case _:
            return None


_FOLLOWING: Mapping[str, _Follow] = {
    **dict.fromkeys(("reshape", "view", "flatten", "_unsafe_view"), _reshaped),
    "to": _cast,
    "sort": _sort,
    "argsort": _sort,
    "floor_divide": _divided,
    "div": _divided,
    "index": _indexed,
    "index_select": _indexed,
    "repeat_interleave": _repeated,
    "one_hot": _one_hot,
    "sum": _summed,
    "histc": _counted,
    "cumsum": _accumulated,
    "_grouped_mm": _product,
    "unsqueeze": _column,
    "mul": _multiplied,
    "index_put": _inverted,
    "index_add": _added,
}
