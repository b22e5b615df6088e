"""Random plans for small graphs on small machines: layouts that are legal by construction, and
as many micro-batches as they leave room for."""

from __future__ import annotations

from functools import cache

import msgspec
from hypothesis import reject
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import OPTIMIZERS
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SCHEDULES, Options
from meshwright.plan.plan import Plan, PlannedChain, PlannedReduction
from meshwright.sharding.layout import Layout, factors, inner_group_sizes, layouts
from meshwright.sharding.units import units
from support.baseline_graphs import convolutional, recommendation, recurrent, transformer

GRAPHS = (convolutional(), recommendation(9, 12, 6), recurrent())
REPEATING = transformer(layers=3)
"""A graph with layers that can run again."""
CLUSTERS = (
    Cluster.named("laptop"),
    Cluster.named("h200", gpu=3),
    Cluster.named("dgx-h100", node=2, gpu=2),
)
SUM = "root.InsideGroup.AllReduce"


@cache
def legal(graph: OperatorGraph, cluster: Cluster) -> tuple[tuple[Layout, ...], ...]:
    """For each unit every layout."""
    return tuple(tuple(layouts(unit.extents, cluster, symmetric=False)) for unit in units(graph))


@st.composite
def options(draw: st.DrawFn) -> Options:
    zero = draw(st.integers(0, 3))
    return Options(
        optimizer=draw(st.sampled_from(OPTIMIZERS)),
        mixed=draw(st.booleans()),
        micro_batches=draw(st.integers(1, 4)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        recompute=draw(st.booleans()),
        recompute_layers=draw(st.integers(0, 3)),
        zero=zero,
        sync_each=zero > 1 and draw(st.booleans()),
        bucket=Bytes(draw(st.integers(0, 2**40))),
    )


ANY = options()


@st.composite
def plans(
    draw: st.DrawFn, strategy: st.SearchStrategy[Options] = ANY, *, repeating: bool = False
) -> Plan:
    graphs = (*GRAPHS, REPEATING) if repeating else GRAPHS
    graph, cluster = draw(st.sampled_from(graphs)), draw(st.sampled_from(CLUSTERS))
    chosen = [draw(st.sampled_from(choices)) for choices in legal(graph, cluster)]
    options, known = draw(strategy), inner_group_sizes(factors(cluster))
    if options.zero and known:
        within = draw(st.sampled_from((0, *known)))
        options = msgspec.structs.replace(options, shard_within=within)
    try:
        plan = Plan.of(draw(st.text(max_size=9)), graph, cluster, chosen, options)
    except InputError:
        reject()
    size = draw(st.floats(1.0, 1e12))
    programs = draw(
        st.lists(
            st.builds(
                PlannedReduction,
                over=st.just((0,)),
                beside=st.sampled_from([(), (1,)] if len(plan.factors) > 1 else [()]),
                bytes=st.just(size),
                program=st.just(SUM),
            ),
            max_size=2,
        )
    )
    return Plan(
        origin=plan.origin,
        graph=graph,
        cluster=cluster,
        layouts=plan.layouts,
        options=plan.options,
        programs=tuple(programs),
        chains=draw(st.sampled_from([(), (_chain(plan),)])),
    )


def _chain(plan: Plan) -> PlannedChain:
    """Of an AllGather along everything, a factor at a time."""
    over = tuple(range(len(plan.factors)))
    steps = tuple((factor,) for factor in over)
    return PlannedChain(collective="AllGather", over=over, bytes=64.0, steps=steps)
