"""Sets of operators by name, and the set around a user's own. Enters: definitions. Leaves:
`Templates`.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.base.errors import InputError, nearest
from meshwright.graph.notation import Apply, Definition, parts
from meshwright.rewrite.generate.operator_templates import (
    ALGEBRA,
    UNITY,
    Templates,
    defined,
    parallel,
)
from meshwright.rewrite.language.definitions import DEFINITIONS

SETS: Mapping[str, Templates] = {
    "algebra": ALGEBRA,
    "elements": tuple(map(defined, ("relu", "neg", "add", "sub", "mul"))),
    "parallel": (defined("relu"), defined("add"), *parallel(("copies", 0, 1))),
    "unity": UNITY,
}
"""Sets that come with Meshwright."""

_BESIDE = ("neg", "add", "mul")
"""What a user's operators are tried with if no set is named."""


def operator_set(name: str | None, definitions: Mapping[str, Definition]) -> Templates:
    """A set by its name, with a user's operators and the shipped ones that use their functions.

    >>> from meshwright.graph.notation import parse_definitions
    >>> definitions = parse_definitions("gate(x, y)[i..] = silu(x[i..]) * y[i..]")
    >>> print(*operator_set(None, definitions))
    neg add mul silu gate
    """
    if name is not None and name not in SETS:
        raise InputError(f"there is no set {name!r} of operators", nearest(name, SETS))
    if name is None and not definitions:
        raise InputError("no operators are given", f"give --set: {', '.join(sorted(SETS))}")
    for definition in definitions.values():
        if definition.parameters:
            raise InputError(
                f"operator {definition.name!r} has parameters, which are not enumerated",
                "leave it out, or ask for its forms of parallelism with --forms",
            )
    known = {**DEFINITIONS, **definitions}
    first = tuple(defined(one) for one in _BESIDE) if name is None else SETS[name]
    added = (*_kin(definitions), *definitions)
    taken = {template.operator for template in first}
    return (*first, *(defined(one, known) for one in dict.fromkeys(added) if one not in taken))


def _kin(definitions: Mapping[str, Definition]) -> list[str]:
    """Shipped operators that are called like a function which a user's operators apply."""
    used = [part.function for one in definitions.values() for part in parts(one.body)
            if isinstance(part, Apply)]  # fmt: skip
    return [name for name in used if name in DEFINITIONS and not DEFINITIONS[name].parameters]
