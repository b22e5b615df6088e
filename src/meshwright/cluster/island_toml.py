"""Files of irregular clusters. Enters: TOML with `[[island]]` tables. Leaves: a `Machine`: the sum
of its islands, or a regular `Cluster` from a file without any.

An island is described as a regular cluster is (`machine`, `device`, `levels`), or named (`cluster`,
from the catalogue or another file) and resized; `speed` is the share of it that its devices reach.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.cluster.catalogue import catalogued, irregular_text
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.device_lines import quoted
from meshwright.cluster.island_cluster import Island, IslandCluster, Machine, slowed
from meshwright.cluster.toml import (
    Table,
    device_of,
    dump_cluster,
    level_of,
    link_lines,
    link_of,
    load_cluster,
    parse_toml,
    read_cluster_text,
    regular,
)

OWN = ("machine", "device", "levels")
"""What an island has that is not named."""


def load_machine(path: str | Path) -> Machine:
    """Read a cluster file, of islands or regular; file.toml#NAME is one of its islands."""
    file, _, island = str(path).partition("#")
    return _chosen(parse_machine(read_cluster_text(file), file), file, island)


def named_machine(name: str) -> Machine:
    """A sum of islands of the catalogue; NAME#ISLAND is one of its islands.

    >>> named_machine("mixed-a100-h100").devices, named_machine("mixed-a100-h100#h100").hierarchy
    (32, (2, 8))
    """
    entry, _, island = name.partition("#")
    return _chosen(parse_machine(irregular_text(entry), f"{entry}.toml"), entry, island)


def _chosen(machine: Machine, file: str, island: str) -> Machine:
    """The machine, or the island of it that is named."""
    if not island:
        return machine
    if isinstance(machine, Cluster):
        raise InputError(f"{file} has no islands, and #{island} names one", "leave it away")
    return machine.island(island).cluster


def parse_machine(text: str, file: str = "cluster.toml") -> Machine:
    """Read cluster TOML that came from `file`."""
    top = Table(parse_toml(text, file), file, "")
    if "island" not in top.content:
        return regular(top, file)
    top.allow("name", "description", "source", "island", "join")
    return top.build(
        lambda: IslandCluster(
            name=top.text("name", Path(file).stem),
            description=top.text("description", ""),
            source=top.text("source", ""),
            islands=tuple(_island(table, Path(file).parent) for table in top.tables("island")),
            join=tuple(link_of(link) for link in top.tables("join")),
        )
    )


def _island(table: Table, folder: Path) -> Island:
    table.allow("name", "cluster", "resize", "speed", *OWN)
    name = table.text("name")
    cluster = table.build(lambda: _named(table, folder) or _described(table, name, folder))
    speed = table.share("speed") if "speed" in table.content else 1.0
    device = table.build(lambda: slowed(cluster.device, speed))
    cluster = msgspec.structs.replace(cluster, name=name, device=device, description="", source="")
    return table.build(lambda: Island(name=name, cluster=cluster))


def _named(table: Table, folder: Path) -> Cluster | None:
    """The cluster that an island names, resized."""
    if "cluster" not in table.content:
        return None
    for key in OWN:
        if key in table.content:
            raise table.error(key, "stands beside cluster", "describe the island or name it")
    text = table.text("cluster")
    cluster = load_cluster(folder / text) if text.endswith(".toml") else catalogued(text)
    sizes = table.table("resize", {})
    return cluster.resized({level: sizes.integer(level) for level in sizes.content})


def _described(table: Table, name: str, folder: Path) -> Cluster:
    return Cluster(
        name=name,
        machine=table.text("machine", "") or None,
        device=device_of(table.table("device"), folder),
        levels=tuple(level_of(level) for level in table.tables("levels")),
    )


def dump_machine(machine: Machine) -> str:
    """The machine as TOML that `parse_machine` reads back."""
    if isinstance(machine, Cluster):
        return dump_cluster(machine)
    lines = [
        f"name = {quoted(machine.name)}",
        f"description = {quoted(machine.description)}",
        f"source = {quoted(machine.source)}",
    ]
    for link in machine.join:
        lines += ["", "[[join]]", *link_lines(link)]
    for island in machine.islands:
        lines += ["", "[[island]]", f"name = {quoted(island.name)}"]
        # Behind name, description and source, which islands of a file do not have.
        lines += [
            re.sub(r"^(\[+)", r"\1island.", line)
            for line in dump_cluster(island.cluster).splitlines()[3:]
        ]
    return "\n".join(lines) + "\n"
