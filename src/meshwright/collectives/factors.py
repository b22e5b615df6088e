"""AllReduce over mesh factors of a machine as a reduction of P². Enters: a cluster, factors as
bits. Leaves: the synthesis hierarchy of their reduction, and the devices that it speaks of.
"""

from __future__ import annotations

import math

from meshwright.base.integers import from_digits, to_digits
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.sharding.axes import IDLE, Axis
from meshwright.sharding.layout import factors
from meshwright.sharding.placement import Placement

SUM = "sum"
BESIDE = "beside"


def summed_hierarchy(cluster: Cluster, inside: int, every: int) -> Hierarchy:
    """The hierarchy of a sum over the factors `inside`, which runs side by side along `every`.

    Factors that do the same are one axis, unless the wiring tells positions apart.

    >>> summed_hierarchy(Cluster.named("dgx-h100", node=2, gpu=2), 0b11, 0).group_size
    4
    """
    rows: dict[str, list[int]] = {}
    for name, numbers in _axes(cluster, inside, every).items():
        row = rows.setdefault(name, [1] * len(cluster.levels))
        for number in numbers:
            row[factors(cluster)[number].level] *= factors(cluster)[number].size
    placement = Placement(
        tuple(Axis(name, math.prod(row)) for name, row in rows.items()),
        tuple(map(tuple, rows.values())),
    )
    summed = [name for name in rows if name.startswith(SUM)]
    return Hierarchy(placement, cluster.level_names, summed)


def summed_devices(cluster: Cluster, inside: int, every: int) -> tuple[int, ...]:
    """Which device of the cluster each device of the hierarchy's placement is.

    A placement numbers devices by axes, each level's in a row; a layout may mix its factors.

    >>> summed_devices(Cluster.named("dgx-h100", node=1, gpu=8), 0b101, 0b010)
    (0, 2, 1, 3, 4, 6, 5, 7)
    """
    mesh_factors, axes = factors(cluster), _axes(cluster, inside, every)
    placement = summed_hierarchy(cluster, inside, every).placement
    devices = []
    for device in range(placement.devices):
        digits = [0] * len(mesh_factors)
        for index, numbers in zip(placement.shard(device), axes.values(), strict=True):
            for number, digit in zip(
                numbers,
                to_digits(index, [mesh_factors[number].size for number in numbers]),
                strict=True,
            ):
                digits[number] = digit
        devices.append(from_digits(digits, [factor.size for factor in mesh_factors]))
    return tuple(devices)


def _axes(cluster: Cluster, inside: int, every: int) -> dict[str, list[int]]:
    """The factors of each axis, by number; what takes no part comes last."""
    axes: dict[str, list[int]] = {}
    for number in range(len(factors(cluster))):
        name = SUM if inside >> number & 1 else BESIDE if every >> number & 1 else IDLE
        if cluster.wired and name != IDLE:
            name += str(number)
        axes.setdefault(name, []).append(number)
    if IDLE in axes:
        axes[IDLE] = axes.pop(IDLE)
    return axes
