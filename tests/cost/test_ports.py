"""What shares a port, a medium or a border: transfers counted by hand."""

from __future__ import annotations

import pytest

from meshwright.base.quantities import BytesPerSecond
from meshwright.cluster.cluster import WHOLE, Cluster, Level, Link
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Algorithm
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from support.strategies import DEVICE

GB = 1e9


def port(name: str, rate: float, *, per: str = "", outward: bool = True) -> Link:
    speed = BytesPerSecond(rate)
    return Link(name=f"{name}-link", per=per or name, out=speed, into=speed, outward=outward)


def racks() -> Cluster:
    """2 racks of 3 nodes of 4 GPUs; all that leaves a node goes through its one card of 1 GB/s."""
    return Cluster(
        name="racks",
        levels=(
            Level(name="rack", cardinality=2, links=(port("rack", 100 * GB),)),
            Level(name="node", cardinality=3, links=(port("node", GB),)),
            Level(name="gpu", cardinality=4, links=(port("gpu", 100 * GB),)),
        ),
        device=DEVICE,
        machine="node",
    )


def bus(members: int) -> Cluster:
    """Machines on one medium of 1 GB/s."""
    link = port("node", GB, per=WHOLE, outward=False)
    level = Level(name="node", cardinality=members, links=(link,))
    return Cluster(name="bus", levels=(level,), device=DEVICE, machine="node")


def seconds(cluster: Cluster, operation: Operation, algorithm: Algorithm = "ring") -> float:
    """For 1 GB on each of all devices, without latencies."""
    whole: Pattern = tuple((Digit(size, PatternUse.MEMBER),) for size in cluster.hierarchy)
    (line,) = Pricer(cluster, NCCL, algorithm).lines(operation, whole)
    return line.per_byte * GB


@pytest.mark.parametrize(
    ("operation", "algorithm", "expected"),
    [
        # A node's 4 GPUs each send 1/24 of 1 GB to each of the 20 GPUs of other nodes.
        (Movement.ALL_TO_ALL, "ring", 4 * 20 / 24),
        # The first node receives 1 GB of each of those 20; it sends as much when it scatters 1/24.
        (Movement.GATHER, "ring", 20.0),
        (Movement.SCATTER, "ring", 20 / 24),
        # Both trees over the 6 nodes carry a half up and a half down. Inside one of them a node has
        # three edges, and in the other, of which it is a leaf, one: two sizes leave it.
        (Collective.ALL_REDUCE, "tree", 2.0),
        # One goes out and one comes in, sideways or up.
        (Collective.ALL_REDUCE, "ring", 2 * 23 / 24),
        (Collective.ALL_GATHER, "ring", 23.0),
        (Collective.REDUCE_SCATTER, "ring", 23 / 24),
        (Collective.REDUCE, "ring", 1.0),
        (Movement.SHIFT, "ring", 1.0),
    ],
)
def test_traffic_of_all_levels_shares_an_outward_port(
    operation: Operation, algorithm: Algorithm, expected: float
) -> None:
    assert seconds(racks(), operation, algorithm) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("members", [2, 3, 8])
@pytest.mark.parametrize(
    ("operation", "transfers"),
    [
        (Collective.REDUCE, lambda n: n - 1),
        (Collective.BROADCAST, lambda n: n - 1),
        (Movement.SHIFT, lambda n: n - 1),
        (Collective.ALL_REDUCE, lambda n: 2 * (n - 1)),
    ],
)
def test_a_medium_carries_what_is_sent_and_nothing_back(
    members: int, operation: Operation, transfers: object
) -> None:
    assert callable(transfers)
    assert seconds(bus(members), operation) == pytest.approx(transfers(members), rel=1e-12)
