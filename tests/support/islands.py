"""Small sums of islands, and a model for them."""

from __future__ import annotations

from meshwright.cluster.island_cluster import IslandCluster
from meshwright.cluster.island_toml import parse_machine
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph

ISLAND = """
[[island]]
name = "{name}"
speed = {speed}
machine = "{machine}"
[island.device]
name = "d"
memory = "{memory}"
memory_bandwidth = "100 GB/s"
peak = {{ fp32 = "0.1 TFLOP/s" }}
"""

LEVEL = """
[[island.levels]]
name = "{name}"
cardinality = {size}
[[island.levels.links]]
name = "{name}-link"
per = "{name}"
bandwidth = "20 GB/s"
latency = "1 us"
"""

JOIN = """
[[join]]
name = "spine"
per = "island"
bandwidth = "{rate}"
latency = "1 us"
"""


def island(
    name: str, *sizes: int, speed: float = 1.0, memory: str = "1 GiB", levels: str = "node gpu"
) -> str:
    """An island as TOML; with two sizes of nodes and GPUs, with one of GPUs."""
    names = levels.split()[-len(sizes) :]
    machine = names[0] if len(sizes) > 1 else ""
    text = ISLAND.format(name=name, speed=speed, machine=machine, memory=memory)
    return text + "".join(LEVEL.format(name=n, size=s) for n, s in zip(names, sizes, strict=True))


def machine_of(*islands: str, rate: str = "20 GB/s") -> IslandCluster:
    """A sum of islands."""
    cluster = parse_machine('name = "small"\n' + "".join(islands) + JOIN.format(rate=rate))
    assert isinstance(cluster, IslandCluster)
    return cluster


def two_layers(samples: int, width: int = 64) -> OperatorGraph:
    """Two linear layers over sequences of 64."""
    return parse_graph(
        f"""graph two layers
input x: float32[n={samples}, t=64, i={width}]
parameter w: float32[o={width}, i={width}]
parameter v: float32[p={width}, o={width}]
operator y: y: float32[n={samples}, t=64, o={width}] = linear(x, w)
operator a: a: float32[n={samples}, t=64, o={width}] = relu(y)
operator z: z: float32[n={samples}, t=64, p={width}] = linear(a, v)
operator l: l: float32[] = mean(z)
loss l"""
    )
