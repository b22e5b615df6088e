"""Random plans over islands that share a batch, on irregular numbers of ranks, or are stages."""

from __future__ import annotations

import random
from functools import lru_cache

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster, Link
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.graph.batch import with_samples
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.stage_graph import stage_graph
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.islands.cuts import cuts_of
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units
from support.module_bodies import BATCH

LENET, GPT = "zoo:lenet/tiny", "zoo:gpt2-xl/tiny?dropout=0"

RANKS: dict[int, list[tuple[int, ...]]] = {
    3: [(2, 1), (1, 1, 1)],
    5: [(3, 2), (4, 1)],
    6: [(4, 2), (3, 3)],
    7: [(4, 3), (4, 2, 1)],
}

WIDTHS = {3: [(2, 1), (1, 2), (1, 1, 1)], 5: [(4, 1), (2, 3), (2, 1, 2)]}
"""Of stages, by how many ranks they have in all."""


@lru_cache(maxsize=16)
def graph_of(source: str, samples: int = BATCH) -> OperatorGraph:
    return with_samples(cast_graph(load_model(source, BATCH).graph, "float64"), samples)


def drawn_part(draw: random.Random, source: str, devices: int, share: int) -> Plan:
    """A random plan for a share that its layouts can cut."""
    cluster = Cluster.named("laptop").resized({"process": devices})
    graph = graph_of(source, share)
    known = sorted({role for unit in units(graph) for role in unit.extents})
    while True:
        roles = [draw.choice(("sample", "replica", *known)) for _ in factors(cluster)]
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


def drawn(source: str, ranks: int, number: int) -> IslandPlan:
    """A random plan over islands on so many ranks."""
    draw = random.Random(f"{source} {ranks} {number}")
    sizes = RANKS[ranks][number % 2]
    while True:
        cuts = sorted(draw.sample(range(1, BATCH), len(sizes) - 1))
        shares = [b - a for a, b in zip([0, *cuts], [*cuts, BATCH], strict=True)]
        if len(set(shares)) > 1:
            break
    plans = [drawn_part(draw, source, n, share) for n, share in zip(sizes, shares, strict=True)]
    link = Cluster.named("laptop").levels[0].links[0]
    join = Link(name="join", per="island", out=link.out, into=link.into, latency=link.latency)
    return IslandPlan(
        origin="drawn",
        cluster=IslandCluster(
            name="ranks",
            islands=tuple(
                Island(name=f"i{n}", cluster=plan.cluster) for n, plan in enumerate(plans)
            ),
            join=(join,),
        ),
        batch=BATCH,
        model=source,
        parts=tuple(
            IslandPart(islands=(f"i{n}",), plan=plan, share=share)
            for n, (plan, share) in enumerate(zip(plans, shares, strict=True))
        ),
    )


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


def drawn_stages(source: str, widths: tuple[int, ...], number: int) -> IslandPlan:
    """A random pipeline over islands of some widths."""
    draw, graph = random.Random(f"{widths} {number}"), graph_of(source)
    places = [cut.position for cut in cuts_of(graph)]
    ends = [0, *sorted(draw.sample(places, len(widths) - 1)), len(graph.operators)]
    micro = draw.choice((1, 2, 4))
    plans = []
    for stage, width in enumerate(widths):
        names = [operator.name for operator in graph.operators[ends[stage] : ends[stage + 1]]]
        plans.append(drawn_stage(draw, stage_graph(graph, names, f"{stage}"), width, micro))
    link = Cluster.named("laptop").levels[0].links[0]
    join = Link(name="join", per="island", out=link.out, into=link.into, latency=link.latency)
    islands = tuple(Island(name=f"i{n}", cluster=plan.cluster) for n, plan in enumerate(plans))
    return IslandPlan(
        origin="drawn",
        cluster=IslandCluster(name="ranks", islands=islands, join=(join,)),
        batch=BATCH,
        parts=tuple(
            IslandPart(islands=(f"i{n}",), plan=plan, share=BATCH, stage=n)
            for n, plan in enumerate(plans)
        ),
        micro_batches=micro,
        inputs=tuple(tensor.name for tensor in graph.inputs),
    )
