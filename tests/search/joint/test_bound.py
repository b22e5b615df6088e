"""A bound that no plan beats: random plans, baselines, global optima, and what it rests on."""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, reject, settings

from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.parallel.states import WHOLE
from meshwright.parallel.units import units
from meshwright.plan.model import Plan
from meshwright.price.memory import Optimizer
from meshwright.price.operator import OperatorPricer
from meshwright.search.baselines import applicable
from meshwright.search.exhaustive import exhaustive
from meshwright.search.joint.bound import lower_bound
from meshwright.search.joint.bounds.crossing import States
from meshwright.search.joint.bounds.pairs import _fractions, _lying
from meshwright.search.joint.bounds.ways import Cutter
from meshwright.simulate.problem import Problem
from meshwright.simulate.simulation import simulate
from support.plan_strategies import plans

SMALL = Cluster.named("summit", node=2)


@cache
def bound(graph: OperatorGraph, cluster: Cluster, optimizer: Optimizer, micro: int) -> float:
    return lower_bound(graph, cluster, optimizer=optimizer, micro_batches=(micro,)).seconds


@given(plans())
@settings(max_examples=150)
def test_no_random_plan_is_faster(plan: Plan) -> None:
    own = plan.options
    try:
        step = simulate(plan).prediction.step
    except InputError:  # Units of a stage that are not next to each other.
        reject()
    assert 0 < bound(plan.graph, plan.cluster, own.optimizer, own.micro_batches) <= step


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_no_baseline_of_a_real_model_is_faster(name: str) -> None:
    graph = load_model(f"zoo:{name}/tiny", batch=12).graph
    found = applicable(graph, SMALL)
    assert found
    for plan in found.values():
        own = plan.options
        least = bound(graph, SMALL, own.optimizer, own.micro_batches)
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
    best = exhaustive(Problem(graph, cluster)).nanoseconds / 1e9
    assert 0 < lower_bound(graph, cluster).seconds <= best


@pytest.mark.parametrize("name", ["alexnet", "dlrm", "nmt", "resnext-50", "llama3-8b", "t5-large"])
@pytest.mark.parametrize(("devices", "micro"), [(6, 1), (16, 1), (8, 2)])
def test_few_ways_stand_for_every_way(name: str, devices: int, micro: int) -> None:
    graph = load_model(f"zoo:{name}/tiny", batch=48).graph
    cutter = Cutter(OperatorPricer(SMALL.device), devices, micro)
    for unit in {own.members: own for own in units(graph)}.values():
        few, every = cutter.few(unit), cutter.every(unit)
        for there, back, share in zip(every.there, every.back, every.share, strict=True):
            beaten = (few.there <= there) & (few.back <= back) & (few.share <= share)
            assert np.any(beaten), f"{unit.name}: {there} {back} {share}"


def held(across: tuple[int, ...], states: States, positions: int) -> list[set[tuple[int, ...]]]:
    """What each position has of a tensor with CUT elements along each of two dims; positions are
    numbered by the parts of the splits in a row, then by copies.
    """
    found: list[set[tuple[int, ...]]] = []
    for parts in product(*(range(degree) for degree in across)):
        spans = [range(CUT), range(CUT)]
        for split, state in enumerate(states):
            if state >= 0:
                size = len(spans[state]) // across[split]
                start = spans[state].start + parts[split] * size
                spans[state] = range(start, start + size)
        found.append(set(product(*spans)))
    return found + [set() for _ in range(positions - len(found))]


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
