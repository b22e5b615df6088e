"""NCCL ranks of one GPU behind the links of a testbed: what crosses them."""

from __future__ import annotations

import pytest

from meshwright.cluster.cluster import Cluster
from support.bed_bodies import reduced, reduced_in_runs
from support.bed_clusters import two_by_two
from testbed import Carried, Testbed, difference, unavailable

REASON = unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

SIZE = 4 << 20
SIMPLE = {"NCCL_PROTO": "Simple", "NCCL_MAX_NCHANNELS": "2"}
"""The protocol that sends data and nothing else."""
RING, TREE = (SIMPLE | {"NCCL_ALGO": f"ring;allreduce:{it}"} for it in ("ring", "tree"))
OVERHEAD = 1.1
"""Headers, and what ranks say to find each other."""


def carried(bed: Testbed, environment: dict[str, str]) -> tuple[list[object], list[Carried]]:
    """What ranks return of an AllReduce over all of them, and what crossed each edge."""
    before = bed.counters()
    results = bed.run(reduced, SIZE, gpus=1, environment=environment)
    return results, list(difference(bed.counters(), before))


@pytest.mark.parametrize(("environment", "share"), [(RING, 2 * 3 / 4), (TREE, 2.0)])
def test_what_leaves_a_node(environment: dict[str, str], share: float) -> None:
    with Testbed(two_by_two(rate=100e6)) as bed:
        results, edges = carried(bed, environment)
    assert results == [6.0] * 4
    for edge in edges:
        assert share * SIZE <= edge.out <= OVERHEAD * share * SIZE
        assert share * SIZE <= edge.into <= OVERHEAD * share * SIZE


def test_a_tree_through_racks_sends_twice_what_it_sums() -> None:
    with Testbed(Cluster.load("testbed/clusters/2x2x2.toml")) as bed:
        results, edges = carried(bed, TREE)
    assert results == [28.0] * 8
    racks = [edge for edge in edges if edge.level == "rack"]
    assert all(2 * SIZE <= edge.out <= OVERHEAD * 2 * SIZE for edge in racks)


def test_what_stays_in_a_leaf_crosses_nothing() -> None:
    with Testbed(two_by_two()) as bed:
        before = bed.counters()
        assert bed.run(reduced_in_runs, SIZE, 2, gpus=1, environment=RING) == [1.0, 1.0, 5.0, 5.0]
        edges = difference(bed.counters(), before)
    assert max(max(edge.out, edge.into) for edge in edges) < SIZE / 10
