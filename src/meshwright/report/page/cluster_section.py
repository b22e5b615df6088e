"""HTML section of the cluster: levels, links and the parallelism matrix of each layout. Enters: a
simulated plan. Leaves: a table of levels and links, and for each way in which units are laid out
its parallelism matrix and its `picture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.base.quantities import format_bandwidth, format_gibibytes, format_seconds
from meshwright.baselines.roles import work
from meshwright.cluster.cluster import Cluster, Link
from meshwright.explain.utilisation import occupancies
from meshwright.plan.plan import Plan
from meshwright.report.outline import STAGE, UNUSED
from meshwright.report.page.markup import Markup, bar, element, joined, table
from meshwright.report.page.picture import Picture, Role
from meshwright.sharding.layout import IDLE, REPLICA, Layout, MeshFactor, matrix
from meshwright.sharding.unit import SAMPLE
from meshwright.simulate.simulation import Simulation

KINDS_SHOWN = 4
"""Ways to lie on the machine that are drawn, those with the most work first."""


class DeviceKind(NamedTuple):
    """Units that are laid out alike but for where they sit."""

    roles: tuple[str, ...]
    """For each factor; along those at which units sit they have the role STAGE, or UNUSED if all
    sit at one coordinate."""
    share: float
    """Of the work."""
    units: int


def layout_kinds(plan: Plan) -> list[DeviceKind]:
    """The ways in which units lie on the machine, those with the most work first."""
    whole = sum(map(work, plan.units))
    places = zip(*(layout.coordinates() for layout in plan.layout.values()), strict=True)
    seats = [STAGE if len(set(coordinates)) > 1 else UNUSED for coordinates in places]
    shares: dict[tuple[str, ...], tuple[float, int]] = {}
    for unit in plan.units:
        pairs = zip(plan.layout[unit.name].roles, seats, strict=True)
        roles = tuple(seat if role.startswith(IDLE) else role for role, seat in pairs)
        share, count = shares.get(roles, (0.0, 0))
        part = work(unit) / whole if whole else 1 / len(plan.units)
        shares[roles] = share + part, count + 1
    kinds = [DeviceKind(roles, share, count) for roles, (share, count) in shares.items()]
    return sorted(kinds, key=lambda kind: (-kind.share, -kind.units))


def roles_of(kind: DeviceKind, factors: Sequence[MeshFactor]) -> list[Role]:
    """The roles of a kind: where units sit first, copies last."""
    order = {STAGE: -1, SAMPLE: 1, REPLICA: 2, UNUSED: 3}
    roles = []
    for name in sorted(dict.fromkeys(kind.roles), key=lambda name: order.get(name, 0)):
        numbers = tuple(n for n, role in enumerate(kind.roles) if role == name)
        ways = 1
        for number in numbers:
            ways *= factors[number].size
        roles.append(Role(name, numbers, ways))
    return roles


def machine_section(simulation: Simulation) -> Markup:
    """The levels with their links, and the drawings."""
    plan = simulation.plan
    kinds = layout_kinds(plan)
    drawings = [_kind(plan, kind, number) for number, kind in enumerate(kinds[:KINDS_SHOWN])]
    rest = len(kinds) - KINDS_SHOWN
    more = f"{rest} more ways to lie on the machine are in the graph below." if rest > 0 else ""
    device = plan.cluster.device
    return joined(
        [
            element(
                "p",
                f"{plan.cluster.devices} devices ({device.name}, "
                f"{format_gibibytes(device.memory)} each). Each level of the machine splits some "
                "dimension of an operator, copies it, or tells stages apart; a device is named "
                "by the part that it works on.",
            ),
            _levels(simulation),
            *drawings,
            element("p", more, class_="note"),
        ]
    )


def _levels(simulation: Simulation) -> Markup:
    """Every link with how busy it is."""
    cluster = simulation.plan.cluster
    busy = {occupancy.kind: occupancy.busiest_share for occupancy in occupancies(simulation)}
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


def _kind(plan: Plan, kind: DeviceKind, number: int) -> Markup:
    """One way to lie on the machine: its matrix and its drawing."""
    roles = roles_of(kind, plan.factors)
    title = f"{kind.share:.0%} of the work, {kind.units} of {len(plan.units)} units"
    picture = Picture(plan.cluster, plan.factors, roles)
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


def _matrix(cluster: Cluster, kind: DeviceKind, roles: Sequence[Role]) -> Markup:
    """P²'s parallelism matrix: how many ways each level splits each role."""
    degrees = matrix(Layout(kind.roles), cluster)
    heads = ("role", *(f"{name}>" for name in cluster.level_names), "ways>")
    rows = [(role.name, *map(str, degrees[role.name]), str(role.ways)) for role in roles]
    return table(heads, rows, "Parallelism matrix")
