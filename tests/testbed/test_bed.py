"""Real networks: what crosses them, how fast, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.run.launch.ranks import RankError
from support.bed_bodies import rates, reduced, reduced_in_runs
from support.bed_clusters import two_by_two
from support.rank_bodies import failing
from testbed import Carried, Testbed, difference, netlink, unavailable
from testbed.removal import remove, remove_leftovers, standing

REASON = unavailable()
pytestmark = [
    pytest.mark.alone,
    pytest.mark.ranks,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]

ROOT = Path(__file__).parent.parent.parent
CLUSTERS = ROOT / "testbed" / "clusters"
SIZE = 4 << 20
OVERHEAD = 1.03
"""Headers are half a percent of what a large message carries, the rest is the ranks finding each
other: as little as it can be only because nothing is dropped and sent again."""


@pytest.fixture(scope="module")
def two_levels() -> Iterator[Testbed]:
    with Testbed(two_by_two()) as bed:
        yield bed


@pytest.fixture(scope="module")
def three_levels() -> Iterator[Testbed]:
    with Testbed(Cluster.load(str(CLUSTERS / "2x2x2.toml"))) as bed:
        yield bed


def crossing(bed: Testbed, *run: object) -> tuple[list[object], tuple[Carried, ...]]:
    """What ranks return, and what crossed each edge meanwhile."""
    body, *arguments = run
    assert callable(body)
    before = bed.counters()
    results = bed.run(body, *arguments)
    return results, difference(bed.counters(), before)


def test_a_ring_over_two_nodes(two_levels: Testbed) -> None:
    results, carried = crossing(two_levels, reduced, SIZE)
    assert results == [6.0] * 4
    assert [(edge.level, edge.instance) for edge in carried] == [("node", 0), ("node", 1)]
    expected = 2 * 3 / 4 * SIZE
    for edge in carried:
        assert expected <= edge.out <= OVERHEAD * expected
        assert expected <= edge.into <= OVERHEAD * expected
    assert carried[0].out == carried[1].into


def test_a_ring_over_three_levels(three_levels: Testbed) -> None:
    results, carried = crossing(three_levels, reduced, SIZE)
    assert results == [28.0] * 8
    names = [("rack", 0), ("rack", 1), *(("node", i) for i in range(4))]
    assert [(edge.level, edge.instance) for edge in carried] == names
    expected = 2 * 7 / 8 * SIZE
    for edge in carried:
        assert expected <= edge.out <= OVERHEAD * expected
        assert expected <= edge.into <= OVERHEAD * expected


def test_what_stays_in_a_leaf_crosses_nothing(two_levels: Testbed) -> None:
    results, carried = crossing(two_levels, reduced_in_runs, SIZE, 2)
    assert results == [1.0, 1.0, 5.0, 5.0]
    assert max(max(edge.out, edge.into) for edge in carried) < SIZE / 20


def test_what_stays_in_a_rack_does_not_leave_it(three_levels: Testbed) -> None:
    _, carried = crossing(three_levels, reduced_in_runs, SIZE, 4)
    racks, nodes = carried[:2], carried[2:]
    assert max(max(edge.out, edge.into) for edge in racks) < SIZE / 20
    assert min(min(edge.out, edge.into) for edge in nodes) >= 2 * 3 / 4 * SIZE


def together(bed: Testbed, size: int, pairs: list[tuple[int, int]]) -> float:
    """Bytes a second of all pairs together until the last has ended, the best of three."""
    results = bed.run(rates, size, pairs)
    received = [cast("list[float]", results[target]) for _, target in pairs]
    slowest: list[float] = [min(one_time) for one_time in zip(*received, strict=True)]
    return len(pairs) * max(slowest)


@pytest.mark.parametrize(
    ("pairs", "size", "rate"),
    [([(0, 7)], SIZE, 12.5e6), ([(3, 0)], 4 * SIZE, 100e6), ([(0, 4), (2, 6)], SIZE, 12.5e6)],
    ids=["between racks", "between nodes", "two nodes share what leaves their rack"],
)
def test_rates_hold(
    three_levels: Testbed, pairs: list[tuple[int, int]], size: int, rate: float
) -> None:
    assert 0.8 * rate <= together(three_levels, size, pairs) <= 1.05 * rate


def test_loopbacks_hold_their_rate_where_asked() -> None:
    with Testbed(two_by_two(inside=5e7), inside=True) as bed:
        assert 0.8 * 5e7 <= together(bed, 2 * SIZE, [(0, 1)]) <= 1.05 * 5e7


def test_side_by_side(two_levels: Testbed) -> None:
    with Testbed(two_by_two()) as other:
        assert crossing(two_levels, reduced, SIZE)[0] == [6.0] * 4
        assert all(edge.out < SIZE / 20 for edge in other.counters())
    assert two_levels.run(reduced, 4) == [6.0] * 4


def names(bed: Testbed) -> set[str]:
    return {bed.fabric, *bed.leaves}


def test_no_trace_after_a_failing_rank() -> None:
    bed = Testbed(two_by_two())

    def fail() -> None:
        with bed:
            assert names(bed) <= set(netlink.namespaces())
            bed.run(failing, 2)

    with pytest.raises(RankError, match="out of paper"):
        fail()
    assert names(bed).isdisjoint(netlink.namespaces())


def test_no_trace_of_what_was_laid_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.tree.address", lambda leaf: "10.77.0.256")
    bed = Testbed(two_by_two())
    with pytest.raises(InputError, match="the kernel refused the testbed's addresses"):
        bed.up()
    assert names(bed).isdisjoint(netlink.namespaces())


def owner_of_a_bed() -> tuple[subprocess.Popen[str], list[str]]:
    """A process with a testbed on which eight ranks run, and its namespaces, leaves first."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.bed_owner", str(CLUSTERS / "4x2.toml")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    names = process.stdout.readline().split()
    deadline = time.monotonic() + 60
    while len(running_in(names[:-1])) < 8 and time.monotonic() < deadline:
        time.sleep(0.1)
    return process, names


def running_in(leaves: list[str]) -> list[int]:
    return [process for leaf in leaves for process in netlink.processes(leaf)]


def test_no_trace_after_the_owner_was_killed() -> None:
    process, names = owner_of_a_bed()
    ranks = running_in(names[:-1])
    with process:
        remove_leftovers()
        assert set(names) <= set(netlink.namespaces()), "a living owner's testbed stays"
        process.send_signal(signal.SIGKILL)
    assert len(ranks) == 8
    assert set(names) <= set(netlink.namespaces())
    with Testbed(two_by_two()):
        assert set(names).isdisjoint(netlink.namespaces())
    deadline = time.monotonic() + 10
    while any(map(alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, ranks))


def alive(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "testbed", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_up_list_down() -> None:
    printed = verb("up", str(CLUSTERS / "4x2.toml")).stdout.splitlines()
    assert [line.split()[1] for line in printed] == [f"10.77.0.{i}" for i in (1, 2, 3, 4)]
    bed = printed[0].split()[0].rpartition("-")[0]
    try:
        remove_leftovers()
        assert f"{bed}  4 leaves, stays up\n" in verb("list").stdout
        leaf, other = printed[0].split()[0], printed[3].split()[1]
        reach = _UNREACHED.format(leaf, other)
        assert subprocess.run([sys.executable, "-c", reach], cwd=ROOT, check=False).returncode == 0
        assert f"{bed}  removed\n" in verb("down", bed).stdout
        assert bed not in {standing_bed.name for standing_bed in standing()}
    finally:
        remove(name for name in netlink.namespaces() if name.startswith(bed))


_UNREACHED = """
import socket
from testbed.netlink import enter
enter({!r})
try:
    socket.create_connection(({!r}, 9), timeout=5)
except ConnectionRefusedError:
    pass
"""
"""Somebody answers there, if only that nobody listens; who cannot be reached is a timeout."""


def test_others_are_never_touched() -> None:
    name = f"not-ours-{os.getpid()}"
    netlink.add_namespace(name)
    try:
        with Testbed(two_by_two()):
            pass
        remove_leftovers()
        assert name in netlink.namespaces()
        refused = verb("down", name)
    finally:
        netlink.remove_namespace(name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"no testbed {name!r} stays up here" in refused.stderr
