"""Rows of prices against the pricer, by hand, and through the task graph where links are shared."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import BytesPerSecond
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.collective import Collective, Movement
from meshwright.cost.pattern import Digit, Pattern, PatternUse, groups
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import ALL_REDUCE, NAMES
from meshwright.sharding.states import WHOLE, at
from meshwright.simulate import full
from meshwright.simulate.collective_implementations import CollectiveWay
from meshwright.simulate.collective_table import (
    OPERATIONS,
    CollectivePrices,
    pattern_number,
    price,
)
from meshwright.simulate.resources import places, subcube
from support.strategies import DEVICE, clusters
from task_graphs import task_graph

MEMBER, EVERY, FIRST = PatternUse.MEMBER, PatternUse.EVERY, PatternUse.FIRST

NODES = Cluster(
    name="nodes",
    levels=(
        Level(
            name="node",
            cardinality=4,
            links=(
                Link(
                    name="nic", per="node", out=BytesPerSecond(12.5e9), into=BytesPerSecond(12.5e9)
                ),
            ),
        ),
        Level(
            name="gpu",
            cardinality=8,
            links=(
                Link(name="port", per="gpu", out=BytesPerSecond(3e11), into=BytesPerSecond(3e11)),
            ),
        ),
    ),
    device=DEVICE,
    machine="node",
)
GIB = float(1 << 30)


def pattern_of(cluster: Cluster, inside: int, every: int) -> Pattern:
    digits: list[list[Digit]] = [[] for _ in cluster.levels]
    for f, factor in enumerate(factors(cluster)):
        use = MEMBER if inside >> f & 1 else EVERY if every >> f & 1 else FIRST
        digits[factor.level].append(Digit(factor.size, use))
    return tuple(map(tuple, digits))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Cluster, int, int]:
    """A cluster, the factors of a group and those beside."""
    cluster = draw(clusters(3).filter(lambda candidate: candidate.devices > 1))
    uses = [draw(st.sampled_from((MEMBER, EVERY, FIRST))) for _ in factors(cluster)]
    uses[draw(st.integers(0, len(uses) - 1))] = MEMBER
    inside, every = (sum(1 << f for f, u in enumerate(uses) if u is w) for w in (MEMBER, EVERY))
    return cluster, inside, every


def named(prices: CollectivePrices, way: int) -> list[tuple[str, float]]:
    return list(zip(prices.kinds, prices.table.busy[way].tolist(), strict=True))


def rows(prices: CollectivePrices, operation: int, inside: int, every: int) -> list[CollectiveWay]:
    """All ways of a row, from the arrays; times in nanoseconds."""
    prices.fill(operation, inside, every)
    table = prices.table
    number = pattern_number(table, inside, every)
    first, count = int(table.row[operation, number]), int(table.ways[operation, number])
    return [
        CollectiveWay(
            fixed=float(table.fixed[w]),
            slope=float(table.slope[w]),
            busy=tuple(((0, kind), float(slope)) for kind, slope in named(prices, w) if slope),
            moved=float(table.moved[w]),
        )
        for w in range(first, first + count)
    ]


@given(drawn(), st.sampled_from(range(len(NAMES))), st.booleans())
def test_one_collective_is_what_the_pricer_says(
    case: tuple[Cluster, int, int], operation: int, best: bool
) -> None:
    cluster, inside, every = case
    kind = OPERATIONS[operation]
    pricer = Pricer(cluster, algorithm="best" if best else "ring")
    prices = CollectivePrices(pricer, programs=False)
    ways = rows(prices, operation, inside, every)
    if kind is Movement.SEND:
        outermost = min(f.level for i, f in enumerate(factors(cluster)) if inside >> i & 1)
        inside = sum(
            1 << i
            for i, f in enumerate(factors(cluster))
            if f.level == outermost and inside >> i & 1
        )
    lines = pricer.lines(kind, pattern_of(cluster, inside, every))
    for way, line in zip(ways, lines, strict=False):
        assert way.fixed == pytest.approx(line.fixed * 1e9, rel=1e-12)
        assert way.slope == pytest.approx(line.per_byte * 1e9, rel=1e-12)
        expected = {
            f"{cluster.levels[level].name}/{link}": slope * 1e9
            for (level, link), slope in line.busy
            if slope and kind is not Movement.SEND  # On channels of their own.
        }
        assert {name: slope for (_, name), slope in way.busy} == pytest.approx(expected, rel=1e-12)
    assert len(ways) == len(lines)


STEPWISE = (
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.REDUCE,
    Collective.BROADCAST,
)


@given(drawn(), st.sampled_from(STEPWISE))
def test_steps_are_along_all_factors_and_add_up(
    case: tuple[Cluster, int, int], kind: Collective
) -> None:
    cluster, inside, every = case
    operation = OPERATIONS.index(kind)
    one, *others = CollectivePrices(Pricer(cluster)).ways(operation, inside, every)
    assert not one.steps
    for way in others:
        assert len(way.steps) > 1
        assert sorted(place for step in way.steps for place in step) == list(
            range(inside.bit_count())
        )
        if kind in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER):
            assert way.moved == pytest.approx(one.moved)


def test_halving_takes_less_to_begin() -> None:
    """128 nodes of 8: 7 steps over two nodes each instead of 127 hops of a ring."""
    cluster = Cluster.named("dgx-a100", node=128)
    prices, everyone = CollectivePrices(Pricer(cluster)), (1 << len(factors(cluster))) - 1
    _, by_level, finer = prices.ways(OPERATIONS.index(Collective.ALL_GATHER), everyone, 0)
    assert by_level.steps == ((0, 1, 2, 3, 4, 5, 6), (7, 8, 9))
    assert finer.steps == ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,), (8, 9))
    hop, link, launch = 14e-6, 3.4e-6, 8.4e-6
    assert by_level.fixed == pytest.approx(launch + 127 * hop + launch + 7 * link)
    assert finer.fixed == pytest.approx(7 * (launch + hop) + 2 * launch + (1 + 3) * link)
    assert finer.slope == pytest.approx(by_level.slope)


@given(drawn(), drawn())
def test_rows_are_shared_only_by_what_costs_the_same(
    case: tuple[Cluster, int, int], other: tuple[Cluster, int, int]
) -> None:
    cluster, inside, every = case
    mask = (1 << len(factors(cluster))) - 1
    within, beside = other[1] & mask, other[2] & mask
    table, pricer = CollectivePrices(Pricer(cluster)).table, Pricer(cluster)
    same = pattern_number(table, inside, every) == pattern_number(table, within, beside)
    one, two = pattern_of(cluster, inside, every), pattern_of(cluster, within, beside)
    if same:
        assert pricer.signature(one) == pricer.signature(two)
    assert pattern_number(table, inside, every) < table.row.shape[1]


@given(drawn(), st.sampled_from((1.0, 4096.0, 1e6, 1e9)))
def test_the_cheapest_way_is_taken(case: tuple[Cluster, int, int], held: float) -> None:
    cluster, inside, every = case
    prices = CollectivePrices(Pricer(cluster, algorithm="best"))
    for operation in range(len(NAMES)):
        way = prices.way(operation, inside, every, held)
        busy = np.zeros(len(prices.kinds))
        time, moved = price(prices.table, operation, inside, every, held, busy)
        ways = rows(prices, operation, inside, every)
        assert time == pytest.approx(
            min(candidate.fixed + candidate.slope * held for candidate in ways)
        )
        assert time == pytest.approx((way.fixed + way.slope * held) * 1e9)
        tied = [
            candidate
            for candidate in ways
            if candidate.fixed + candidate.slope * held == pytest.approx(time)
        ]
        assert moved in [pytest.approx(candidate.moved * held) for candidate in tied]
        assert busy.sum() in [
            pytest.approx(sum(b for _, b in candidate.busy) * held) for candidate in tied
        ]


def test_an_empty_row_says_so() -> None:
    table = CollectivePrices(Pricer(NODES)).table
    assert price(table, ALL_REDUCE, 1, 0, 1.0, np.zeros(3)) == (-1.0, 0.0)


PROGRAMMED = (NODES, *(Cluster.named(n, node=2) for n in ("dgx-a100", "gcp-v100", "summit")))


def test_a_sum_is_never_dearer_than_one_all_reduce() -> None:
    better = 0
    for cluster in PROGRAMMED:
        pricer = Pricer(cluster, algorithm="best")
        prices, everyone = CollectivePrices(pricer), (1 << len(factors(cluster))) - 1
        for inside, every in ((0b1, 0), (0b1, 0b10), (0b11, 0b100), (everyone, 0), (0b110, 0b1)):
            lines = pricer.lines(Collective.ALL_REDUCE, pattern_of(cluster, inside, every))
            for held in (1024.0, 1e6, GIB):
                way = prices.way(ALL_REDUCE, inside, every, held)
                alone, cost = min(line.at(held) for line in lines), way.fixed + way.slope * held
                assert cost <= alone
                assert (way.program is None) == (cost == alone)
                better += cost < alone
    assert better > 0, "no program is ever better"


def by_hand(
    kind: Collective, node: PatternUse, gpu: PatternUse, share: float, held: float
) -> float:
    """One level's step: all nodes or GPUs are members, the other level as told."""
    line = min(
        Pricer(NODES).lines(kind, ((Digit(4, node),), (Digit(8, gpu),))),
        key=lambda candidate: candidate.per_byte,
    )
    return line.at(held * share)


@pytest.mark.parametrize("held", [1e3, 1e9])
@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        (Collective.REDUCE_SCATTER, [(EVERY, MEMBER, 1.0), (MEMBER, EVERY, 1 / 8)]),
        (Collective.ALL_GATHER, [(MEMBER, EVERY, 1.0), (EVERY, MEMBER, 4.0)]),
        (Collective.BROADCAST, [(MEMBER, FIRST, 1.0), (EVERY, MEMBER, 1.0)]),
        (Collective.REDUCE, [(EVERY, MEMBER, 1.0), (MEMBER, FIRST, 1.0)]),
    ],
)
def test_one_collective_a_level(
    kind: Collective, steps: list[tuple[PatternUse, PatternUse, float]], held: float
) -> None:
    prices = CollectivePrices(Pricer(NODES))
    way = by_level(prices, kind)
    expected = sum(by_hand(kind, node, gpu, share, held) for node, gpu, share in steps)
    assert way.fixed + way.slope * held == pytest.approx(expected, rel=1e-12)


def by_level(prices: CollectivePrices, kind: Collective) -> CollectiveWay:
    """The way with one step for each of two levels."""
    ways = prices.ways(OPERATIONS.index(kind), 0b11111, 0)
    return next(way for way in ways if len(way.steps) == 2)


def test_one_collective_a_level_in_seconds() -> None:
    """ReduceScatter of 1 GB on 4 x 8: 7/8 GB at 300 GB/s; then 8 groups, 3/4 of 1/8 GB each."""
    way = by_level(CollectivePrices(Pricer(NODES)), Collective.REDUCE_SCATTER)
    assert way.slope * 1e9 == pytest.approx(7 / 8 / 300 + 8 * (3 / 4) * (1 / 8) / 12.5)


@given(drawn())
def test_bytes_that_leave_devices(case: tuple[Cluster, int, int]) -> None:
    """By what each member must receive at least, if it holds one byte or gets a part of it."""
    cluster, inside, every = case
    prices = CollectivePrices(Pricer(cluster), programs=False)
    device_groups = groups(pattern_of(cluster, inside, every))
    n, count = len(device_groups[0]), len(device_groups)
    for operation, each in {
        "AllReduce": 2 * (n - 1),
        "ReduceScatter": n - 1,
        "AllGather": n * (n - 1),
        "Broadcast": n - 1,
        "Reduce": n - 1,
        "AllToAll": n - 1,
        "Scatter": (n - 1) / n,
        "Gather": n - 1,
        "Send": 1,
        "Shift": n - 1,
    }.items():
        way = rows(prices, NAMES.index(operation), inside, every)[0]
        assert way.moved == pytest.approx(count * each)


NODE_FACTORS, GPU_FACTORS = 0b00011, 0b11100


def test_eight_sums_at_once_share_a_card_as_one_pattern() -> None:
    prices = CollectivePrices(Pricer(NODES, algorithm="best"))
    together = prices.way(ALL_REDUCE, NODE_FACTORS, GPU_FACTORS, GIB)
    alone = prices.way(ALL_REDUCE, NODE_FACTORS, 0, GIB)
    assert together.fixed + together.slope * GIB == pytest.approx(1.0308, rel=1e-3)
    assert alone.fixed + alone.slope * GIB == pytest.approx(0.12885, rel=1e-3)


@pytest.mark.parametrize(("count", "seconds"), [(1, 0.12885), (8, 1.0308)])
def test_eight_sums_at_once_share_a_card_as_tasks(count: int, seconds: float) -> None:
    prices = CollectivePrices(Pricer(NODES, algorithm="best"))
    way = prices.way(ALL_REDUCE, NODE_FACTORS, 0, GIB)
    classes = places(NODES, [True] * 5)
    duration = round((way.fixed + way.slope * GIB) * 1e9)
    holds = [0] * len(prices.kinds)
    for (level, link), slope in way.busy:
        holds[prices.kinds.index(f"{NODES.levels[level].name}/{link}")] = math.ceil(
            slope * GIB * 1e9
        )
    cubes = []
    for gpu in range(count):
        digits = (gpu >> 2 & 1, gpu >> 1 & 1, gpu & 1)
        roles = np.array([WHOLE, WHOLE, *map(at, digits)], np.int8)
        cubes.append(int(subcube(roles, classes.radix)))
    sets = [
        classes.set_resource[classes.set_start[c] : classes.set_start[c + 1]].tolist()
        for c in cubes
    ]
    graph = task_graph(
        edges=[],
        duration=[duration] * count,
        places=[[i] for i in range(count)],
        sets=sets,
        kinds=classes.kind.tolist(),
        joint=[True] * count,
        hold=[holds] * count,
    )
    assert full.simulate(graph).makespan / 1e9 == pytest.approx(seconds, rel=1e-3)
