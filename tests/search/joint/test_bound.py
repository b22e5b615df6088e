"""A bound that no plan beats: random plans, baselines, global optima, and what it rests on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, reject, settings

from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.parallel.units import units
from meshwright.plan.model import Plan
from meshwright.price.memory import Optimizer
from meshwright.price.operator import OperatorPricer
from meshwright.search.baselines import applicable
from meshwright.search.exhaustive import exhaustive
from meshwright.search.joint.bound import lower_bound
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
