"""`meshwright.parallelize`: the same numbers as the plain model, and sentences for mistakes."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.module_bodies import BATCH, errors_of, evaluated, given_wrong, plain, trained

pytestmark = pytest.mark.ranks

LENET, RESNEXT = "zoo:lenet/tiny", "zoo:resnext-50/tiny"


def plan_for(source: str, *roles: str, options: Options | None = None) -> Plan:
    """A plan for as many devices as 2 to the number of roles; what cannot be cut is copied."""
    graph = cast_graph(load_model(source, BATCH).graph, "float64")
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [
        Layout(tuple(role if role in unit.extents else "replica" for role in roles))
        for unit in units(graph)
    ]
    return Plan.of("by hand", graph, cluster, layouts, options)


@pytest.mark.parametrize(
    ("source", "plan"),
    [
        (LENET, plan_for(LENET, "sample", "channel")),
        (LENET, plan_for(LENET, "sample", options=Options(zero=3, micro_batches=2))),
        (RESNEXT, plan_for(RESNEXT, "sample", options=Options(zero=1))),
    ],
    ids=["tensor", "sharded", "batch norm"],
)
def test_training_equals_the_plain_model(source: str, plan: Plan) -> None:
    losses, state = plain(source, plan, 4, 0.5)
    results = run_ranks(trained, source, plan, 4, 0.5, ranks=plan.cluster.devices)
    first = results[0]
    assert isinstance(first, tuple)
    assert first[0] == pytest.approx(losses, rel=1e-9)
    assert errors_of(first[1], state) < 1e-9


def test_evaluation_uses_running_statistics() -> None:
    plan = plan_for(RESNEXT, "sample")
    for pair in run_ranks(evaluated, RESNEXT, plan, ranks=2):
        assert isinstance(pair, tuple)
        assert pair[0] == pytest.approx(pair[1], rel=1e-9)


@pytest.mark.parametrize(
    ("what", "ranks", "sentence"),
    [
        ("", 4, r"the plan is for 2 devices \(2 of cluster 'laptop'\), and there are 4 ranks"),
        ("count", 2, "the step got 3 tensors; give 2, in this order"),
        ("batch", 2, r"input '.*' has shape \(3, .*\), and the plan is for \(8, "),
        ("extra", 2, "the state has 'stray', which graph 'lenet/tiny' does not know"),
        ("missing", 2, "the state has no '.*', which graph 'lenet/tiny' needs"),
    ],
)
def test_mistakes_are_told(what: str, ranks: int, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        run_ranks(given_wrong, LENET, plan_for(LENET, "sample"), what, ranks=ranks)
