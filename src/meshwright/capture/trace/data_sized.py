"""Results of as many elements as data says (`x[mask]`, `nonzero`, `bincount`) at a fixed size.

Enters: a function that is about to be called. Leaves: the same result by operators whose shapes
do not depend on data. How many elements there are is read like a number of Python's, so that a
guard holds it where whole-numbered inputs decide (one end-of-text token in every row, say); the
caller refuses what parameters decide. So are functions that PyTorch computes by looking at values
which shapes decide already (`cov`, `combinations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, combinations_with_replacement
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Count = Callable[[Tensor], int]
"""Reads how many elements are selected."""


def fixed_size_replacement(
    name: str, args: Sequence[Any], named: Mapping[str, Any], count: Count
) -> Callable[[], object] | None:
    """What is done instead of a function whose result has as many elements as data says."""
    first = args[0] if args else None
    if not isinstance(first, Tensor):
        return None
    match name:
        case "__getitem__" if _has_mask(args[1]):
            return lambda: first[_by_places(args[1], count)]
        case "nonzero" | "argwhere":
            columns = bool(named.get("as_tuple"))
            return lambda: _places(first, count).unbind(1) if columns else _places(first, count)
        case "where" if len(args) == 1 and not named:
            return lambda: _places(first, count).unbind(1)
        case "masked_select" if len(args) == 2:
            shape = torch.broadcast_shapes(first.shape, args[1].shape)  # type: ignore[no-untyped-call]
            return lambda: first.expand(shape)[_places(args[1].expand(shape), count).unbind(1)]
        case "bincount":
            return lambda: _counts(first, *args[1:], **named, count=count)
        case "one_hot" if args[1:] in ((), (-1,)) and named.get("num_classes", -1) == -1:
            return lambda: functional.one_hot(first, count(first.max() + 1))
        case "unique_consecutive" if len(args) == 1 and not _asks_for_more(named):
            return lambda: _without_repeats(first.reshape(-1), count)
        case "unique" | "_unique2" if len(args) == 1 and not _asks_for_more(named):
            return lambda: _without_repeats(first.reshape(-1).sort()[0], count)
        case "combinations":
            return lambda: _combinations(first, *args[1:], **named)
        case "cov" | "corrcoef" if first.dim() == 2 and named.keys() <= {"correction"}:
            covariance = _covariance if name == "cov" else _correlation
            return lambda: covariance(first, **named)
        case _:
            return None


def _combinations(row: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    choose = combinations_with_replacement if with_replacement else combinations
    places = list(choose(range(len(row)), r))
    return row[torch.tensor(places, dtype=torch.int64, device=row.device).reshape(-1, r)]


def _covariance(rows: Tensor, correction: int = 1) -> Tensor:
    """Of variables that are rows."""
    centred = rows - rows.mean(1, keepdim=True)
    return centred @ centred.T / (rows.shape[1] - correction)


def _correlation(rows: Tensor) -> Tensor:
    covariance = _covariance(rows)
    deviations = covariance.diagonal().sqrt()
    return (covariance / deviations[:, None] / deviations[None, :]).clamp(-1, 1)


def _asks_for_more(named: Mapping[str, Any]) -> bool:
    """Whether rows are compared, or places and counts are wanted too."""
    options = [value for name, value in named.items() if name != "sorted"]
    return any(option is not None and option is not False for option in options)


def _has_mask(index: object) -> bool:
    return any(_is_mask(part) for part in (index if isinstance(index, tuple) else (index,)))


def _is_mask(part: object) -> bool:
    return isinstance(part, Tensor) and part.dtype is torch.bool and part.dim() > 0


def _by_places(index: object, count: Count) -> tuple[Any, ...]:
    """An index with the places of a mask's elements instead of the mask."""
    parts = index if isinstance(index, tuple) else (index,)
    places: list[object] = []
    for part in parts:
        if isinstance(part, Tensor) and _is_mask(part):
            places += _places(part, count).unbind(1)
        else:
            places.append(part)
    return tuple(places)


def _places(tensor: Tensor, count: Count) -> Tensor:
    mask = tensor if tensor.dtype is torch.bool else tensor != 0
    return torch.nonzero_static(mask, size=count(mask.sum()))


def _counts(
    numbers: Tensor, weights: Tensor | None = None, minlength: int = 0, *, count: Count
) -> Tensor:
    """How often each number occurs, up to the largest, or below `minlength` if that is given: a
    number beyond is an index out of bounds then, where PyTorch's result is longer.
    """
    if weights is None:
        weights = torch.ones_like(numbers, dtype=torch.int64)
    elif weights.dtype is not torch.float32:
        weights = weights.double()
    size = minlength or count(numbers.max() + 1)
    return weights.new_zeros(size).scatter_add(0, numbers.long(), weights)


def _without_repeats(row: Tensor, count: Count) -> Tensor:
    """A row without elements that equal the one before."""
    begins = torch.cat([torch.ones_like(row[:1], dtype=torch.bool), row[1:] != row[:-1]])
    return row[_places(begins, count).squeeze(1)]
