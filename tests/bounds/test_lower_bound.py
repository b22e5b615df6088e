"""A bound that no plan beats: random plans, baselines, global optima, and what it rests on."""

from __future__ import annotations

from functools import cache
from itertools import chain, combinations, permutations, product
from math import prod

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.baselines import applicable
from meshwright.bounds import lower_bound as bounds_of
from meshwright.bounds.degrees import DegreeEnumerator
from meshwright.bounds.lower_bound import lower_bound
from meshwright.bounds.network_traffic import States, networks
from meshwright.bounds.pairwise_tables import _fractions, _least, _lying
from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.catalogue import catalogue_names
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import BACKENDS, Backend
from meshwright.cost.memory import Optimizer
from meshwright.cost.operator import OperatorPricer
from meshwright.exact.exhaustive import exhaustive
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import ALL_REDUCE
from meshwright.sharding.states import WHOLE
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import simulate
from support.plan_strategies import plans

SMALL = Cluster.named("summit", node=2)


@cache
def tiny(name: str, batch: int) -> OperatorGraph:
    """A model that several tests bound, captured once."""
    return load_model(f"zoo:{name}/tiny", batch).graph


@cache
def bound(graph: OperatorGraph, cluster: Cluster, optimizer: Optimizer, micro: int) -> float:
    return lower_bound(graph, cluster, optimizer=optimizer, micro_batches=(micro,)).seconds


@given(plans())
@settings(max_examples=150)
def test_no_random_plan_is_faster(plan: Plan) -> None:
    options = plan.options
    try:
        step = simulate(plan).prediction.step
    except InputError:  # Units of a stage that are not next to each other.
        reject()
    assert 0 < bound(plan.graph, plan.cluster, options.optimizer, options.micro_batches) <= step


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_no_baseline_of_a_real_model_is_faster(name: str) -> None:
    graph = tiny(name, 12)
    baselines = applicable(graph, SMALL)
    assert baselines
    for plan in baselines.values():
        options = plan.options
        least = bound(graph, SMALL, options.optimizer, options.micro_batches)
        assert 0 < least <= simulate(plan).prediction.step


def two_products() -> OperatorGraph:
    return parse_graph(
        """graph two
        input x: float32[n=4096, d=32]
        input t: int64[n=4096]
        parameter a: float32[o=64, i=32]
        parameter b: float32[o=16, i=64]
        operator first: p: float32[n=4096, d=64] = linear(x, a)
        operator second: r: float32[n=4096, d=16] = linear(p, b)
        operator loss: l: float32[] = cross_entropy_loss(r, t)
        output l
        loss l"""
    )


@pytest.mark.parametrize("sizes", [{"node": 1, "gpu": 2}, {"node": 1, "gpu": 3}])
def test_no_optimum_is_faster(sizes: dict[str, int]) -> None:
    cluster = Cluster.named("flexflow-p100", **sizes)
    graph = two_products()
    best = exhaustive(StepModel(graph, cluster)).nanoseconds / 1e9
    assert 0 < lower_bound(graph, cluster).seconds <= best


@pytest.mark.parametrize("name", ["alexnet", "dlrm", "nmt", "resnext-50", "llama3-8b", "t5-large"])
@pytest.mark.parametrize(("devices", "micro"), [(6, 1), (16, 1), (8, 2)])
def test_few_ways_stand_for_every_way(name: str, devices: int, micro: int) -> None:
    graph = tiny(name, 48)
    cutter = DegreeEnumerator(OperatorPricer(SMALL.device), devices, micro)
    for unit in {group.members: group for group in units(graph)}.values():
        few, every = cutter.few(unit), cutter.every(unit)
        for forward, backward, share in zip(
            every.forward, every.backward, every.share, strict=True
        ):
            beaten = (few.forward <= forward) & (few.backward <= backward) & (few.share <= share)
            assert np.any(beaten), f"{unit.name}: {forward} {backward} {share}"


def held(across: tuple[int, ...], states: States, positions: int) -> list[set[tuple[int, ...]]]:
    """What each position has of a tensor with CUT elements along each of two dims; positions are
    numbered by the parts of the splits in a row, then by copies.
    """
    elements: list[set[tuple[int, ...]]] = []
    for parts in product(*(range(degree) for degree in across)):
        spans = [range(CUT), range(CUT)]
        for split, state in enumerate(states):
            if state >= 0:
                size = len(spans[state]) // across[split]
                start = spans[state].start + parts[split] * size
                spans[state] = range(start, start + size)
        elements.append(set(product(*spans)))
    return elements + [set() for _ in range(positions - len(elements))]


CUT = 8
WAYS = [(a, b, c) for a, b, c in product((1, 2, 4), repeat=3) if a * b * c <= 4]
STATES: tuple[States, ...] = ((0, 1), (1, 0), (0, WHOLE), (WHOLE, 1), (0, 0))


@pytest.mark.parametrize("made", STATES)
@pytest.mark.parametrize("needed", STATES)
def test_no_exchange_moves_less_than_fractions_say(made: States, needed: States) -> None:
    one, other = (_lying(np.array(WAYS), states, ()) for states in (made, needed))
    least = _fractions(one, other)
    for x, before in enumerate(WAYS):
        has = held(before, made, 4)
        for y, after in enumerate(WAYS):
            wants = held(after, needed, 4)
            moved = min(
                sum(len(want - has[at]) for want, at in zip(wants, places, strict=True))
                for places in permutations(range(4))
            )
            assert least[x, y] * CUT * CUT <= moved + 1e-9


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("name", ["bert-large", "dlrm", "inception-v3", "resnext-50"])
def test_no_baseline_is_faster_where_choices_are_taken_together(
    name: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tiny(name, 12)
    monkeypatch.setattr(bounds_of, "PARTS", (parts,))
    # Of these parts: not what `bound` keeps.
    least = cache(bound.__wrapped__)
    for plan in applicable(graph, SMALL).values():
        options = plan.options
        limit = least(graph, SMALL, options.optimizer, options.micro_batches)
        assert 0 < limit <= simulate(plan).prediction.step


@given(
    costs=arrays(np.float64, (6, 5), elements=st.floats(0, 9)),
    one=st.sets(st.integers(1, 5)),
    other=st.sets(st.integers(1, 4)),
)
def test_of_what_is_taken_together_the_least_counts(
    costs: NDArray[np.float64], one: set[int], other: set[int]
) -> None:
    rows, columns = (np.array([0, *sorted(starts)]) for starts in (one, other))
    least_costs = _least(costs[::-1], np.arange(6)[::-1], np.arange(5), rows, columns)
    for x, y in product(range(6), range(5)):
        i, j = (
            int(np.searchsorted(starts, at, "right")) - 1
            for starts, at in ((rows, x), (columns, y))
        )
        assert least_costs[i, j] <= costs[x, y]
    assert least_costs.min() == costs.min()


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("name", catalogue_names())
def test_no_sum_over_positions_is_faster(name: str, backend: Backend) -> None:
    cluster = Cluster.named(name)
    prices = CollectivePrices(Pricer(cluster, backend, algorithm="best"))
    depth = next(n for n, size in enumerate(cluster.hierarchy) if size > 1)
    every = range(len(factors(cluster)))
    outer = {n for n in every if factors(cluster)[n].level == depth}
    for network, counted in zip(networks(cluster, backend), (outer, every), strict=False):
        for chosen in chain.from_iterable(combinations(every, n) for n in range(1, 4)):
            inside = sum(1 << n for n in chosen)
            positions = prod(factors(cluster)[n].size for n in chosen if n in counted)
            way = prices.way(ALL_REDUCE, inside, 0, 0.0)
            assert network.chains[positions] <= network.sums[positions]
            assert network.sums[positions] <= way.fixed * NANO * (1 + 1e-9)
