"""The parts that tensors play in the routing of tokens to experts (the nouns of `routing`).

They hold names of tensors only: `choices` is the index [t, k] of the experts that tokens chose.
"""

from __future__ import annotations

from typing import NamedTuple


class RoutedFlat(NamedTuple):
    """A tensor of [t, k] in a row."""

    source: str


class RoutedRepeat(NamedTuple):
    """Each token k times in a row."""

    tokens: str
    times: int


class RoutedOneHot(NamedTuple):
    """A one at the expert of each choice."""

    choices: str
    experts: int


class RoutedCounts(NamedTuple):
    """How many rows each expert has."""

    choices: str
    experts: int


class RoutedEnds(NamedTuple):
    """Where the rows of each expert end."""

    choices: str
    experts: int


class RoutedOrder(NamedTuple):
    """What sorts choices by expert."""

    choices: str


class RoutedIds(NamedTuple):
    """The experts of sorted choices."""

    choices: str


class RoutedTokens(NamedTuple):
    """The tokens of sorted choices."""

    choices: str


class RoutedInverse(NamedTuple):
    """What undoes the sort."""

    choices: str


class RoutedRow(NamedTuple):
    """A value of the body: one row for each sorted choice; the tokens themselves are named."""

    choices: str
    tokens: str | None = None


class RoutedShare(NamedTuple):
    """The weights of choices: sorted or not, in a row or as a column beside rows."""

    source: str
    choices: str | None
    column: bool


class RoutedMade(NamedTuple):
    """What the experts made, perhaps weighted: sorted, in the order of choices, or [t, k, h]."""

    value: str
    choices: str
    weights: str | None
    place: str


class RoutedMix(NamedTuple):
    """The weighted sum for each token."""

    value: str
    choices: str
    weights: str


Part = (
    RoutedFlat
    | RoutedRepeat
    | RoutedOneHot
    | RoutedCounts
    | RoutedEnds
    | RoutedOrder
    | RoutedIds
    | RoutedTokens
    | RoutedInverse
    | RoutedRow
    | RoutedShare
    | RoutedMade
    | RoutedMix
)

SORTED, CHOICES, SLOTS = "sorted", "choices", "slots"
"""Places of what was made."""
