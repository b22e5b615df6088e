"""The cheapest AllGather against all programs, and groups of irregular parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.collectives.gather import cheapest_gather, gather_groups
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.predict import predict_all
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import ALGORITHMS, BACKENDS
from meshwright.cost.collective import Collective
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement
from support.strategies import clusters


@given(st.data())
def test_no_program_of_allgathers_is_faster(data: st.DataObject) -> None:
    cluster = data.draw(clusters(most=3))
    backend = BACKENDS[data.draw(st.sampled_from(sorted(BACKENDS)))]
    pricer = Pricer(cluster, backend, data.draw(st.sampled_from(ALGORITHMS)))
    placement = Placement((Axis("all", cluster.devices),), (cluster.hierarchy,))
    hierarchy = Hierarchy(placement, cluster.level_names, ["all"])
    payload = data.draw(st.sampled_from((1.0, 1e4, 1e9)))
    cheapest = cheapest_gather(pricer, payload / cluster.devices)
    others = [
        sum(step.seconds for step in priced.steps[1:])
        for priced in predict_all(hierarchy, pricer, payload, limit=4)
        if priced.steps
        and str(priced.steps[0].instruction) == "root.InsideGroup.ReduceScatter"
        and all(step.instruction.collective is Collective.ALL_GATHER for step in priced.steps[1:])
    ]
    assert cheapest.seconds == pytest.approx(min(others, default=0.0), rel=1e-12)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_everybody_has_everything(sizes: list[int], data: st.DataObject) -> None:
    """Whatever some ranks are, regular or not, each group is disjoint and all end with all."""
    devices = 1
    for size in sizes:
        devices *= size
    members = sorted(data.draw(st.sets(st.integers(0, devices - 1), min_size=1)))
    runs = tuple((level,) for level in data.draw(st.permutations(range(len(sizes)))))
    holds = {member: {member} for member in members}
    for groups in gather_groups(sizes, runs, members):
        flat = [member for group in groups for member in group]
        assert len(flat) == len({*flat})
        for group in groups:
            every = [holds[member] for member in group]
            # Nobody gets twice what he has.
            assert sum(map(len, every)) == len(set().union(*every))
            for member in group:
                holds[member] = set().union(*every)
    assert all(holding == {*members} for holding in holds.values())
