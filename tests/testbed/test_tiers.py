"""Which clusters can be emulated, and what is laid for them."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, BytesPerSecond, Seconds
from meshwright.cluster.cluster import Cluster, Link
from support.bed_clusters import cluster_of, level, loopback, port, two_by_two
from testbed import Testbed
from testbed.tiers import Tier, inside_rate, tiers
from testbed.tree import Bucket, edges, fabric_buckets, switches

CLUSTERS = Path(__file__).parent.parent.parent / "testbed" / "clusters"
SLOW = port("node", 25e6)
INNER = level("process", 2, loopback(2e9))


def changed(**fields: object) -> Link:
    return msgspec.structs.replace(SLOW, **fields)


def test_ready_made_clusters() -> None:
    tiers_by_name = {path.stem: tiers(Cluster.load(str(path))) for path in CLUSTERS.glob("*.toml")}
    slow, fast = BytesPerSecond(25e6), BytesPerSecond(100e6)
    spine = BytesPerSecond(12.5e6)
    assert tiers_by_name == {
        "2x2": (Tier("node", 2, slow, slow),),
        "2x4": (Tier("node", 2, slow, slow),),
        "4x2": (Tier("node", 4, slow, slow),),
        "4x4": (Tier("node", 4, slow, slow),),
        "2x2x2": (Tier("rack", 2, spine, spine), Tier("node", 2, fast, fast)),
    }


def test_ports_in_series_have_the_rate_of_the_slowest() -> None:
    asymmetric = changed(name="card", out=BytesPerSecond(10e6), into=BytesPerSecond(40e6))
    assert tiers(cluster_of(level("node", 2, SLOW, asymmetric), INNER)) == (
        Tier("node", 2, BytesPerSecond(10e6), BytesPerSecond(25e6)),
    )


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (cluster_of(level("process", 4, port("process", 1e9))), "has one level, 'process'"),
        (cluster_of(level("node", 33, SLOW), INNER), "66 devices.*give at most 64"),
        (cluster_of(level("node", 2, changed(per="cluster")), INNER), "make it per 'node'"),
        (cluster_of(level("node", 2, changed(per="process")), INNER), "make it per 'node'"),
        (cluster_of(level("node", 2, changed(duplex="half")), INNER), "is half-duplex"),
        (cluster_of(level("node", 2, changed(latency=Seconds(0.01))), INNER), "latency of 10 ms"),
        (two_by_two(rate=12.5e9), "12.5 GB/s, which a cable here cannot hold.*500 MB/s"),
        (two_by_two(rate=1e3), "1 kB/s, which a cable"),
        (
            cluster_of(level("rack", 2, port("rack", 1e7)), level("node", 2, SLOW), INNER),
            "'node-port' of level 'node' is not outward",
        ),
        (
            cluster_of(
                level("node", 2, SLOW), level("process", 2, port("process", 1e9, outward=True))
            ),
            "does not cross its loopback",
        ),
        (Cluster.named("gcp-v100"), "has blocks or ring links"),
    ],
)
def test_refusals(cluster: Cluster, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Testbed(cluster)


def test_a_loopback_is_one_medium() -> None:
    assert inside_rate(two_by_two(inside=5e7)) == 5e7
    with pytest.raises(InputError, match="a loopback is shared by all of a node"):
        Testbed(
            cluster_of(level("node", 2, SLOW), level("process", 2, port("process", 1e8))),
            inside=True,
        )


def test_what_is_laid() -> None:
    tree = edges(tiers(two_by_two()))
    assert switches(tree) == ("switch0",)
    assert [(edge.upper, edge.lower, edge.plugs) for edge in tree] == [
        ("down0", "eth0", (("down0", "switch0"),)),
        ("down1", "eth0", (("down1", "switch0"),)),
    ]
    frames = BytesPerSecond(25e6 * 1514 / 1448)
    assert fabric_buckets(tree) == tuple(
        Bucket(end, frames, Bytes(131072), Bytes(16777216)) for end in ("down0", "down1")
    )


def test_what_is_laid_between_switches() -> None:
    tree = edges(tiers(Cluster.load(str(CLUSTERS / "2x2x2.toml"))))
    assert switches(tree) == ("switch0", "switch1", "switch2")
    assert tree[1].plugs == (("down1", "switch0"), ("up1", "switch2"))
    assert [it.end for it in fabric_buckets(tree)] == [
        *(f"down{i}" for i in range(6)),
        "up0",
        "up1",
    ]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_tree(cardinalities: list[int]) -> None:
    rate = BytesPerSecond(1e7)
    tree = edges([Tier(f"level{i}", n, rate, rate) for i, n in enumerate(cardinalities)])
    above = {edge.below: edge for edge in tree if edge.below is not None}
    assert len({edge.number for edge in tree}) == len(tree)
    assert 0 not in above
    leaves = [edge for edge in tree if edge.below is None]
    assert [leaf.instance for leaf in leaves] == list(range(math.prod(cardinalities)))
    for leaf in leaves:
        edge, instance = leaf, leaf.instance
        for depth in reversed(range(len(cardinalities))):
            assert (edge.level, edge.instance) == (f"level{depth}", instance)
            instance //= cardinalities[depth]
            edge = above.get(edge.above, edge)
        assert edge.above == 0
