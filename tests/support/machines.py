"""Small machines whose outer levels are slower."""

from __future__ import annotations

from meshwright.base.quantities import Bytes, BytesPerSecond, OpsPerSecond
from meshwright.cluster.cluster import Cluster, Device, Level, Link

NAMES = ("rack", "node", "core")


def machine(*sizes: int) -> Cluster:
    """One to three levels of so many, each a hundredth as fast as the one inside it."""
    names = NAMES[-len(sizes) :]
    levels = []
    for depth, (name, size) in enumerate(zip(names, sizes, strict=True)):
        rate = BytesPerSecond(1e9 / 100 ** (len(sizes) - 1 - depth))
        link = Link(name=f"{name}-link", per=name, out=rate, into=rate)
        levels.append(Level(name=name, cardinality=size, links=(link,)))
    device = Device(
        name="core",
        memory=Bytes(1 << 30),
        memory_bandwidth=BytesPerSecond(1e10),
        peak=(("fp32", OpsPerSecond(1e10)),),
    )
    return Cluster(name="small", levels=tuple(levels), device=device)
