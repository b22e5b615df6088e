"""The operators that come with Meshwright, as `graph.notation` reads them from `operators.txt`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from meshwright.base.errors import InputError, nearest
from meshwright.graph.notation import Definition, parse_definitions

OPERATORS = "operators.txt"


def shipped_definitions() -> dict[str, Definition]:
    """The operators that come with Meshwright."""
    return parse_definitions(files(__package__).joinpath(OPERATORS).read_text())


DEFINITIONS: Mapping[str, Definition] = shipped_definitions()


def definition(name: str, known: Mapping[str, Definition] = DEFINITIONS) -> Definition:
    """A definition by its name."""
    if name not in known:
        raise InputError(f"there is no operator {name!r}", nearest(name, known))
    return known[name]
