"""The cluster and what its devices do. Enters: a simulated plan. Leaves: a table of levels and
links, and for each way in which units are laid out its parallelism matrix and a drawing: boxes in
boxes, a cell for each device, labelled and coloured by what the device works on.

What lies along the factors of one role is numbered as parts of a split are, the outermost factor
the most significant. Members of a large level that differ only in their samples or copies are
drawn once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.cluster.model import Cluster, Link
from meshwright.foundation.integers import from_digits, to_digits
from meshwright.foundation.units import format_bandwidth, format_gibibytes, format_seconds
from meshwright.parallel.layout import IDLE, REPLICA, Factor, Layout, matrix
from meshwright.parallel.units import SAMPLE
from meshwright.plan.model import Plan
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.search.baselines.roles import work
from meshwright.simulate.costs import occupancies
from meshwright.simulate.simulation import Simulation

SEAT = "seat"
"""The role of factors along which a unit sits at one coordinate, as the stages of a pipeline."""

KINDS_SHOWN = 4
"""Ways to lie on the machine that are drawn, those with the most work first."""

MOST = 8
"""Members of a level that are drawn each by itself."""

FEWEST = 6
"""Of the runs of members that are alike so many are drawn, if there are too many."""

COLOURS = 8


class Kind(NamedTuple):
    """Units that are laid out alike but for where they sit."""

    roles: tuple[str, ...]
    """For each factor; a factor along which units sit has the role `SEAT`."""
    share: float
    """Of the work."""
    units: int


class Role(NamedTuple):
    """What some factors of the machine do together."""

    name: str
    factors: tuple[int, ...]
    ways: int


def kinds_of(plan: Plan) -> list[Kind]:
    """The ways in which units lie on the machine, those with the most work first."""
    whole = sum(map(work, plan.units))
    shares: dict[tuple[str, ...], tuple[float, int]] = {}
    for unit in plan.units:
        roles = tuple(
            SEAT if role.startswith(IDLE) else role for role in plan.layout[unit.name].roles
        )
        share, count = shares.get(roles, (0.0, 0))
        own = work(unit) / whole if whole else 1 / len(plan.units)
        shares[roles] = share + own, count + 1
    found = [Kind(roles, share, count) for roles, (share, count) in shares.items()]
    return sorted(found, key=lambda own: (-own.share, -own.units))


def roles_of(kind: Kind, own: Sequence[Factor]) -> list[Role]:
    """The roles of a kind: where units sit first, copies last."""
    order = {SEAT: -1, SAMPLE: 1, REPLICA: 2}
    found = []
    for name in sorted(dict.fromkeys(kind.roles), key=lambda name: order.get(name, 0)):
        numbers = tuple(n for n, role in enumerate(kind.roles) if role == name)
        ways = 1
        for number in numbers:
            ways *= own[number].size
        found.append(Role(name, numbers, ways))
    return found


def part_of(role: Role, digits: Sequence[int], own: Sequence[Factor]) -> int:
    """Which part of a role a device with these coordinates works on."""
    sizes = [own[number].size for number in role.factors]
    return from_digits([digits[number] for number in role.factors], sizes)


def machine_section(simulation: Simulation) -> Markup:
    """The levels with their links, and the drawings."""
    plan = simulation.plan
    kinds = kinds_of(plan)
    drawings = [_kind(plan, own, number) for number, own in enumerate(kinds[:KINDS_SHOWN])]
    rest = len(kinds) - KINDS_SHOWN
    more = f"{rest} more ways to lie on the machine are in the graph below." if rest > 0 else ""
    device = plan.cluster.device
    return joined(
        [
            element(
                "p",
                f"{plan.cluster.devices} devices ({device.name}, "
                f"{format_gibibytes(device.memory)} each). Each level of the machine splits some "
                "dimension of an operator, copies it, or holds it at one seat (as the stages of a "
                "pipeline); a device is named by the part that it works on.",
            ),
            _levels(simulation),
            *drawings,
            element("p", more, class_="note"),
        ]
    )


def _levels(simulation: Simulation) -> Markup:
    """Every link with how busy it is."""
    cluster = simulation.plan.cluster
    busy = {own.kind: own.busiest_share for own in occupancies(simulation)}
    rows = [
        (
            f"{level.cardinality} {level.name}",
            link.name,
            f"one per {link.per}",
            _rate(link),
            format_seconds(link.latency),
            bar(busy.get(f"{level.name}/{link.name}", 0.0), _busy(busy, level.name, link.name)),
        )
        for level in cluster.levels
        for link in level.links
    ]
    heads = ("level", "link", "shared", "bandwidth>", "latency>", "busiest one is busy (predicted)")
    return table(heads, rows, f"Levels of {cluster.name}, the outermost first, and their links")


def _rate(link: Link) -> str:
    if link.out == link.into:
        return f"{format_bandwidth(link.out)}{' both ways' if link.duplex == 'half' else ''}"
    return f"{format_bandwidth(link.out)} out, {format_bandwidth(link.into)} in"


def _busy(busy: dict[str, float], level: str, link: str) -> str:
    share = busy.get(f"{level}/{link}")
    return "never" if not share else f"{share:.1%}"


def _kind(plan: Plan, kind: Kind, number: int) -> Markup:
    """One way to lie on the machine: its matrix and its drawing."""
    roles = roles_of(kind, plan.factors)
    title = f"{kind.share:.0%} of the work, {kind.units} of {len(plan.units)} units"
    picture = _Picture(plan.cluster, plan.factors, roles)
    return element(
        "details",
        element("summary", element("strong", ", ".join(map(_named, roles))), f" — {title}"),
        element("div", _matrix(plan.cluster, kind, roles), picture.legend(), class_="side"),
        picture.drawn(),
        class_="kind",
        open=number == 0,
    )


def _named(role: Role) -> str:
    return f"{role.name} {role.ways}"


def _matrix(cluster: Cluster, kind: Kind, roles: Sequence[Role]) -> Markup:
    """P²'s parallelism matrix: how many ways each level splits each role."""
    found = matrix(Layout(kind.roles), cluster)
    heads = ("role", *(f"{name}>" for name in cluster.level_names), "ways>")
    rows = [(own.name, *map(str, found[own.name]), str(own.ways)) for own in roles]
    return table(heads, rows, "Parallelism matrix")


class _Picture:
    """Boxes in boxes, a cell for each device."""

    def __init__(self, cluster: Cluster, own: Sequence[Factor], roles: Sequence[Role]) -> None:
        self.cluster, self.own, self.roles = cluster, own, roles
        self.levels = [
            [n for n, factor in enumerate(own) if factor.level == depth]
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
        order = " · ".join(role.name for role in self.roles)
        return element(
            "div",
            element("p", "A cell reads ", element("code", order), ", counted from 0."),
            element("p", "Colour by: ", *buttons, class_="choices"),
        )

    def drawn(self) -> Markup:
        """The whole machine."""
        inside = self._inside(0, {})
        title = element("span", self.cluster.name, class_="title")
        return element("div", element("div", title, inside, class_="box"), class_="machine scroll")

    def _inside(self, depth: int, digits: dict[int, int]) -> Markup:
        """The members of a level, with its links above them."""
        level = self.cluster.levels[depth]
        links = element("div", " · ".join(link.name for link in level.links), class_="links")
        parts = []
        for members in self._runs(depth):
            if not members:
                parts.append(element("span", "…", class_="gap", aria_hidden="true"))
                continue
            at = digits | self._digits(depth, members[0])
            parts.append(self._member(depth, members, at))
        innermost = depth == len(self.cluster.levels) - 1
        return joined([links, element("div", *parts, class_="cells" if innermost else "boxes")])

    def _member(self, depth: int, members: Sequence[int], at: dict[int, int]) -> Markup:
        name = self.cluster.levels[depth].name
        if depth < len(self.cluster.levels) - 1:
            title = f"{name} {ranges(members)}"
            title += f" ({len(members)} alike)" if len(members) > 1 else ""
            inside = self._inside(depth + 1, at)
            return element("div", element("span", title, class_="title"), inside, class_="box")
        numbers = [part_of(role, self._all(at), self.own) for role in self.roles]
        pairs = zip(self.roles, numbers, strict=True)
        words = ", ".join(f"{role.name} {number}" for role, number in pairs)
        more = f" ×{len(members)}" if len(members) > 1 else ""
        return element(
            "span",
            "·".join(map(str, numbers)) + more,
            class_=f"cell c{numbers[0] % COLOURS}" if numbers else "cell c0",
            data_parts=" ".join(map(str, numbers)),
            title=f"{name} {ranges(members)}: {words or 'everything'}",
        )

    def _all(self, at: dict[int, int]) -> list[int]:
        return [at[number] for number in range(len(self.own))]

    def _digits(self, depth: int, member: int) -> dict[int, int]:
        numbers = self.levels[depth]
        digits = to_digits(member, [self.own[number].size for number in numbers])
        return dict(zip(numbers, digits, strict=True))

    def _runs(self, depth: int) -> Iterator[tuple[int, ...]]:
        """The members that one is drawn for; an empty run stands for those left out."""
        count = self.cluster.levels[depth].cardinality
        if count <= MOST:
            yield from ((member,) for member in range(count))
            return
        telling = [role for role in self.roles if role.name not in (SAMPLE, REPLICA)]
        runs: dict[tuple[int, ...], list[int]] = {}
        for member in range(count):
            digits = self._digits(depth, member)
            full = [digits.get(number, 0) for number in range(len(self.own))]
            key = tuple(part_of(role, full, self.own) for role in telling)
            runs.setdefault(key, []).append(member)
        found = [tuple(own) for own in runs.values()]
        yield from found[:FEWEST] if len(found) > MOST else found
        if len(found) > MOST:
            yield ()
            yield found[-1]


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
