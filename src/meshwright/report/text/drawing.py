"""Drawings in text: a cluster with its links, and a placement with the shard of every device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from rich.text import Text

from meshwright.base.integers import to_digits
from meshwright.base.quantities import (
    counted,
    format_bandwidth,
    format_bytes,
    format_ops,
    format_seconds,
)
from meshwright.cluster.cluster import WHOLE, Cluster, Link
from meshwright.cluster.island_cluster import Machine
from meshwright.sharding.axes import IDLE
from meshwright.sharding.placement import Placement

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
MOST_ROWS = 16


def draw_machine(machine: Machine) -> str:
    """A regular cluster as its tree, or the islands of a sum one below the other."""
    if isinstance(machine, Cluster):
        return draw_cluster(machine)
    islands = counted(len(machine.islands), "island")
    lines = [f"{machine.name}: {counted(machine.devices, 'device')} on {islands}"]
    lines += [f"joined by {_describe_link(link)}" for link in machine.join]
    if not machine.join:
        lines.append("joined by their outermost links")
    for island in machine.islands:
        renamed = replace(island.cluster, name=f"island {island.name}")
        lines += ["", draw_cluster(renamed)]
    return "\n".join(lines)


def _join_text(link: Link) -> str:
    rate, latency = format_bandwidth(link.out), format_seconds(link.latency)
    return f"{link.name}: {rate} per {link.per}, {latency}"


def draw_cluster(cluster: Cluster) -> str:
    """The levels as a tree, each with its links, and the device at the bottom.

    >>> print(draw_cluster(Cluster.named("laptop")))
    laptop: 4 devices
    └─ process x 4
       │  loopback: 4 GB/s shared by the whole cluster, 50 us, half duplex
       └─ one CPU core: 4 GiB at 19.2 GB/s; fp64 48 GFLOP/s, fp32 96 GFLOP/s
    """
    lines = [f"{cluster.name}: {counted(cluster.devices, 'device')}"]
    for depth, level in enumerate(cluster.levels):
        indent = "   " * depth
        machine = " (machine)" if level.name == cluster.machine else ""
        lines.append(f"{indent}└─ {level.name} x {level.cardinality}{machine}")
        for name, size in level.blocks:
            lines.append(
                f"{indent}   │  {level.cardinality // size} x {name} of {size} {level.name}"
            )
        lines += [f"{indent}   │  {_describe_link(link)}" for link in level.links]
    device = cluster.device
    peaks = ", ".join(f"{dtype} {format_ops(rate)}" for dtype, rate in device.peak)
    memory = f"{format_bytes(device.memory)} at {format_bandwidth(device.memory_bandwidth)}"
    lines.append(f"{'   ' * len(cluster.levels)}└─ {device.name}: {memory}; {peaks}")
    return "\n".join(lines)


def _describe_link(link: Link) -> str:
    rate = format_bandwidth(link.out)
    if link.out != link.into:
        rate = f"{rate} out, {format_bandwidth(link.into)} in"
    owner = "shared by the whole cluster" if link.per == WHOLE else f"per {link.per}"
    if link.kind == "ring":
        owner = f"to each neighbour of a {link.per}"
    notes = [format_seconds(link.latency), f"{link.duplex} duplex"]
    notes += ["staged in the first one's memory"] * link.hub
    notes += ["also on the way out"] * link.outward
    return f"{link.name}: {rate} {owner}, {', '.join(notes)}"


def draw_placement(
    placement: Placement, level_names: Sequence[str], reduced: Sequence[str], width: int
) -> Text:
    """The shard of every device, one line for each instance of the levels above the innermost.

    Devices that reduce together share a colour. What does not fit the width is left out, and of a
    large machine only the first rows are drawn.
    """
    columns = placement.hierarchy[-1]
    rows = math.prod(placement.hierarchy[:-1])
    names = "/".join(axis.name for axis in placement.axes if axis.name != IDLE)
    text = Text(f"{names} of each {level_names[-1]}:\n")
    labels = list(_row_labels(placement, level_names))
    margin = max(map(len, labels))
    drawn = min(columns, max(1, (width - margin - 16) // (_cell_width(placement) + 1)))
    for row in range(min(rows, MOST_ROWS)):
        text.append(f"  {labels[row]:{margin}} ")
        for column in range(drawn):
            _append_device(text, placement, row * columns + column, reduced)
        text.append(f"... {columns - drawn} more\n" if columns > drawn else "\n")
    if rows > MOST_ROWS:
        text.append(f"  ... {counted(rows - MOST_ROWS, 'more row')}\n")
    text.rstrip()
    return text


def _row_labels(placement: Placement, level_names: Sequence[str]) -> Iterator[str]:
    """Where each row stands in the levels above the innermost: "node 3", or nothing."""
    counts = placement.hierarchy[:-1]
    for row in range(min(math.prod(counts), MOST_ROWS)):
        position = zip(level_names[:-1], to_digits(row, counts), strict=True)
        yield " ".join(f"{name} {index}" for name, index in position)


def _cell_width(placement: Placement) -> int:
    sizes = [axis.size for axis in placement.axes if axis.name != IDLE]
    return sum(len(str(size - 1)) for size in sizes) + len(sizes) - 1


def _append_device(text: Text, placement: Placement, device: int, reduced: Sequence[str]) -> None:
    shard = placement.shard(device)
    pairs = [(axis, i) for axis, i in zip(placement.axes, shard, strict=True) if axis.name != IDLE]
    width = _cell_width(placement)
    if not placement.works(shard):
        text.append(f"{'-':>{width}} ")
        return
    fixed = [(axis, i) for axis, i in pairs if axis.name not in reduced]
    group = 0
    for axis, i in fixed:
        group = group * axis.size + i
    label = "/".join(str(i) for _, i in pairs)
    text.append(f"{label:>{width}}", style=COLOURS[group % len(COLOURS)])
    text.append(" ")
