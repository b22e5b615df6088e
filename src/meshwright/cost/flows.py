"""Per-level traffic of a collective: who sends how much to whom, round by round. Enters: a shape
and how many members a group has at each level. Leaves: the transfers of each round of one group,
without listing its devices.

Members are numbered 0 ... n-1 by device number, outermost level first, so that an instance of a
level holds a run of consecutive members. A transfer is *of level u* if its ends share everything
above level u and differ in their position at u. For each level this module counts, in units of
one full transfer: what of it leaves and enters the busiest instance, what moves between the
instances of one container, and what leaves and enters an instance by transfers of its own level and
of all above, which share its outward ports. The innermost level is given by its transfers
themselves, because its wiring may distinguish positions. What a transfer costs is not known here.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, assert_never

from meshwright.cost.backend import Shape
from meshwright.cost.double_tree import crossings, tree_edges


class PortFlows(NamedTuple):
    """What leaves and enters the busiest instance of a level, for one group."""

    out: float
    into: float
    both: float
    """The largest sum of what leaves and what enters one instance."""


class LevelFlows(NamedTuple):
    """Transfers of one level, for one group."""

    out: float
    into: float
    both: float
    """The largest sum of what leaves and what enters one instance."""
    within: float
    """All of them inside one container, the busiest one."""
    among: tuple[float, ...] = ()
    """Where containers differ: all inside the busiest instance of each level above, and before
    those in the whole; empty where every container holds as many."""


class InnerFlows(NamedTuple):
    """Transfers that touch one instance of the level above the innermost, for one group.

    Members are numbered from 0 inside that instance.
    """

    edges: tuple[tuple[int, int], ...]
    exits: tuple[int, ...]
    entries: tuple[int, ...]
    edge_weight: float = 1.0
    exit_weight: float = 1.0


class Round(NamedTuple):
    """Everything that moves at the same time."""

    levels: tuple[LevelFlows, ...]
    leaving: tuple[PortFlows, ...]
    """For each level what leaves and enters its instances, whatever level the transfers are of."""
    inner: Callable[[], tuple[InnerFlows, ...]]
    """The different things that instances of the level above the innermost may go through; asked
    for only where the wiring makes positions differ."""
    everywhere: bool
    """Whether each container of a level sees the same, or only the first one anything."""
    hops: tuple[int, ...]
    """For each level how many of its transfers a piece of data goes through one after the other.
    Where each piece makes a single transfer, one for every level that has any."""
    single: bool = False
    """Whether each piece makes a single transfer: the slowest of `hops` counts, not their sum."""


class FlowPart(NamedTuple):
    """What the busiest member of a group does itself."""

    messages: int
    transfers: int
    """That it sends, or receives if those are more."""


NOTHING = LevelFlows(0, 0, 0, 0)
SILENCE = PortFlows(0, 0, 0)


def busiest_part(shape: Shape, members: int) -> FlowPart:
    """What a member does in each round of a shape.

    >>> busiest_part(Shape.RING, 4), busiest_part(Shape.SCATTER, 4)
    (FlowPart(messages=3, transfers=1), FlowPart(messages=3, transfers=3))
    """
    match shape:
        case Shape.RING:
            return FlowPart(members - 1, 1)
        case Shape.TREE:
            return FlowPart(2, 2) if members > 2 else FlowPart(1, 1)
        case Shape.GATHER | Shape.SCATTER | Shape.ALL_TO_ALL:
            return FlowPart(members - 1, members - 1)
        case Shape.CHAIN | Shape.BINOMIAL | Shape.SEND | Shape.SHIFT:
            return FlowPart(1, 1)
        case _:
            assert_never(shape)


def rounds(shape: Shape, sizes: tuple[int, ...], networked: int) -> Iterator[Round]:
    """The rounds of a shape over a group with `sizes[u]` members at level u.

    The first `networked` levels join machines; the others lie inside one.
    """
    match shape:
        case Shape.RING:
            yield _ring(sizes)
        case Shape.CHAIN:
            yield _ring(sizes, open_=True)
        case Shape.TREE:
            yield _tree(sizes, networked)
        case Shape.BINOMIAL:
            yield from _binomial(sizes)
        case Shape.GATHER:
            yield _gather(sizes)
        case Shape.SCATTER:
            yield _scatter(sizes)
        case Shape.ALL_TO_ALL:
            yield _all_to_all(sizes)
        case Shape.SEND:
            yield _send(sizes)
        case Shape.SHIFT:
            chain = _ring(sizes, open_=True)
            yield chain._replace(hops=_present(chain.levels), single=True)
        case _:
            assert_never(shape)


def _ring(sizes: tuple[int, ...], *, open_: bool = False) -> Round:
    """An open ring is a chain: the last member sends nothing back to the first."""
    outermost = next(u for u, size in enumerate(sizes) if size > 1)
    levels = tuple(
        LevelFlows(1, 1, 2 if closed or size > 2 else 1, size - 1 + closed) if size > 1 else NOTHING
        for size, closed in ((size, u == outermost and not open_) for u, size in enumerate(sizes))
    )
    leaving = tuple(
        PortFlows(1, 1, 2 if count > 2 or not open_ else 1) if count > 1 else SILENCE
        for count in _instances(sizes)
    )
    innermost, leaves = sizes[-1], outermost < len(sizes) - 1

    def inner() -> tuple[InnerFlows, ...]:
        path = tuple((i, i + 1) for i in range(innermost - 1))
        if not leaves:
            return (
                InnerFlows(path if open_ else (*path, (innermost - 1, 0)), exits=(), entries=()),
            )
        if open_ and math.prod(sizes[:-1]) == 2:
            return InnerFlows(path, (innermost - 1,), ()), InnerFlows(path, (), (0,))
        return (InnerFlows(path, exits=(innermost - 1,), entries=(0,)),)

    hops = tuple((size - 1) * math.prod(sizes[:u]) for u, size in enumerate(sizes))
    return Round(levels, leaving, inner, everywhere=True, hops=hops)


def _instances(sizes: tuple[int, ...]) -> Iterator[int]:
    """For each level on how many of its instances a group has members."""
    return accumulate(sizes, operator.mul)


def _tree(sizes: tuple[int, ...], networked: int) -> Round:
    """One double binary tree over all machines in their order, whatever joins them, and a chain
    inside each.
    """
    between = crossings(sizes[:networked])
    levels = [LevelFlows(it.out, it.out, 2 * it.out, it.among[-1], it.among) for it in between]
    leaving = [it.leaving for it in between]
    for size in sizes[networked:]:
        loads = [1.0, *[2.0] * (size - 2), 1.0] if size > 1 else [0.0]
        levels.append(LevelFlows(max(loads), max(loads), 2 * max(loads), 2 * (size - 1)))
        # The first of each container is joined to what is above.
        leaving.append(max((loads[0] + (leaving[-1] if leaving else 0.0), *loads[1:])))

    def inner() -> tuple[InnerFlows, ...]:
        if networked == len(sizes):
            return _tree_inner(math.prod(sizes), sizes[-1])
        down = tuple((i, i + 1) for i in range(sizes[-1] - 1))
        edges = down + tuple((b, a) for a, b in down)
        outside = leaving[-2] if len(sizes) > 1 else 0.0
        ends = (0,) if outside else ()
        return (InnerFlows(edges, ends, ends, exit_weight=outside),)

    hops = (*(it.hops for it in between), *(size - 1 for size in sizes[networked:]))
    ports = tuple(PortFlows(flow, flow, 2 * flow) for flow in leaving)
    return Round(tuple(levels), ports, inner, everywhere=True, hops=hops)


def _tree_inner(machines: int, length: int) -> tuple[InnerFlows, ...]:
    """What runs of `length` machines go through, each of them a member of the innermost level."""
    flows = []
    both = [edge for a, b in tree_edges(machines) for edge in ((a, b), (b, a))]
    for start in range(0, machines, length):
        run = range(start, start + length)
        inside = tuple((a - start, b - start) for a, b in both if a in run and b in run)
        exits = tuple(a - start for a, b in both if a in run and b not in run)
        entries = tuple(b - start for a, b in both if b in run and a not in run)
        flows.append(InnerFlows(inside, exits, entries, edge_weight=0.5, exit_weight=0.5))
    return tuple(flows)


def _gather(sizes: tuple[int, ...]) -> Round:
    levels = []
    for u, size in enumerate(sizes):
        held = math.prod(sizes[u + 1 :])
        moved = (size - 1) * held
        levels.append(LevelFlows(held, moved, moved, moved) if size > 1 else NOTHING)
    innermost, total = sizes[-1], math.prod(sizes)
    inside = (total // count for count in _instances(sizes))
    leaving = tuple(
        PortFlows(held, total - held, total - held) if held < total else SILENCE for held in inside
    )

    def inner() -> tuple[InnerFlows, ...]:
        first = InnerFlows(
            tuple((i, 0) for i in range(1, innermost)), (), (0,) * (total - innermost)
        )
        other = InnerFlows((), tuple(range(innermost)), ())
        return (first, other) if total > innermost else (first,)

    return Round(
        tuple(levels), leaving, inner, everywhere=False, hops=_present(levels), single=True
    )


def _scatter(sizes: tuple[int, ...]) -> Round:
    """A gather backwards."""
    gather = _gather(sizes)
    levels = tuple(flows._replace(out=flows.into, into=flows.out) for flows in gather.levels)
    leaving = tuple(flows._replace(out=flows.into, into=flows.out) for flows in gather.leaving)

    def inner() -> tuple[InnerFlows, ...]:
        return tuple(
            InnerFlows(tuple((b, a) for a, b in flows.edges), flows.entries, flows.exits)
            for flows in gather.inner()
        )

    return gather._replace(levels=levels, leaving=leaving, inner=inner)


def _all_to_all(sizes: tuple[int, ...]) -> Round:
    levels = []
    for u, size in enumerate(sizes):
        held = math.prod(sizes[u + 1 :])
        moved = (size - 1) * held * held
        levels.append(LevelFlows(moved, moved, 2 * moved, size * moved) if size > 1 else NOTHING)
    total, innermost = math.prod(sizes), sizes[-1]
    outside = total - innermost
    pairs = [held * (total - held) for held in (total // count for count in _instances(sizes))]
    leaving = tuple(PortFlows(count, count, 2 * count) for count in pairs)

    def inner() -> tuple[InnerFlows, ...]:
        edges = tuple((a, b) for a in range(innermost) for b in range(innermost) if a != b)
        ends = tuple(range(innermost)) if outside else ()
        return (InnerFlows(edges, ends, ends, exit_weight=outside),)

    return Round(tuple(levels), leaving, inner, everywhere=True, hops=_present(levels), single=True)


def _send(sizes: tuple[int, ...]) -> Round:
    outermost = next(u for u, size in enumerate(sizes) if size > 1)
    levels = [NOTHING] * len(sizes)
    levels[outermost] = LevelFlows(1, 1, 1, 1)
    leaving = tuple(PortFlows(1, 1, 1) if n > 1 else SILENCE for n in _instances(sizes))
    innermost, leaves = sizes[-1], outermost < len(sizes) - 1

    def inner() -> tuple[InnerFlows, ...]:
        if leaves:
            return InnerFlows((), (0,), ()), InnerFlows((), (), (innermost - 1,))
        return (InnerFlows(((0, innermost - 1),), (), ()),)

    return Round(
        tuple(levels), leaving, inner, everywhere=False, hops=_present(levels), single=True
    )


def _binomial(sizes: tuple[int, ...]) -> Iterator[Round]:
    """Round k: member i sends to member i + 2^k for i < 2^k.

    Transfers of level u stay inside the first container: a distance below the container's size
    has all its senders there, and any other distance leaves the container.
    """
    total, distance = math.prod(sizes), 1
    while distance < total:
        senders = min(distance, total - distance)
        levels = tuple(_binomial_level(sizes, u, distance, senders) for u in range(len(sizes)))
        counts = _instances(sizes)
        leaving = tuple(_binomial_port(total // n, n, distance, senders) for n in counts)
        inner = partial(_binomial_inner, sizes, distance, senders)
        yield Round(levels, leaving, inner, everywhere=False, hops=_present(levels), single=True)
        distance *= 2


def _present(levels: Sequence[LevelFlows]) -> tuple[int, ...]:
    return tuple(int(flows.within > 0) for flows in levels)


def _binomial_level(sizes: tuple[int, ...], u: int, distance: int, senders: int) -> LevelFlows:
    held = math.prod(sizes[u + 1 :])
    container = held * sizes[u]
    stay = max(0, min(senders, container - distance))
    """Senders below this bound reach a member of the same container."""
    out, into = [], []
    for q in range(sizes[u]):
        start, stop = q * held, (q + 1) * held
        inside = _overlap((start, stop), (0, stay))
        within = _overlap((start, stop - distance), (0, stay))
        out.append(inside - within)
        into.append(_overlap((start, stop), (distance, stay + distance)) - within)
    both = max(a + b for a, b in zip(out, into, strict=True))
    return LevelFlows(max(out), max(into), both, sum(out))


def _binomial_port(held: int, count: int, distance: int, senders: int) -> PortFlows:
    """Of `count` instances with so many members, the busiest.

    The first has most senders. Receivers are a run that begins in some instance and fills the next
    one if it goes on beyond that.
    """
    begins = distance // held
    out, into, both = 0, 0, 0
    for q in {0, begins, min(begins + 1, count - 1)}:
        start, stop = q * held, (q + 1) * held
        within = _overlap((start, stop - distance), (0, senders))
        leaves = _overlap((start, stop), (0, senders)) - within
        comes = _overlap((start, stop), (distance, distance + senders)) - within
        out, into, both = max(out, leaves), max(into, comes), max(both, leaves + comes)
    return PortFlows(out, into, both)


def _binomial_inner(sizes: tuple[int, ...], distance: int, senders: int) -> tuple[InnerFlows, ...]:
    innermost, flows = sizes[-1], []
    for start in range(0, math.prod(sizes), innermost):
        stop = start + innermost
        sending = range(start, min(stop, senders))
        edges = tuple((i - start, i + distance - start) for i in sending if i + distance < stop)
        exits = tuple(i - start for i in sending if i + distance >= stop)
        receiving = range(max(start, distance), min(stop, distance + senders))
        entries = tuple(j - start for j in receiving if j - distance < start)
        if edges or exits or entries:
            flows.append(InnerFlows(edges, exits, entries))
    return tuple(flows)


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
