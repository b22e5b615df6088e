"""Uneven shares on irregular numbers of ranks: the same numbers as one device, in float64."""

from __future__ import annotations

import os
import random
from functools import lru_cache

import msgspec
import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.cluster.islands import Island, IslandCluster
from meshwright.cluster.model import Cluster, Link
from meshwright.graph.batch import with_samples
from meshwright.graph.dtypes import in_dtype
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.model import Options, Plan
from meshwright.run.islands import rank_parts
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.loss_law import counted_by
from meshwright.sharding.units import units
from support.island_bodies import STEPS, trained_on_islands
from support.module_bodies import BATCH, errors_of, plain

SOURCE = "zoo:lenet/tiny"
PLANS = int(os.environ.get("ISLAND_PLANS", "4"))
"""For each number of ranks; 25 are a hundred in all."""

RANKS: dict[int, list[tuple[int, ...]]] = {
    3: [(2, 1), (1, 1, 1)],
    5: [(3, 2), (4, 1)],
    6: [(4, 2), (3, 3)],
    7: [(4, 3), (4, 2, 1)],
}


@lru_cache(maxsize=16)
def graph_of(samples: int) -> OperatorGraph:
    return with_samples(in_dtype(load_model(SOURCE, BATCH).graph, "float64"), samples)


def drawn_part(draw: random.Random, devices: int, share: int) -> Plan:
    """A random plan for a share that its layouts can cut."""
    cluster = Cluster.named("laptop").resized({"process": devices})
    graph = graph_of(share)
    while True:
        roles = [draw.choice(("sample", "channel", "replica")) for _ in factors(cluster)]
        micro = draw.choice((1, 2)) if share % 2 == 0 else 1
        options = Options(zero=draw.randrange(4), micro_batches=micro)
        layouts = [
            Layout(tuple(role if role in unit.extents else "replica" for role in roles))
            for unit in units(graph)
        ]
        try:
            return Plan.of("drawn", graph, cluster, layouts, options)
        except InputError:
            continue


def drawn(ranks: int, number: int) -> IslandPlan:
    """A random plan over islands on so many ranks."""
    draw = random.Random(f"{ranks} {number}")
    sizes = RANKS[ranks][number % 2]
    while True:
        cuts = sorted(draw.sample(range(1, BATCH), len(sizes) - 1))
        shares = [b - a for a, b in zip([0, *cuts], [*cuts, BATCH], strict=True)]
        if len(set(shares)) > 1:
            break
    plans = [drawn_part(draw, n, share) for n, share in zip(sizes, shares, strict=True)]
    link = Cluster.named("laptop").levels[0].links[0]
    join = Link(name="join", per="island", out=link.out, into=link.into, latency=link.latency)
    return IslandPlan(
        origin="drawn",
        cluster=IslandCluster(
            name="ranks",
            islands=tuple(Island(name=f"i{n}", cluster=own.cluster) for n, own in enumerate(plans)),
            join=(join,),
        ),
        batch=BATCH,
        parts=tuple(
            IslandPart(islands=(f"i{n}",), plan=own, share=share)
            for n, (own, share) in enumerate(zip(plans, shares, strict=True))
        ),
    )


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_shares_equal_one_device(ranks: int) -> None:
    plans = [drawn(ranks, number) for number in range(PLANS)]
    whole = msgspec.structs.replace(plans[0].parts[0].plan, graph=graph_of(BATCH))
    losses, state = plain(SOURCE, whole, STEPS, 1.0)
    found = run_ranks(trained_on_islands, SOURCE, plans, ranks=ranks)
    for number, plan in enumerate(plans):
        for members in rank_parts(plan):
            first = found[members[0]]
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
    assert counted_by(parse_graph(TARGETS.format("neg", "t"))) == ("t", -100)
    # Language models flatten their targets.
    assert counted_by(parse_graph(TARGETS.format("flatten", "v"))) == ("t", -100)
    with pytest.raises(InputError, match="are computed"):
        counted_by(parse_graph(TARGETS.format("neg", "v")))
