"""Small clusters for testbeds."""

from __future__ import annotations

from meshwright.base.quantities import Bytes, BytesPerSecond, OpsPerSecond
from meshwright.cluster.cluster import Cluster, Device, Level, Link

CORE = Device(
    name="core",
    memory=Bytes(1 << 30),
    memory_bandwidth=BytesPerSecond(1e10),
    peak=(("fp32", OpsPerSecond(1e10)),),
)


def port(per: str, rate: float, *, outward: bool = False) -> Link:
    speed = BytesPerSecond(rate)
    return Link(name=f"{per}-port", per=per, out=speed, into=speed, outward=outward)


def loopback(rate: float) -> Link:
    speed = BytesPerSecond(rate)
    return Link(name="loopback", per="node", out=speed, into=speed, duplex="half")


def level(name: str, cardinality: int, *links: Link) -> Level:
    return Level(name=name, cardinality=cardinality, links=links)


def cluster_of(*levels: Level) -> Cluster:
    return Cluster(name="small", levels=levels, device=CORE)


def two_by_two(rate: float = 25e6, inside: float = 2e9) -> Cluster:
    return cluster_of(
        level("node", 2, port("node", rate)), level("process", 2, loopback(inside))
    )  # fmt: skip
