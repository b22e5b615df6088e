"""Irregular clusters: files of islands, missing and slow devices, a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.cli.shared_options import slow_parts
from meshwright.cluster.catalogue import irregular_names
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.degraded import degraded
from meshwright.cluster.island_cluster import IslandCluster, slowed
from meshwright.cluster.island_toml import (
    dump_machine,
    load_machine,
    named_machine,
    parse_machine,
)
from meshwright.cluster.toml import parse_cluster

H100 = Cluster.named("dgx-h100")

TWO = """
name = "two"
[[island]]
name = "fast"
cluster = "dgx-h100"
resize = { node = 2 }
[[island]]
name = "slow"
cluster = "dgx-h100"
resize = { node = 1, gpu = 7 }
speed = 0.5
"""


def shapes(machine: object) -> list[tuple[str, tuple[int, ...]]]:
    assert isinstance(machine, IslandCluster)
    return [(island.name, island.cluster.hierarchy) for island in machine.islands]


@pytest.mark.parametrize("name", irregular_names())
def test_catalogued_islands_have_a_source_and_a_way_back(name: str) -> None:
    machine = named_machine(name)
    assert isinstance(machine, IslandCluster)
    assert machine.name == name
    assert machine.description
    assert machine.source
    assert parse_machine(dump_machine(machine)) == machine


def test_a_file_of_islands() -> None:
    machine = parse_machine(TWO)
    assert shapes(machine) == [("fast", (2, 8)), ("slow", (1, 7))]
    assert isinstance(machine, IslandCluster)
    assert machine.devices == 23
    fast, slow = (island.cluster.device for island in machine.islands)
    assert slow.memory_bandwidth == fast.memory_bandwidth / 2
    assert slow.memory == fast.memory
    assert parse_machine(dump_machine(machine)) == machine


def test_a_regular_file_stays_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "rack.toml"
    file.write_text(dump_machine(H100))
    assert load_machine(file) == H100


def test_an_island_alone(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(TWO)
    alone = load_machine(f"{file}#fast")
    assert isinstance(alone, Cluster)
    assert alone.hierarchy == (2, 8)


def test_what_leaves_an_island_crosses_its_ports() -> None:
    machine = parse_machine(TWO)
    assert isinstance(machine, IslandCluster)
    like = machine.like(machine.islands[1], 3)
    assert like.hierarchy == (3, 1, 7)
    assert [(link.name, link.per) for link in like.levels[0].links] == [("nic", "gpu")]


@pytest.mark.parametrize(
    ("without", "left"),
    [
        (["node3.gpu5"], [("node-x3", (3, 8)), ("node3", (1, 7))]),
        (["node1.gpu0", "node2.gpu7"], [("node-x2", (2, 8)), ("node-x2-2", (2, 7))]),
        (["node0", "node1.gpu0", "node1.gpu1"], [("node1", (1, 6)), ("node-x2", (2, 8))]),
    ],
)
def test_missing_devices_make_islands(without: list[str], left: object) -> None:
    assert shapes(degraded(H100, without)) == left


def test_missing_nodes_leave_a_regular_cluster() -> None:
    assert degraded(H100, ["node0", "node2"]) == H100.resized({"node": 2})
    assert degraded(H100) is H100
    even = degraded(H100, [f"node{n}.gpu0" for n in range(4)])
    assert even == H100.resized({"gpu": 7})


def test_a_straggler_is_an_island() -> None:
    machine = degraded(H100, slow={"node2": 0.8})
    assert shapes(machine) == [("node-x3", (3, 8)), ("node2", (1, 8))]
    assert isinstance(machine, IslandCluster)
    assert machine.islands[1].cluster.device == slowed(H100.device, 0.8)


def test_missing_parts_of_islands() -> None:
    machine = named_machine("mixed-a100-h100")
    assert shapes(degraded(machine, ["a100.node1.gpu7"])) == [
        ("h100", (2, 8)),
        ("a100.node0", (1, 8)),
        ("a100.node1", (1, 7)),
    ]
    left = degraded(machine, ["a100"])
    assert isinstance(left, Cluster)
    assert left.hierarchy == (2, 8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node4", "has node0 to node3"),
        ("rack1", "'rack' is not level 1"),
        ("node1.gpu9", "has gpu0 to gpu7"),
        ("node1.gpu1.x3", "names no part"),
        ("node", "names no part"),
    ],
)
def test_unknown_parts_get_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        degraded(H100, [text])


def test_wired_nodes_lose_nothing_but_themselves() -> None:
    with pytest.raises(InputError, match="--without node0"):
        degraded(Cluster.named("gcp-v100"), ["node0.gpu3"])


def test_nothing_left_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="leaves nothing"):
        degraded(H100, [f"node{n}" for n in range(4)])
    with pytest.raises(InputError, match="leaves nothing"):
        degraded(named_machine("mixed-a100-h100"), ["a100", "h100"])
    with pytest.raises(InputError, match="no island 'v100'"):
        degraded(named_machine("mixed-a100-h100"), ["v100"])
    with pytest.raises(InputError, match="is a sum of islands, or one of them, and a regular"):
        Cluster.named("mixed-a100-h100#a100")
    with pytest.raises(
        InputError, match=r"--slow gives 'node3' the speeds 0\.5 and 0\.6; keep one"
    ):
        slow_parts(["node3=0.5", "node2=0.5", "node3 = 0.6"])


ALONE = '[[island]]\nname = "{}"\ncluster = "machine"\n'
MISTAKES = {
    "joins island 'a'": ALONE.format("a") + ALONE.format("b"),
    "1 island": ALONE.format("a"),
    "2 islands are called 'a'": TWO.replace('"fast"', '"a"').replace('"slow"', '"a"'),
    "the speed 0": TWO.replace("0.5", "0.0"),
    "speed 1.5": TWO.replace("0.5", "1.5"),
    "describe the island or name it": TWO + 'machine = "node"\n',
    "no cluster 'dgx'": TWO.replace("dgx-h100", "dgx"),
    "no level 'rack'": TWO.replace("node = 2", "rack = 2"),
    "is not a known key": TWO + 'spede = "1"\n',
    "shared per 'leaf'": TWO + '[[join]]\nname = "x"\nper = "leaf"\nbandwidth = "1 GB/s"\n',
}


@pytest.mark.parametrize("said", MISTAKES)
def test_bad_files_get_a_sentence(said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_machine(MISTAKES[said])


def test_a_regular_cluster_is_asked_for() -> None:
    with pytest.raises(InputError, match="#NAME"):
        parse_cluster(TWO)
