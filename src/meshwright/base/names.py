"""Identifier validation: one rule for names of levels, blocks, links and axes.

They stand in --axes data=4,tensor=16, in programs (node.Parallel(root).AllReduce) and in tables,
so none of the signs that mean something there may be part of a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshwright.base.errors import InputError, shown

_NAME = re.compile(r"[^\W_][\w.-]*")


def require_name(name: object, what: str, reserved: Mapping[str, str] | None = None) -> None:
    """Refuse what cannot be a name; `reserved` maps names to what they stand for already.

    >>> require_name("a+b", "an axis")
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: 'a+b' cannot be the name of an axis; begin with a \
letter or digit and use only letters, digits, '_', '-' and '.'.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InputError(
            f"{shown(name)} cannot be the name of {what}",
            "begin with a letter or digit and use only letters, digits, '_', '-' and '.'",
        )
    if reserved and name in reserved:
        raise InputError(
            f"{name!r} cannot be the name of {what}: it is {reserved[name]}", "choose another name"
        )
