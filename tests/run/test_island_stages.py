"""Islands as pipeline stages of different widths: the same numbers as one device, in float64."""

from __future__ import annotations

import random
from functools import lru_cache

import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.cluster.islands import Island, IslandCluster
from meshwright.cluster.model import Cluster, Link
from meshwright.graph.dtypes import in_dtype
from meshwright.graph.model import OperatorGraph
from meshwright.graph.stage_graph import stage_graph
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.model import Options, Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.search.islands.cuts import cuts_of
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units
from support.island_bodies import STEPS, trained_on_islands
from support.module_bodies import BATCH, errors_of, plain

WIDTHS = {3: [(2, 1), (1, 2), (1, 1, 1)], 5: [(4, 1), (2, 3), (2, 1, 2)]}


@lru_cache(maxsize=4)
def graph_of(source: str) -> OperatorGraph:
    return in_dtype(load_model(source, BATCH).graph, "float64")


def drawn_stage(draw: random.Random, graph: OperatorGraph, devices: int, micro: int) -> Plan:
    """A random plan of a stage."""
    cluster = Cluster.named("laptop").resized({"process": devices})
    known = sorted({role for unit in units(graph) for role in unit.extents} | {"replica"})
    while True:
        roles = [draw.choice(("sample", *known)) for _ in factors(cluster)]
        options = Options(zero=draw.randrange(4), micro_batches=micro)
        layouts = [
            Layout(tuple(role if role in unit.extents else "replica" for role in roles))
            for unit in units(graph)
        ]
        try:
            return Plan.of("drawn", graph, cluster, layouts, options)
        except InputError:
            continue


def drawn(source: str, widths: tuple[int, ...], number: int) -> IslandPlan:
    """A random pipeline over islands of some widths."""
    draw, graph = random.Random(f"{widths} {number}"), graph_of(source)
    places = [own.position for own in cuts_of(graph)]
    ends = [0, *sorted(draw.sample(places, len(widths) - 1)), len(graph.operators)]
    micro = draw.choice((1, 2, 4))
    plans = []
    for stage, width in enumerate(widths):
        names = [own.name for own in graph.operators[ends[stage] : ends[stage + 1]]]
        plans.append(drawn_stage(draw, stage_graph(graph, names, f"{stage}"), width, micro))
    link = Cluster.named("laptop").levels[0].links[0]
    join = Link(name="join", per="island", out=link.out, into=link.into, latency=link.latency)
    islands = tuple(Island(name=f"i{n}", cluster=own.cluster) for n, own in enumerate(plans))
    return IslandPlan(
        origin="drawn",
        cluster=IslandCluster(name="ranks", islands=islands, join=(join,)),
        batch=BATCH,
        parts=tuple(
            IslandPart(islands=(f"i{n}",), plan=own, share=BATCH, stage=n)
            for n, own in enumerate(plans)
        ),
        micro_batches=micro,
        inputs=tuple(own.name for own in graph.inputs),
    )


@pytest.mark.ranks
@pytest.mark.parametrize("source", ["zoo:lenet/tiny", "zoo:gpt2-xl/tiny?dropout=0"])
@pytest.mark.parametrize("ranks", WIDTHS)
def test_stages_of_different_widths_equal_one_device(source: str, ranks: int) -> None:
    plans = [drawn(source, widths, number) for number, widths in enumerate(WIDTHS[ranks])]
    graph = graph_of(source)
    cluster = Cluster.named("laptop").resized({"process": 1})
    whole = Plan.of("one", graph, cluster, [Layout(()) for _ in units(graph)])
    losses, state = plain(source, whole, STEPS, 1.0)
    found = run_ranks(trained_on_islands, source, plans, graph, ranks=ranks)
    for number, plan in enumerate(plans):
        first = found[0]
        assert isinstance(first, list)
        assert first[number][0] == pytest.approx(losses, rel=1e-9), plan.sheet()
        assert first[number][1].keys() == state.keys()
        assert errors_of(first[number][1], state) < 1e-9, plan.sheet()
        for rank in range(1, ranks):
            other = found[rank]
            assert isinstance(other, list)
            assert other[number] == (first[number][0], None)
