"""Complex tensors between op groups: gradients flow through them, on one rank and over the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.module_bodies import BATCH, errors_of, plain, trained

pytestmark = pytest.mark.ranks

MODELS = Path(__file__).parents[1] / "support" / "guarded_models.py"


def plan_for(source: str, *roles: str) -> Plan:
    """A plan in which each op group takes the first of its roles that it can, in turns."""
    graph = cast_graph(load_model(source, BATCH).graph, "float64")
    cluster = Cluster.named("laptop").resized({"process": 2})
    layouts = []
    for number, unit in enumerate(units(graph)):
        wanted = [roles[(number + turn) % len(roles)] for turn in range(len(roles))]
        role = next((role for role in wanted if role in unit.extents), "replica")
        layouts.append(Layout((role,)))
    return Plan.of("by hand", graph, cluster, layouts)


@pytest.mark.parametrize("name", ["rotary", "filtered"])
@pytest.mark.parametrize("roles", [("replica",), ("sample",), ("sample", "replica")])
def test_training_equals_the_plain_model(name: str, roles: tuple[str, ...]) -> None:
    source = f"{MODELS}:{name}"
    plan = plan_for(source, *roles)
    losses, state = plain(source, plan, 3, 1.0)
    results = run_ranks(trained, source, plan, 3, 1.0, ranks=2)[0]
    assert isinstance(results, tuple)
    assert results[0] == pytest.approx(losses, rel=1e-9)
    assert errors_of(results[1], state) < 1e-9
