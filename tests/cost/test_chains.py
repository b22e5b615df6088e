"""Chains: segments that members send on, priced by a formula and followed one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer, cheapest_line
from meshwright.cost.backend import RINGS
from meshwright.cost.collective import Collective
from meshwright.cost.collective_bytes import SEGMENT
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from support.machines import machine


def followed(cluster: Cluster, segments: list[float]) -> float:
    """When the last segment is there: a port passes one at a time on, as they come."""
    nodes, cores = (level.cardinality for level in cluster.levels)
    outer, inner = (level.links[0].out for level in cluster.levels)
    rates = [outer if i % cores == 0 else inner for i in range(1, nodes * cores)]
    free = [0.0] * len(rates)
    for size in segments:
        arrived = 0.0
        for i, rate in enumerate(rates):
            arrived = free[i] = max(arrived, free[i]) + size / rate
    return free[-1]


@given(
    nodes=st.integers(1, 5),
    cores=st.integers(2, 5),
    collective=st.sampled_from([Collective.REDUCE, Collective.BROADCAST]),
    segments=st.integers(1, 9).map(lambda n: [float(SEGMENT)] * n)
    | st.floats(1.0, SEGMENT).map(lambda size: [size]),
)
def test_a_chain_takes_as_long_as_its_segments(
    nodes: int, cores: int, collective: Collective, segments: list[float]
) -> None:
    cluster = machine(nodes, cores)
    whole: Pattern = ((Digit(nodes, PatternUse.MEMBER),), (Digit(cores, PatternUse.MEMBER),))
    held = sum(segments)
    line = cheapest_line(Pricer(cluster, RINGS).lines(collective, whole), held)
    assert line.at(held) == pytest.approx(followed(cluster, segments), rel=1e-12)
