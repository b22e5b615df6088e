"""Copies of a layer laid out alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from meshwright.base.quantities import Bytes
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.search.budget import Budget
from meshwright.search.joint import planner
from meshwright.search.joint.moves.unify_layers import UNTIDY, tidied
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.reshard import Codes


@given(
    arrays(np.int8, (6, 2), elements=st.integers(-3, 2)),
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_nothing_but_what_is_cheap_is_taken(roles: Codes, node: list[int]) -> None:
    def cheap(codes: Codes) -> bool:
        return int(codes.sum()) % 2 == 0

    tidy = tidied(roles, node, cheap)
    assert (tidy == roles).all() or cheap(tidy)
    for number in set(node):
        rows = {tuple(tidy[unit]) for unit in range(6) if node[unit] == number}
        assert rows <= {tuple(roles[unit]) for unit in range(6) if node[unit] == number}


@given(arrays(np.int8, (6, 2), elements=st.integers(-3, 2)))
def test_everything_alike_where_all_is_cheap(roles: Codes) -> None:
    assert len(np.unique(tidied(roles, [0] * 6, lambda _: True), axis=0)) == 1


def test_a_plan_is_hardly_slower_for_it() -> None:
    question = PlanRequest(
        graph=load_model("zoo:bert-large/tiny", 8).graph,
        cluster=Cluster.named("laptop"),
        memory=Bytes(4 << 30),
    )
    outcome = planner.best_plan(question, Budget(proposals=1000))
    fastest = min(candidate.prediction.step for candidate in outcome.front)
    assert outcome.best.prediction.step <= (1 + UNTIDY) * fastest
    assert all(
        outcome.best.prediction.step <= baseline.prediction.step
        for _, baseline in outcome.baselines
    )
