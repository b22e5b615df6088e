"""The 42 configurations of P²'s Appendix A: system, axes, and the axes reduced over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Configuration(NamedTuple):
    """One block of the table; it has a line for each parallelism matrix."""

    cluster: str
    nodes: int
    axes: tuple[int, ...]
    reduce_axes: tuple[int, ...]


SYSTEMS = {"gcp-a100": 16, "gcp-v100": 8}
THREE_AXES = {
    "gcp-a100": ((16, 2, 2), (8, 2, 4), (4, 2, 8), (2, 2, 16)),
    "gcp-v100": ((8, 2, 2), (2, 2, 8)),
}


def configurations() -> Iterator[Configuration]:
    """One axis, every split into two axes reduced over either, three axes on four nodes."""
    for cluster, gpus in SYSTEMS.items():
        for nodes in (2, 4):
            devices = nodes * gpus
            yield Configuration(cluster, nodes, (devices,), (0,))
            size = 2
            while size < devices:
                for axis in (0, 1):
                    yield Configuration(cluster, nodes, (size, devices // size), (axis,))
                size *= 2
        for axes in THREE_AXES[cluster]:
            yield Configuration(cluster, 4, axes, (0, 2))
