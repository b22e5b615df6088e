"""Parallelism axes: names and sizes. Enters: text or a mapping. Leaves: checked `Axis` records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.integers import parse_whole, require_whole
from meshwright.base.names import require_name
from meshwright.base.quantities import counted
from meshwright.cluster.cluster import Cluster

IDLE = "idle"
"""The name of the axis along which only the first index works."""


class Axis(msgspec.Struct, frozen=True):
    """One form of parallelism and how many ways it goes."""

    name: str
    size: int

    def __post_init__(self) -> None:
        require_name(self.name, "an axis")
        require_whole(self.size, f"axis {self.name!r} has size")

    def __str__(self) -> str:
        return f"{self.name}={self.size}"


def parse_axes(text: str) -> tuple[Axis, ...]:
    """Axes from text.

    >>> parse_axes("data=4,tensor=16")
    (Axis(name='data', size=4), Axis(name='tensor', size=16))
    """
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (word.strip() for word in part.partition("="))
        if not name or not equals or not size.isdecimal():
            raise InputError(
                f"axis {shown(part)} in {shown(text)}",
                "write NAME=SIZE,..., as 'data=4,tensor=16'",
            )
        if name in sizes:
            raise InputError(
                f"axis {shown(name)} stands twice in {shown(text)}", "name each axis once"
            )
        try:
            sizes[name] = parse_whole(size)
        except InputError as error:
            raise error.at(f"axis {shown(name)}") from None
    return checked_axes(sizes)


def checked_axes(axes: Mapping[str, int] | Sequence[Axis]) -> tuple[Axis, ...]:
    """Axes, or a sentence about the first that is wrong.

    >>> checked_axes({"data": 4})
    (Axis(name='data', size=4),)
    """
    named = (
        tuple(Axis(name, size) for name, size in axes.items())
        if isinstance(axes, Mapping)
        else tuple(axes)
    )
    if not named:
        raise InputError("no axes were given", "give at least one, as 'data=4'")
    names = [axis.name for axis in named]
    for name in names:
        if name == IDLE:
            raise InputError(
                f"{IDLE!r} is the name of the axis that is added for idle devices",
                "rename yours, and allow idle devices instead",
            )
        if names.count(name) > 1:
            raise InputError(f"axis {name!r} was given more than once", "name each axis once")
    return named


def fitted(axes: Sequence[Axis], cluster: Cluster, idle: bool) -> tuple[Axis, ...]:
    """The axes that fill the cluster; with `idle`, an idle axis in front takes up what is left.

    The idle axis comes first so that the working devices of each level are consecutive.

    >>> fitted(parse_axes("data=8"), Cluster.named("gcp-a100"), idle=True)
    (Axis(name='idle', size=8), Axis(name='data', size=8))
    """
    used, devices = math.prod(axis.size for axis in axes), cluster.devices
    if used == devices:
        return tuple(axes)
    shape = " x ".join(f"{level.name} {level.cardinality}" for level in cluster.levels)
    asked = f"the axes {', '.join(map(str, axes))} multiply to {shown(used)}"
    have = f"cluster {cluster.name!r} has {counted(devices, 'device')} ({shape})"
    if not idle:
        remedy = f"choose sizes that multiply to {devices}"
        if devices % used == 0:
            remedy += ", or allow idle devices with --idle"
        raise InputError(f"{asked}, but {have}", remedy)
    if devices % used:
        raise InputError(f"{asked}, but {have}", f"choose sizes whose product divides {devices}")
    return (Axis(IDLE, devices // used), *axes)


def axis_indices(axes: Sequence[Axis], names: Sequence[str]) -> tuple[int, ...]:
    """The positions of the named axes, in order.

    >>> axis_indices(parse_axes("data=4,tensor=16"), ["tensor"])
    (1,)
    """
    known = [axis.name for axis in axes if axis.name != IDLE]
    if not names:
        raise InputError("no axis to reduce over was given", f"name one or more of {known}")
    for name in names:
        if name not in known:
            raise InputError(f"there is no axis {name!r} to reduce over", nearest(name, known))
    if len(set(names)) < len(names):
        raise InputError(f"an axis stands twice in {'+'.join(names)!r}", "name each axis once")
    return tuple(sorted(i for i, axis in enumerate(axes) if axis.name in names))
