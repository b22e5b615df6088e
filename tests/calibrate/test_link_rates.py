"""Links that are measured, against rates that are known."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import BytesPerSecond, Seconds
from meshwright.calibrate.link_fit import LinkMeasurements, contradictions, fitted, probes
from meshwright.calibrate.link_rates import measure_links
from meshwright.calibrate.probes import (
    FittedLine,
    ProbeCrossing,
    busiest,
    everyone,
    filling,
    firsts,
    lines,
    pace,
)
from meshwright.cli.main import main
from meshwright.cluster.catalogue import catalogue_names
from meshwright.cluster.cluster import Cluster, Link
from meshwright.cluster.toml import dump_cluster, parse_cluster
from support.bed_clusters import cluster_of, level, loopback, port, two_by_two
from testbed import Testbed, unavailable
from testbed.tree import INTERFACE, address

ROOT = Path(__file__).parent.parent.parent
REASON = unavailable()
on_a_bed = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def racks(spine: float = 12.5e6, card: float = 50e6) -> Cluster:
    return cluster_of(
        level("rack", 2, port("rack", spine)),
        level("node", 2, port("node", card, outward=True)),
        level("process", 2, loopback(2e9)),
    )


def pairs_of_gpus() -> Cluster:
    """The first example of the page about clusters: two nodes, a card for each pair of GPUs."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    return parse_cluster(page.split("```toml\n")[1].split("```")[0])


def changed(cluster: Cluster, change: Callable[[int, Link], Link]) -> Cluster:
    """The cluster with other links; the change is told the level of each."""
    levels = tuple(
        msgspec.structs.replace(level, links=tuple(change(depth, link) for link in level.links))
        for depth, level in enumerate(cluster.levels)
    )
    return msgspec.structs.replace(cluster, levels=levels)


def shared_per(cluster: Cluster, per: str) -> Cluster:
    """The outermost links described as shared in another way."""
    return changed(
        cluster, lambda d, link: msgspec.structs.replace(link, per=per) if d == 0 else link
    )


def without_figures(cluster: Cluster) -> Cluster:
    """What must not change when links are measured."""
    one, none = BytesPerSecond(1.0), Seconds(0.0)
    plain = changed(
        cluster, lambda _, link: msgspec.structs.replace(link, out=one, into=one, latency=none)
    )
    device = msgspec.structs.replace(plain.device, toll=None)
    return msgspec.structs.replace(plain, device=device, source="")


def found_on(real: Cluster, described: Cluster) -> LinkMeasurements:
    """What is measured if the links are in truth those of another cluster."""
    latencies = tuple(None if pair is None else Seconds(1e-4) for pair in firsts(described))
    return LinkMeasurements(latencies, {pairs: pace(real, pairs) for pairs in probes(described)})


def rates(cluster: Cluster) -> list[list[float]]:
    return [[link.out for link in level.links] for level in cluster.levels]


# Who crosses what.


def test_a_port_is_filled_by_all_devices_behind_it() -> None:
    cluster = racks()
    assert filling(cluster, FittedLine(0, 0)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert filling(cluster, FittedLine(1, 0)) == ((0, 2), (1, 3))
    assert filling(cluster, FittedLine(2, 0)) == ((0, 1), (1, 0)), (
        "a medium carries both directions"
    )
    assert firsts(cluster) == ((0, 4), (0, 2), (0, 1))


def test_what_leaves_a_rack_crosses_the_cards_of_its_nodes() -> None:
    cluster = racks()
    spine, card, inside = FittedLine(0, 0), FittedLine(1, 0), FittedLine(2, 0)
    crossing = busiest(cluster, filling(cluster, spine))
    assert crossing == {spine: ProbeCrossing(4, 0), card: ProbeCrossing(2, 0)}
    both = busiest(cluster, everyone(cluster, 0))
    assert both == {spine: ProbeCrossing(4, 4), card: ProbeCrossing(2, 2)}
    assert busiest(cluster, everyone(cluster, 2)) == {inside: ProbeCrossing(2, 0)}
    assert pace(cluster, everyone(cluster, 0)) == 4 / 12.5e6


def test_half_duplex_ports_are_filled_in_both_directions() -> None:
    half = changed(
        two_by_two(),
        lambda d, link: msgspec.structs.replace(link, duplex="half") if d == 0 else link,
    )
    assert filling(half, FittedLine(0, 0)) == ((0, 2), (1, 3), (2, 0), (3, 1))
    assert pace(half, everyone(half, 0)) == 4 / 25e6


def test_blocks_share_a_card_and_all_cards_a_switch() -> None:
    cluster = pairs_of_gpus()
    card, switch = FittedLine(0, 0), FittedLine(0, 1)
    assert filling(cluster, card) == ((0, 4), (1, 5))
    assert filling(cluster, switch) == everyone(cluster, 0)
    crossing = busiest(cluster, everyone(cluster, 0))
    assert crossing == {card: ProbeCrossing(2, 2), switch: ProbeCrossing(8, 0)}


# What follows from what was measured.

speeds = st.integers(1, 1000).map(lambda n: BytesPerSecond(n * 1e6))
"""Four digits at most, as many as are kept."""


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Clusters of the catalogue and of the page, small, without rings and hubs, at any rates."""
    plain = [n for n in catalogue_names() if not Cluster.named(n).wired]
    known = [*map(Cluster.named, plain), pairs_of_gpus(), racks()]
    chosen = draw(st.sampled_from(known))
    small = {level.name: 2 for level in chosen.levels if level.cardinality > 4}
    speed = draw(st.lists(speeds, min_size=8, max_size=8))

    def faster(depth: int, link: Link) -> Link:
        rate = speed[depth + 3 * (link.name == chosen.levels[depth].links[0].name)]
        return msgspec.structs.replace(link, out=rate, into=rate)

    return changed(chosen.resized(small), faster)


@given(real=clusters(), scales=st.lists(st.sampled_from([0.1, 0.5, 1, 3]), min_size=6, max_size=6))
def test_what_was_measured_is_predicted_as_it_was(real: Cluster, scales: list[float]) -> None:
    def slower(depth: int, link: Link) -> Link:
        rate = BytesPerSecond(link.out * scales[depth])
        return msgspec.structs.replace(link, out=rate, into=rate)

    described = changed(real, slower)
    measurements = found_on(real, described)
    measured = fitted(described, measurements, "just now")
    assert without_figures(measured) == without_figures(real)
    for pairs, seconds in measurements.paces.items():
        assert pace(measured, pairs) == pytest.approx(seconds, rel=1e-3), "four digits are kept"
    assert not list(contradictions(measured, measurements))


def test_a_link_that_sets_the_pace_gets_its_rate_back() -> None:
    described = changed(racks(), lambda _, link: msgspec.structs.replace(link, out=1e9, into=1e9))
    assert rates(fitted(described, found_on(racks(), described), "")) == [[12.5e6], [50e6], [2e9]]


def test_two_rates_keep_their_ratio() -> None:
    real = two_by_two(25e6)
    described = changed(
        real, lambda d, link: link if d else msgspec.structs.replace(link, into=4e7)
    )
    (nic,) = fitted(described, found_on(real, described), "").levels[0].links
    assert (nic.out, nic.into) == (25e6, 40e6)


def test_latency_of_an_outer_level_is_what_outward_links_leave() -> None:
    latencies = (Seconds(5e-4), Seconds(2e-4), Seconds(1e-4))
    measurements = found_on(racks(), racks())._replace(latencies=latencies)
    measured = fitted(racks(), measurements, "")
    assert [level.links[0].latency for level in measured.levels] == [3e-4, 2e-4, 1e-4]


def test_the_source_says_how_once() -> None:
    measurements = found_on(racks(), racks())
    described = msgspec.structs.replace(racks(), source="A guess.")
    once = fitted(described, measurements, "on Monday")
    assert once.source == "Links measured on Monday. All else: A guess."
    assert fitted(once, measurements, "on Tuesday").source == once.source.replace("Mon", "Tues")
    assert fitted(racks(), measurements, "on Monday").source == "Links measured on Monday."


def told(real: Cluster, described: Cluster) -> list[str]:
    measurements = found_on(real, described)
    return list(contradictions(fitted(described, measurements, ""), measurements))


def test_a_link_that_is_shared_unlike_its_description_is_told() -> None:
    truth = two_by_two()
    assert told(truth, truth) == []
    assert told(truth, shared_per(truth, "process")) == [
        "all devices that send to another node at once move 50 MB/s, but 'node-port' (per "
        "'process') would carry 100 MB/s: they share something that the description does not "
        "tell; correct 'per', or describe what they share."
    ]
    assert told(truth, shared_per(truth, "cluster")) == [
        "all 4 transfers that share link 'node-port' (per 'cluster') move 50 MB/s together, but "
        "one alone only 25 MB/s: either they do not share one link, or one pair cannot fill it; "
        "correct 'per' if each has its own."
    ]


def test_what_cannot_be_filled_keeps_its_figures_and_is_told() -> None:
    ringed = Cluster.named("gcp-v100", node=2)
    measurements = found_on(ringed, ringed)
    measured = fitted(ringed, measurements, "")
    assert measured.levels[-1] == ringed.levels[-1]
    sentences = list(contradictions(measured, measurements))
    assert len(sentences) == len(ringed.levels[-1].links)
    assert sentences[0].endswith("keeps its described figures: its level has ring or hub links.")
    single = two_by_two().resized({"process": 1})
    assert told(single, single) == [
        "link 'loopback' keeps its described figures: nothing on this cluster crosses it."
    ]


# Real ranks.


def calibrated(*words: str) -> int:
    """The exit code of the verb."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["meshwright", "calibrate", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_every_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, text = tmp_path / "nodes.toml", tmp_path / "text.toml"
    cluster = msgspec.structs.replace(two_by_two(), machine="node")
    nodes.write_text(dump_cluster(cluster))
    text.write_text("name = 'no cluster'\n")
    mistakes = {
        "small' is 2 machines, and this is one of them; on each machine give: torchrun --nnodes 2 "
        f"--node-rank NUMBER --master-addr FIRST_MACHINE --master-port 29500 --nproc-per-node 2 -m "
        f"meshwright calibrate --links --cluster {nodes}.": ["--links", "--cluster", str(nodes)],
        "device is missing": ["--links", "--cluster", str(text)],
        "cannot read cluster file": ["--links", "--cluster", str(tmp_path / "none.toml")],
        "'laptop' is of the catalogue; give --out": ["--links", "--cluster", "laptop"],
        "cannot write": ["--links", "--cluster", "laptop", "--out", "/nowhere/x.toml"],
        "--links measures a cluster and no model": ["zoo:mlp", "--links", "--cluster", "laptop"],
        "operators are measured of a model": ["zoo:mlp"],
        "--ranks is 0": ["zoo:mlp", "--out", str(tmp_path / "t"), "--ranks", "0"],
    }
    for sentence, words in mistakes.items():
        assert calibrated(*words) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert sentence in printed.err


@pytest.mark.alone
@pytest.mark.ranks
def test_one_machine_is_measured_by_ranks_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "laptop.toml"
    before = Cluster.named("laptop", process=2)
    file.write_text("# A comment may go.\n" + dump_cluster(before))
    assert calibrated("--links", "--cluster", str(file)) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"Measured links are in {file}.\n")
    after = Cluster.load(str(file))
    assert without_figures(after) == without_figures(before)
    assert rates(after) != rates(before)
    assert after.source.startswith("Links measured on 2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["laptop.toml"]


def require_close(measured: Cluster, truth: Cluster) -> None:
    """The rates of all links but the loopback are known to the testbed."""
    for line in (line for line in lines(truth) if line.level < len(truth.levels) - 1):
        assert line.of(measured).out == pytest.approx(line.of(truth).out, rel=0.1)
        assert line.of(measured).into == line.of(measured).out


@pytest.mark.alone
@pytest.mark.ranks
@on_a_bed
def test_a_testbed_has_the_rates_it_was_given() -> None:
    truth = racks()
    described = changed(truth, lambda _, link: msgspec.structs.replace(link, out=1e9, into=1e9))
    with Testbed(truth) as bed:
        heard = bed.run(measure_links, described)
    assert heard == [heard[0]] * truth.devices
    measured = fitted(described, cast("LinkMeasurements", heard[0]), "")
    require_close(measured, truth)
    assert all(0 <= link.latency < 0.01 for link in measured.levels[-2].links)
    assert measured.device.toll is not None


@pytest.mark.alone
@pytest.mark.ranks
@on_a_bed
def test_a_testbed_contradicts_a_wrong_description() -> None:
    described = shared_per(two_by_two(), "process")
    with Testbed(two_by_two()) as bed:
        measurements = cast("LinkMeasurements", bed.run(measure_links, described)[0])
    sentences = list(contradictions(fitted(described, measurements, ""), measurements))
    assert any(
        "all devices that send to another node at once" in sentence for sentence in sentences
    )


def on_every_leaf(bed: Testbed, *words: str) -> Sequence[subprocess.CompletedProcess[str]]:
    """A verb under torchrun in every leaf."""
    started = []
    for number, leaf in enumerate(bed.leaves):
        meeting = [
            "--node-rank",
            str(number),
            "--master-addr",
            address(0),
            "--master-port",
            "29500",
        ]
        run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(bed.leaves))]
        command = ["ip", "netns", "exec", leaf, *run, "--nproc-per-node", "2", *meeting]
        started.append(
            subprocess.Popen(
                [*command, "-m", "meshwright", "calibrate", *words],
                env=os.environ | {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [process.communicate(timeout=120) for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *texts)
        for process, texts in zip(started, said, strict=True)
    ]


@pytest.mark.alone
@pytest.mark.ranks
@on_a_bed
def test_torchrun_on_every_machine_writes_the_file_on_the_first(tmp_path: Path) -> None:
    truth, file, out = two_by_two(), tmp_path / "in.toml", tmp_path / "out.toml"
    file.write_text(dump_cluster(truth))
    large = tmp_path / "large.toml"
    large.write_text(dump_cluster(truth.resized({"node": 3})))
    with Testbed(truth) as bed:
        done = on_every_leaf(bed, "--links", "--cluster", str(file), "--out", str(out))
        refused = on_every_leaf(bed, "--links", "--cluster", str(large))
    assert [one.returncode for one in done] == [0, 0], done
    assert [one.stdout.count("Measured links are in") for one in done] == [1, 0]
    assert without_figures(Cluster.load(str(out))) == without_figures(truth)
    require_close(Cluster.load(str(out)), truth)
    assert all(one.returncode for one in refused)
    sentence = "4 ranks were started, but cluster 'small' has 6 devices (node 3 x process 2)"
    assert [one.stderr.count(sentence) for one in refused] == [1, 0]
    assert "exitcode  : 2" in refused[0].stderr
