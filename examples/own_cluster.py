"""A cluster of your own: the nearest of the catalogue as a file, with another network card."""

from pathlib import Path

import meshwright

SWITCHED = """\
name = "office"
machine = "node"

[[levels]]
name = "node"
cardinality = 2

[[levels.links]]
name = "ethernet"
bandwidth = "3 GB/s"
latency = "20 us"
per = "node"

[[levels]]
name = "gpu"
cardinality = 4

[[levels.links]]
name = "pcie"
bandwidth = "20 GB/s"
latency = "5 us"
per = "gpu"

[device]
name = "RTX 4090"
memory = "24 GiB"
memory_bandwidth = "1.0 TB/s"

[device.peak]
bf16 = "165 TFLOP/s"
fp32 = "82 TFLOP/s"
"""
"""Figures chosen for the example; docs/clusters.md tells every key."""


def main() -> None:
    """Write the file, read it, and plan on it."""
    Path("office.toml").write_text(SWITCHED)
    cluster = meshwright.Cluster.load("office.toml")
    planned = meshwright.find_plan(
        "zoo:bert-large/tiny", cluster, batch=32, dtype="bf16", budget="10"
    )
    print(cluster)
    print(planned.plan)


if __name__ == "__main__":
    main()
