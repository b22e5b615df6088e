"""A chain of equal layers at round prices on links that cost nothing: pipelines by hand."""

from __future__ import annotations

from meshwright.base.quantities import BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL
from meshwright.cost.operator import OperatorPrice, OperatorPricer, PassPrice
from meshwright.graph.operator_graph import Call, OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import Simulation, simulate
from support.strategies import DEVICE

FORWARD, BACKWARD = 1_000_000, 2_000_000
"""Nanoseconds of a layer."""


class RoundPricer(OperatorPricer):
    """The same price for every operator, whatever its size."""

    def price(self, call: Call, wanted: tuple[bool, ...] | None = None) -> OperatorPrice:
        forward, backward = (PassPrice(Seconds(n / 1e9), "estimated") for n in (FORWARD, BACKWARD))
        return OperatorPrice(forward, backward)


def chain(layers: int, batch: int = 16) -> OperatorGraph:
    lines = ["graph chain", f"input h0: float32[n={batch}, d=8]"]
    lines += [f"parameter w{i}: float32[o=8, i=8]" for i in range(layers)]
    lines += [
        f"operator l{i}: h{i + 1}: float32[n={batch}, d=8] = linear(h{i}, w{i})"
        for i in range(layers)
    ]
    return parse_graph("\n".join([*lines, f"output h{layers}"]))


def free(devices: int) -> Cluster:
    """Devices on links without latency that are never busy."""
    endless = BytesPerSecond(1e30)
    link = Link(name="wire", per="gpu", out=endless, into=endless)
    return Cluster(
        name="free", levels=(Level(name="gpu", cardinality=devices, links=(link,)),), device=DEVICE
    )


def pipeline(stages: int, layers: int, options: Options, batch: int = 16) -> Simulation:
    """A chain cut into stages of equally many layers, each on one device."""
    graph, cluster = chain(layers, batch), free(stages)
    cluster_factors = factors(cluster)
    layouts = []
    for layer in range(len(units(graph))):
        stage, roles = layer * stages // layers, []
        for factor in reversed(cluster_factors):
            stage, digit = divmod(stage, factor.size)
            roles.append(f"@{digit}")
        layouts.append(Layout(tuple(reversed(roles))))
    plan = Plan.of("pipeline", graph, cluster, layouts, options)
    pricer = Pricer(cluster, NCCL._replace(launch=Seconds(0.0)), "best")
    return simulate(plan, CollectivePrices(pricer), RoundPricer(cluster.device))
