"""Stale-value sentinels: stand-ins for what an earlier forward call left in attributes.

Enters: an attribute's name and what it holds. Leaves: a `Stale`, which may be handed around and
written into; whoever decides or computes with it is refused with the line that does. A container
that the same call has cleared, or a dict of which it has written every key anew, is what this call
made it: hooks leave features there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.operators.source_lines import calling_line

REMEDY = "give what changes from step to step to the model as an input, and keep it in the loop"


def stale_of(name: str, value: object, put: Callable[[object], None]) -> Stale:
    """What stands for a value while a model is traced again; `put` sets the attribute."""
    match value:
        case dict() | list() | set():
            return StaleContainer(name, value, put)
        case _:
            return Stale(name)


class Stale:
    """Stands for what an earlier call wrote. It may be handed around and counted on, but nothing
    may be decided or computed with it.
    """

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def refuse(self) -> NoReturn:
        """Say who read what, and how to do without."""
        raise InputError(
            f"forward reads {vars(self)['name']!r}, which an earlier call of it wrote"
            f"{calling_line()}; a plan computes every step alike",
            REMEDY,
        )

    @classmethod
    def __torch_function__(
        cls, function: object, types: object, arguments: tuple[Any, ...] = (), named: object = None
    ) -> NoReturn:
        stale = [leaf for leaf in pytree.tree_leaves((arguments, named)) if isinstance(leaf, Stale)]
        stale[0].refuse()

    def __getattr__(self, name: str) -> Stale:
        return self

    def __setattr__(self, name: str, value: object) -> None:
        """Is written again; nobody has read it."""


def _handed_on(self: Stale, *_: object, **__: object) -> Stale:
    return self


def _refused(self: Stale, *_: object) -> NoReturn:
    self.refuse()


def _silent(self: Stale, *_: object) -> None:
    """Written into."""


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_METHODS: Mapping[Callable[..., object], tuple[str, ...]] = {
    _handed_on: (
        *(f"__{side}{name}__" for name in _ARITHMETIC for side in ("", "r", "i")),
        *("__neg__", "__abs__", "__call__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__"),
        "__ne__",
    ),
    _refused: (
        *("__bool__", "__int__", "__float__", "__index__", "__len__", "__iter__", "__getitem__"),
        *("__contains__", "__matmul__", "__rmatmul__", "__next__"),
    ),
    _silent: ("__setitem__", "__delitem__"),
}
for _method, _names in _METHODS.items():
    for _name in _names:
        setattr(Stale, _name, _method)
Stale.__hash__ = object.__hash__  # type: ignore[method-assign]


class StaleContainer(Stale):
    """Stands for a container until nothing is left in it of what earlier calls wrote."""

    def __init__(
        self,
        name: str,
        left: dict[Any, Any] | list[Any] | set[Any],
        put: Callable[[object], None],
    ) -> None:
        super().__init__(name)
        keys = set(left) if isinstance(left, dict) else None
        vars(self).update(fresh=type(left)(), keys=keys, put=put)

    def clear(self) -> None:
        """The attribute is a new container."""
        fresh = vars(self)["fresh"]
        fresh.clear()
        vars(self)["keys"] = set()
        vars(self)["put"](fresh)

    def update(
        self, new_entries: Mapping[Any, object] = MappingProxyType({}), **named: object
    ) -> None:
        """Several are written."""
        for key, value in (dict(new_entries) | named).items():
            self[key] = value

    def get(self, key: object, otherwise: object = None) -> object:
        """One that this call has written."""
        return self[key]

    def __setitem__(self, key: object, value: object) -> None:
        fresh, keys = vars(self)["fresh"], vars(self)["keys"]
        if isinstance(fresh, dict):
            fresh[key] = value
            if fresh.keys() >= keys:
                vars(self)["put"](fresh)

    def __getitem__(self, key: object) -> object:
        fresh = vars(self)["fresh"]
        if not isinstance(fresh, dict) or key not in fresh:
            self.refuse()
        return fresh[key]
