"""Memoisation on the record itself: what is derived of a record, computed once. Enters: a function
of a frozen record. Leaves: the same function, which keeps its results in the record's own
`__dict__`.

A search asks the same of one graph for every plan. Results belong to the object, not to all that
equal it (to compare two graphs takes longer than most of what is derived of one), and go with it.
Whoever gets a result shares it with all others, so that nobody may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Record = TypeVar("Record")
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def once(
    function: Callable[Concatenate[Record, Rest], Result],
) -> Callable[Concatenate[Record, Rest], Result]:
    """The function; further arguments must be hashable, and each has its own result.

    >>> import msgspec
    >>> class Word(msgspec.Struct, frozen=True, dict=True):
    ...     text: str
    >>> @once
    ... def letters(word, besides=""):
    ...     print("counted")
    ...     return len(word.text) + len(besides)
    >>> letters(word := Word("factor"))
    counted
    6
    >>> letters(word)
    6
    """
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def kept(record: Record, /, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        known: dict[Hashable, Any] = record.__dict__.setdefault(name, {})
        key = (rest, *sorted(named.items()))
        if key not in known:
            known[key] = function(record, *rest, **named)
        value: Result = known[key]
        return value

    return kept
