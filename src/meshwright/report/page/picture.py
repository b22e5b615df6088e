"""Device mesh diagram: nested boxes of levels, each device coloured by its shard. Enters: a
cluster, its factors, their roles. Leaves: markup.

What lies along the factors of one role is numbered as parts of a split are, the outermost factor
the most significant. Members of a large level that differ only in their samples or copies are
drawn once, and a star stands for the parts in which they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.base.integers import from_digits, to_digits
from meshwright.cluster.cluster import Cluster
from meshwright.report.page.markup import Markup, element, joined
from meshwright.sharding.layout import REPLICA, MeshFactor
from meshwright.sharding.unit import SAMPLE

MOST, MOST_CELLS = 8, 16
"""Members of a level, and of the innermost one, that are drawn each by itself."""

FEWEST = 6
"""Of the runs of members that are alike so many are drawn, if there are too many."""

COLOURS, PATTERNS = 8, 4
"""Parts are told apart by so many colours, and beyond them by so many patterns on each."""


class Role(NamedTuple):
    """What some factors of the machine do together."""

    name: str
    factors: tuple[int, ...]
    ways: int


class At(NamedTuple):
    """Devices: the coordinates of the first, and the factors along which the others lie."""

    digits: dict[int, int]
    varied: frozenset[int]

    def part(self, role: Role, factors: Sequence[MeshFactor]) -> int:
        """Which part of a role the first of them works on."""
        sizes = [factors[number].size for number in role.factors]
        return from_digits([self.digits.get(number, 0) for number in role.factors], sizes)

    def words(self, role: Role, factors: Sequence[MeshFactor]) -> str:
        """Which part of a role they work on, or that it differs."""
        return "*" if self.varied.intersection(role.factors) else str(self.part(role, factors))


class Picture:
    """Boxes in boxes."""

    def __init__(
        self, cluster: Cluster, factors: Sequence[MeshFactor], roles: Sequence[Role]
    ) -> None:
        self.cluster, self.own, self.roles = cluster, factors, roles
        self.levels = [
            [n for n, factor in enumerate(factors) if factor.level == depth]
            for depth in range(len(cluster.levels))
        ]

    def legend(self) -> Markup:
        """What the numbers in a cell mean, and by which of them cells are coloured."""
        buttons = [
            element(
                "button",
                role.name,
                type="button",
                data_role=str(number),
                aria_pressed="true" if number == 0 else "false",
            )
            for number, role in enumerate(self.roles)
        ]
        order = "·".join(role.name for role in self.roles)
        words = ", counted from 0; a star stands for any."
        return element(
            "div",
            element("p", "A cell reads ", element("code", order), words),
            element("p", "Colour by: ", *buttons, class_="choices"),
        )

    def drawn(self) -> Markup:
        """The whole machine."""
        title = element("span", self.cluster.name, class_="title")
        whole = self._inside(0, At({}, frozenset()))
        return element("div", element("div", title, whole, class_="box"), class_="machine scroll")

    def _inside(self, depth: int, at: At) -> Markup:
        """The members of a level, with its links above them."""
        level = self.cluster.levels[depth]
        innermost = depth == len(self.cluster.levels) - 1
        links = element("div", " · ".join(link.name for link in level.links), class_="links")
        parts = [self._member(depth, members, at) for members in self._runs(depth)]
        return joined([links, element("div", *parts, class_="cells" if innermost else "boxes")])

    def _member(self, depth: int, members: Sequence[int], outer: At) -> Markup:
        if not members:
            return element("span", "…", class_="gap", aria_hidden="true")
        at = self._at(depth, members, outer)
        name = f"{self.cluster.levels[depth].name} {ranges(members)}"
        if depth == len(self.cluster.levels) - 1:
            return self._cell(name, at)
        title = f"{name} ({len(members)} alike)" if len(members) > 1 else name
        inside = self._inside(depth + 1, at)
        return element("div", element("span", title, class_="title"), inside, class_="box")

    def _cell(self, name: str, at: At) -> Markup:
        texts = [at.words(role, self.own) for role in self.roles]
        first = [at.part(role, self.own) for role in self.roles]
        pairs = zip(self.roles, texts, strict=True)
        words = ", ".join(f"{role.name} {text}" for role, text in pairs)
        return element(
            "span",
            "·".join(texts),
            class_=f"cell {colours_of(first[0] if first else 0)}",
            data_parts=" ".join(map(str, first)),
            title=f"{name}: {words or 'everything'}",
        )

    def _at(self, depth: int, members: Sequence[int], outer: At) -> At:
        """Members of a level, inside of what they lie in."""
        digits = [self._digits(depth, member) for member in members]
        varied = {
            n for n in self.levels[depth] if len({coordinates[n] for coordinates in digits}) > 1
        }
        return At(outer.digits | digits[0], outer.varied | varied)

    def _digits(self, depth: int, member: int) -> dict[int, int]:
        numbers = self.levels[depth]
        digits = to_digits(member, [self.own[number].size for number in numbers])
        return dict(zip(numbers, digits, strict=True))

    def _runs(self, depth: int) -> Iterator[tuple[int, ...]]:
        """The members that one is drawn for; an empty run stands for those left out."""
        count = self.cluster.levels[depth].cardinality
        most = MOST_CELLS if depth == len(self.cluster.levels) - 1 else MOST
        if count <= most:
            yield from ((member,) for member in range(count))
            return
        telling = [role for role in self.roles if role.name not in (SAMPLE, REPLICA)]
        runs: dict[tuple[int, ...], list[int]] = {}
        for member in range(count):
            at = At(self._digits(depth, member), frozenset())
            runs.setdefault(tuple(at.part(role, self.own) for role in telling), []).append(member)
        all_runs = [tuple(run) for run in runs.values()]
        yield from all_runs[:FEWEST] if len(all_runs) > most else all_runs
        if len(all_runs) > most:
            yield ()
            yield all_runs[-1]


def colours_of(part: int) -> str:
    """The classes of a cell by the part that it works on.

    >>> colours_of(3), colours_of(11)
    ('c3', 'c3 p1')
    """
    pattern = part // COLOURS % PATTERNS
    return f"c{part % COLOURS} p{pattern}" if pattern else f"c{part % COLOURS}"


def ranges(numbers: Sequence[int]) -> str:
    """Numbers that ascend, those in a row by the first and the last.

    >>> ranges([0, 1, 2]), ranges([0, 4, 8, 12])
    ('0-2', '0, 4, ... 12')
    """
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0])
    if len(numbers) <= 2:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
