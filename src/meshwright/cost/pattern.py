"""Device-group patterns of a collective on a hierarchy, as mixed-radix digits of each level.

The position inside each level is a mixed-radix number; a digit of it is either varied inside a
group (MEMBER), held fixed while groups run for all its values (EVERY), or held at zero while the
devices with other values stay out (FIRST). That describes any regular set of concurrent groups
with a few numbers, whatever the size of the machine.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from meshwright.base.integers import from_digits


class PatternUse(enum.Enum):
    """What a digit does in one collective."""

    MEMBER = "member"
    EVERY = "every"
    FIRST = "first"


class Digit(NamedTuple):
    """A digit of the position inside a level."""

    radix: int
    use: PatternUse


Pattern = tuple[tuple[Digit, ...], ...]
"""For each level, outermost first, the digits of its position, most significant first."""


def members(digits: tuple[Digit, ...]) -> int:
    """How many positions of a level one group takes."""
    return math.prod(d.radix for d in digits if d.use is PatternUse.MEMBER)


def concurrent(digits: tuple[Digit, ...]) -> int:
    """How many groups run side by side because of the digits of a level."""
    return math.prod(d.radix for d in digits if d.use is PatternUse.EVERY)


def normal(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """The digits of a level where only how many positions do what matters, not which ones.

    >>> every, member = PatternUse.EVERY, PatternUse.MEMBER
    >>> normal((Digit(2, every), Digit(4, member), Digit(2, every))) == (
    ...     Digit(4, member),
    ...     Digit(4, every),
    ... )
    True
    """
    merged = (Digit(math.prod(d.radix for d in digits if d.use is use), use) for use in PatternUse)
    return tuple(digit for digit in merged if digit.radix > 1)


def group_positions(digits: tuple[Digit, ...]) -> Iterator[tuple[int, ...]]:
    """The positions that each group takes in a level, ascending.

    >>> list(group_positions((Digit(2, PatternUse.MEMBER), Digit(2, PatternUse.EVERY))))
    [(0, 2), (1, 3)]
    """
    radices = [d.radix for d in digits]
    outside = [range(d.radix) if d.use is PatternUse.EVERY else (0,) for d in digits]
    inside = [range(d.radix) if d.use is PatternUse.MEMBER else (0,) for d in digits]
    for base in product(*outside):
        yield tuple(
            from_digits([b + i for b, i in zip(base, offset, strict=True)], radices)
            for offset in product(*inside)
        )


def groups(pattern: Pattern) -> list[tuple[int, ...]]:
    """The groups as device numbers, each ascending.

    >>> node = (Digit(2, PatternUse.EVERY),)
    >>> gpu = (Digit(2, PatternUse.MEMBER), Digit(2, PatternUse.FIRST))
    >>> groups((node, gpu))
    [(0, 2), (4, 6)]
    """
    flat = tuple(digit for digits in pattern for digit in digits)
    return list(group_positions(flat))
