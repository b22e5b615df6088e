"""Uneven shares on irregular numbers of ranks: the same numbers as one device, in float64."""

from __future__ import annotations

import os

import msgspec
import pytest

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster, Link
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.graph.text import parse_graph
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.exec.across_islands import _runs
from meshwright.run.islands import rank_parts
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.loss_law import target_and_ignore_index
from meshwright.sharding.units import units
from support.island_bodies import STEPS, trained_on_islands
from support.island_plans import GPT, LENET, RANKS, drawn, graph_of
from support.machines import machine
from support.module_bodies import errors_of, plain

PLANS = int(os.environ.get("ISLAND_PLANS", "4"))
"""For each number of ranks; 25 are a hundred in all."""


@pytest.mark.ranks
@pytest.mark.parametrize("source", [LENET, GPT])
@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_shares_equal_one_device(source: str, ranks: int) -> None:
    plans = [drawn(source, ranks, number) for number in range(PLANS)]
    # A share of one sample has other units than the batch.
    largest = max(plans[0].parts, key=lambda part: part.share)
    whole = msgspec.structs.replace(largest.plan, graph=graph_of(source))
    losses, state = plain(source, whole, STEPS, 1.0)
    results = run_ranks(trained_on_islands, source, plans, ranks=ranks)
    for number, plan in enumerate(plans):
        for members in rank_parts(plan):
            first = results[members[0]]
            assert isinstance(first, list)
            assert first[number][0] == pytest.approx(losses, rel=1e-9), plan.sheet()
            assert errors_of(first[number][1], state) < 1e-9, plan.sheet()


TARGETS = """graph g
input x: float32[n=4, c=3]
input t: int64[n=4]
operator v: v: int64[n=4] = {}(t)
operator l: l: float32[] = cross_entropy_loss(x, {})
loss l"""


def test_targets_that_a_mean_counts() -> None:
    assert target_and_ignore_index(parse_graph(TARGETS.format("neg", "t"))) == ("t", -100)
    # Language models flatten their targets.
    assert target_and_ignore_index(parse_graph(TARGETS.format("flatten", "v"))) == ("t", -100)
    with pytest.raises(InputError, match="are computed"):
        target_and_ignore_index(parse_graph(TARGETS.format("neg", "v")))


@pytest.mark.ranks
def test_copies_on_two_levels_gather_level_by_level() -> None:
    """Two nodes of two behind slow cards, and one device: across nodes first, then inside."""
    clusters = (machine(2, 2), Cluster.named("laptop").resized({"process": 1}))
    shares = (5, 3)
    plans = [
        Plan.of(
            "copies",
            graph_of(LENET, share),
            cluster,
            [Layout(("replica",) * len(factors(cluster)))] * len(units(graph_of(LENET, share))),
            Options(),
        )
        for cluster, share in zip(clusters, shares, strict=True)
    ]
    assert _runs(plans[0], plans[0].graph.parameters) == ((0,), (1,))
    link = Cluster.named("laptop").levels[0].links[0]
    join = Link(name="join", per="island", out=link.out, into=link.into, latency=link.latency)
    names = ("nodes", "one")
    plan = IslandPlan(
        origin="copies",
        cluster=IslandCluster(
            name="ranks",
            islands=tuple(
                Island(name=name, cluster=cluster)
                for name, cluster in zip(names, clusters, strict=True)
            ),
            join=(join,),
        ),
        batch=sum(shares),
        model=LENET,
        parts=tuple(
            IslandPart(islands=(name,), plan=part_plan, share=share)
            for name, part_plan, share in zip(names, plans, shares, strict=True)
        ),
    )
    whole = msgspec.structs.replace(plans[0], graph=graph_of(LENET))
    losses, state = plain(LENET, whole, STEPS, 1.0)
    for first in run_ranks(trained_on_islands, LENET, [plan], ranks=5):
        assert isinstance(first, list)
        assert first[0][0] == pytest.approx(losses, rel=1e-9)
        if first[0][1] is not None:
            assert errors_of(first[0][1], state) < 1e-9
