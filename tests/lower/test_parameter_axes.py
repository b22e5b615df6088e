"""Shards of parameters: whole rows, of which a DeviceMesh's axes can tell."""

from __future__ import annotations

import pytest

from meshwright.cluster.cluster import Cluster
from meshwright.graph.pieces import Box
from meshwright.graph.text import parse_graph
from meshwright.lower.ownership import Holdings
from meshwright.lower.script import Script
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.state.dtensors import mesh_of, unsupported_by_dtensor
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.loop_plans import plan_of, role_of, twisted

GRAPH = parse_graph("""graph odd
input x: float32[n=8, i=4]
parameter table: float32[o=11, i=4]
parameter place: float32[one=1, two=1, i=4]
parameter few: float32[two=2, i=4]
parameter scale: float32[]
parameter bias: float32[one=1]
operator shifted: y: float32[one=1, n=8, i=4] = add(place, x)
operator scaled: z: float32[one=1, n=8, i=4] = mul(y, scale)
operator moved: u: float32[one=1, n=8, i=4] = add(z, bias)
operator product: v: float32[one=1, n=8, o=11] = linear(u, table)
operator narrow: w: float32[one=1, n=8, two=2] = linear(u, few)
operator first: a: float32[] = mean(v)
operator second: b: float32[] = mean(w)
operator sum: loss: float32[] = add(a, b)
output loss
loss loss""")


def boxes(name: str, *roles: str) -> list[list[Box]]:
    """What each device has of a parameter under ZeRO."""
    layouts = [Layout(tuple(role_of(unit, role) for role in roles)) for unit in units(GRAPH)]
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    holdings = Holdings(Script(Plan.of("odd", GRAPH, cluster, layouts, Options(zero=3))))
    devices = range(cluster.devices)
    return [[region.box for region in holdings.regions(name, device)] for device in devices]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("table", [((0, 3), (0, 4)), ((3, 6), (0, 4)), ((6, 9), (0, 4)), ((9, 11), (0, 4))]),
        ("place", [((0, 1), (0, 1), (n, n + 1)) for n in range(4)]),
        ("few", [((0, 1), (0, 4)), ((1, 2), (0, 4)), None, None]),
        ("bias", [((0, 1),), None, None, None]),
        ("scale", [(), (), (), ()]),
    ],
)
def test_shards_are_whole_rows_of_the_first_dim_that_has_some(
    name: str, expected: list[object]
) -> None:
    shard_boxes = boxes(name, "sequence", "sequence")
    assert shard_boxes == [[] if box is None else [box] for box in expected]


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    "roles",
    [("sample", "channel"), ("channel", "sample"), ("sample", "sample", "channel")],
)
def test_meshes_say_zero_inside_of_tensor_parallelism(zero: int, roles: tuple[str, ...]) -> None:
    assert _unsaid(plan_of(*roles, options=Options(zero=zero))) is None


def test_opposite_orders_have_no_mesh() -> None:
    assert _unsaid(twisted(zero=0)) is None
    assert _unsaid(twisted(zero=1)) == "layers.1.weight"


def _unsaid(plan: Plan) -> str | None:
    script = Script(plan)
    return unsupported_by_dtensor(script, Holdings(script), mesh_of(script))
