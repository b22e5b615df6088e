"""Helpers of the baselines: mesh factors that can cut a split, device coordinates, FLOPs. Enters:
units, a cluster's factors. Leaves: factors that can cut a split, the split that continues another,
the place of a device, the work of a unit.

Where not all factors can cut, the innermost are taken first: what is cut is summed up again, and
the factors left over then hold copies across the slow links instead of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshwright.base.errors import InputError
from meshwright.base.integers import to_digits
from meshwright.cluster.cluster import Cluster
from meshwright.graph.counts import backward, forward
from meshwright.sharding.layout import IDLE, REPLICA, Layout, MeshFactor, factors
from meshwright.sharding.states import State
from meshwright.sharding.unit import OpGroup

SAMPLE = "sample"

MOST_APART = 1024
"""Devices that can be told apart one by one."""


def intra_machine_factors(cluster: Cluster) -> tuple[int, ...]:
    """The factors along which devices share a machine, by number.

    >>> intra_machine_factors(Cluster.named("summit", node=2))
    (1, 2)
    """
    outermost = 0 if cluster.machine is None else cluster.level_index(cluster.machine) + 1
    return tuple(i for i, factor in enumerate(factors(cluster)) if factor.level >= outermost)


def require_few(cluster: Cluster) -> None:
    """Refuse a machine with too many devices to tell every one of them apart."""
    if cluster.devices > MOST_APART:
        raise InputError(
            f"the strategy puts operators on single devices, and {cluster.devices} are too many to "
            "be told apart",
            f"use it on at most {MOST_APART}",
        )


def seat(device: int, mesh_factors: Sequence[MeshFactor]) -> tuple[str, ...]:
    """The roles of an operator that sits on one device.

    >>> seat(5, [MeshFactor(0, 2), MeshFactor(1, 3)])
    ('@1', '@2')
    """
    digits = to_digits(device, [factor.size for factor in mesh_factors])
    return tuple(f"{IDLE}{digit}" for digit in digits)


def work(unit: OpGroup) -> int:
    """Floating-point operations of both passes."""
    return sum(forward(m.call).flops + backward(m.call, m.wanted).flops for m in unit.members)


def named_split(unit: OpGroup, name: str) -> int | None:
    """A split by its name."""
    return next((n for n, split in enumerate(unit.splits) if split.name == name), None)


def cutting(
    cuts: Iterable[tuple[OpGroup, int]],
    among: Iterable[int],
    mesh_factors: Sequence[MeshFactor],
    already: int = 1,
) -> tuple[int, ...]:
    """The factors that can cut all these splits together, the innermost first; sorted.

    `already` is how many ways they are cut besides: by micro-batches.
    """
    pairs, degree, chosen = tuple(cuts), already, []
    for factor in sorted(among, reverse=True):
        if all(unit.cuttable(split, degree * mesh_factors[factor].size) for unit, split in pairs):
            degree *= mesh_factors[factor].size
            chosen.append(factor)
    return tuple(sorted(chosen))


def batch_factors(
    units: Sequence[OpGroup],
    among: Iterable[int],
    mesh_factors: Sequence[MeshFactor],
    micro_batches: int = 1,
) -> tuple[int, ...]:
    """The factors that cut the samples of units with at least half of the work."""
    shares = [(unit, unit.samples, work(unit)) for unit in units]
    total = sum(share for _, _, share in shares)
    degree, chosen = micro_batches, []
    for factor in sorted(among, reverse=True):
        ways = degree * mesh_factors[factor].size
        cut = sum(n for unit, s, n in shares if s is not None and unit.cuttable(s, ways))
        if 2 * cut >= total:
            degree = ways
            chosen.append(factor)
    return tuple(sorted(chosen))


def with_samples(
    roles: Mapping[int, str],
    unit: OpGroup,
    batch: Iterable[int],
    mesh_factors: Sequence[MeshFactor],
    micro_batches: int = 1,
) -> Layout:
    """A layout with some roles given, whose other factors cut samples if they can."""
    split = unit.samples
    filled = dict(roles)
    if split is not None:
        already = micro_batches if unit.cuttable(split, micro_batches) else 1
        free = [factor for factor in batch if factor not in filled]
        for factor in cutting([(unit, split)], free, mesh_factors, already):
            filled[factor] = unit.splits[split].name
    return Layout(tuple(filled.get(factor, REPLICA) for factor in range(len(mesh_factors))))


def follower(unit: OpGroup, cut: Mapping[str, State]) -> int | None:
    """The split that takes the pieces of all cut inputs as they come, by number."""
    boundaries = [boundary for boundary in unit.inputs if boundary.tensor in cut]
    for number in range(len(unit.splits) if boundaries else 0):
        if all(boundary.forward[number] == cut[boundary.tensor] for boundary in boundaries):
            return number
    return None
