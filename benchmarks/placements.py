"""Speed of synthesis and pricing. Run with `make bench`; prints what it measures.

Everything that the code remembers between calls is forgotten before each timed run, so that a
time includes the synthesis itself; only imports are warm.
"""

from __future__ import annotations

import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from appendix import Configuration, configurations
from meshwright import Cluster, Pricer, Ranker, Reduction, cheapest, placements, rank
from meshwright.base.quantities import Bytes, BytesPerSecond, Seconds
from meshwright.cluster.cluster import Level, Link
from meshwright.collectives import laws, synthesize
from meshwright.collectives.hierarchy import reduction_hierarchy
from meshwright.cost import double_tree

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "time_against_devices.svg"


def forget() -> None:
    for remembered in (
        synthesize._graph,
        laws.state_entry,
        laws._contexts,
        double_tree.crossings,
        double_tree.tree_edges,
    ):
        remembered.cache_clear()


def timed(work: Callable[[], object], runs: int = 5) -> tuple[float, float]:
    """Median and worst seconds of some runs, each from nothing remembered."""
    seconds = []
    for _ in range(runs):
        forget()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds), max(seconds)


def five_levels(pods: int, racks: int, nodes: int, sockets: int, gpus: int) -> Cluster:
    """A machine in five levels; only the cardinalities vary."""
    rates = {"pod": 25e9, "rack": 100e9, "node": 50e9, "socket": 60e9, "gpu": 376e9}
    sizes = (pods, racks, nodes, sockets, gpus)
    levels = []
    for (name, rate), cardinality in zip(rates.items(), sizes, strict=True):
        bandwidth = BytesPerSecond(rate)
        link = Link(
            name=f"{name}-link", per=name, out=bandwidth, into=bandwidth, latency=Seconds(5e-6)
        )
        levels.append(Level(name=name, cardinality=cardinality, links=(link,)))
    device = Cluster.named("dgx-h100").device
    return Cluster(name="five-levels", levels=tuple(levels), device=device, machine="node")


def price_everything(every: list[Configuration]) -> int:
    """Every program of every placement of the configurations, and the best one; how many."""
    programs = 0
    for cluster_name, nodes, sizes, reduced in every:
        cluster = Cluster.named(cluster_name, node=nodes)
        axes = {str(i): size for i, size in enumerate(sizes)}
        reduction = Reduction(tuple(map(str, reduced)), Bytes(2 << 30))
        ranker = Ranker(Pricer(cluster))
        for placement in placements(cluster, axes):
            programs += len(ranker.priced_programs(placement, reduction))
            ranker.price(placement, reduction)
    return programs


def best_of_one_placement(cluster: Cluster) -> Callable[[], object]:
    """Synthesis of the cheapest program for a reduction over all five levels."""
    everything = {"data": cluster.devices}
    (placement,) = placements(cluster, everything)

    def work() -> object:
        hierarchy = reduction_hierarchy(cluster, placement, ["data"])
        return cheapest(hierarchy, Pricer(cluster), 1e9)

    return work


def row(words: str, seconds: tuple[float, float], goal: str) -> None:
    print(f"{words:<66} {seconds[0] * 1e3:9.1f} ms {seconds[1] * 1e3:9.1f} ms   {goal}")


def main() -> None:
    print(f"{'measured, nothing remembered, imports warm':<66} {'median':>12} {'worst':>12}   goal")
    every = list(configurations())
    row(
        f"all {len(every)} configurations of Appendix A, every program priced, ring",
        timed(lambda: price_everything(every)),
        "500 ms",
    )

    big = five_levels(8, 16, 32, 2, 8)
    row(
        f"best program of one placement, 5 levels, {big.devices} devices",
        timed(best_of_one_placement(big)),
        "50 ms",
    )
    axes = {"data": 256, "tensor": 32, "pipe": 8}
    reductions = [Reduction.parse("data=1GB")]
    count = sum(1 for _ in placements(big, axes))
    row(
        f"all {count} placements of three axes ranked, {big.devices} devices",
        timed(lambda: rank(Ranker(Pricer(big)), axes, reductions), runs=3),
        "10 s",
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{'peak memory of this process so far':<66} {peak:9.0f} MB {'':>12}   300 MB")

    for code, what in (("-c", "import meshwright"), ("-m", "meshwright --help")):
        command = [sys.executable, code, *(what.split() if code == "-m" else [what])]
        run = lambda command=command: subprocess.run(command, capture_output=True, check=True)  # noqa: E731
        row(f"{'python -m ' if code == '-m' else ''}{what}, a new process", timed(run), "500 ms")

    print("\nbest program of one placement against the number of devices, 5 levels:")
    sweep = []
    for power in range(5, 21, 3):
        sizes = [2] * 5
        for extra in range(power - 5):
            sizes[extra % 5] *= 2
        cluster = five_levels(*sizes)
        seconds = timed(best_of_one_placement(cluster))
        sweep.append((cluster.devices, seconds[0]))
        row(f"  {cluster.devices} devices", seconds, "flat")
    slowest, fastest = max(s for _, s in sweep), min(s for _, s in sweep)
    print(
        f"  slowest / fastest over a factor of {sweep[-1][0] // sweep[0][0]} in devices: "
        f"{slowest / fastest:.2f}"
    )
    plot(sweep)


def plot(sweep: list[tuple[int, float]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3))
    axes.plot([d for d, _ in sweep], [s * 1e3 for _, s in sweep], marker="o")
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.5 * math.ceil(max(s for _, s in sweep) * 1e3))
    axes.set_xlabel("devices (five levels)")
    axes.set_ylabel("ms, measured")
    axes.set_title("Best reduction program of one placement")
    axes.grid(alpha=0.3)
    figure.tight_layout()
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})
    print(f"drawn in {FIGURE.relative_to(FIGURE.parent.parent.parent)}")


if __name__ == "__main__":
    main()
