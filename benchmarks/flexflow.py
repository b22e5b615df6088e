"""FlexFlow's comparisons: predicted step times of its six models on its two clusters.

    python benchmarks/flexflow.py [--budget 10s] [--seed 0] [--quick] [--only nmt] [--backends ...]

Each row is `compare` on one model, machine, batch and backend: data parallelism, the expert's
strategy, OptCNN, operator placement (the space of REINFORCE), and the search, as ratios to the
search; then how much data a step moves under data parallelism, the expert's and the search's plan.
`nccl` sends with NCCL's rings and the best reduction programs, `pairs` point to point without
them, as FlexFlow's runtime did. Under each row stands the command that makes it again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import NamedTuple

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import backend_named
from meshwright.search.budget import Budget
from meshwright.search.compare import Comparison, compare

MODELS = ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt")
MACHINES = {
    "4 P100": ("flexflow-p100", {"node": 1}, 4),
    "16 P100": ("flexflow-p100", {"node": 4}, 16),
    "64 K80": ("flexflow-k80", {"node": 16}, 64),
}
EACH = {"alexnet": 256}
"""Samples a device; 64 of all others."""

BACKENDS = ("nccl", "pairs")


class Row(NamedTuple):
    """One comparison."""

    model: str
    machine: str
    batch: int
    backend: str

    def command(self, budget: str, seed: int) -> str:
        """What makes this row alone."""
        return (
            f"python benchmarks/flexflow.py --budget {budget} --seed {seed} --only {self.model} "
            f"--machines '{self.machine}' --backends {self.backend} --batches {self.batch}"
        )


def rows(
    models: list[str], machines: list[str], backends: list[str], batches: list[int]
) -> Iterator[Row]:
    """All rows; with `batches` only those."""
    for backend in backends:
        for machine in machines:
            for model in models:
                whole = EACH.get(model, 64) * MACHINES[machine][2]
                smaller = [64] if (model, machine) == ("nmt", "64 K80") else []
                for batch in (whole, *smaller):
                    if not batches or batch in batches:
                        yield Row(model, machine, batch, backend)


def compared(row: Row, budget: str, seed: int) -> Comparison:
    """Run one comparison."""
    name, levels, _ = MACHINES[row.machine]
    return compare(
        load_model(f"zoo:{row.model}", row.batch).graph,
        Cluster.named(name, **levels),
        Budget.parse(budget),
        backend=backend_named(row.backend),
        programs=row.backend != "pairs",
        seed=seed,
    )


HEAD = (
    "model         machine  batch  backend   data ms  search ms |  data expert optcnn placed |"
    "   data GB expert GB search GB | local"
)


def line(row: Row, result: Comparison) -> str:
    """What is printed of a comparison."""
    predictions = {name: strategy.prediction for name, strategy in result.strategies}
    best = predictions["search"]

    def ratio(name: str) -> str:
        return f"{predictions[name].step / best.step:6.2f}" if name in predictions else "     -"

    def moved(name: str) -> str:
        return f"{predictions[name].moved / 1e9:9.2f}" if name in predictions else "        -"

    names = ("data parallel", "expert-designed", "optcnn", "operator placement")
    return (
        f"{row.model:13} {row.machine:>7} {row.batch:6} {row.backend:>8} "
        f"{predictions['data parallel'].step * 1e3:9.2f} {best.step * 1e3:10.2f} |"
        f"{''.join(map(ratio, names))} | "
        f"{' '.join(map(moved, ('data parallel', 'expert-designed', 'search')))} | "
        f"{'yes' if result.found.local_optimum else 'no':>5}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="10s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="NCCL, 4 P100, 2000 proposals")
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--batches", default="")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.machines, arguments.backends, arguments.budget = "4 P100", "nccl", "2000"
    began = time.monotonic()
    print(HEAD)
    for row in rows(
        arguments.only.split(","),
        arguments.machines.split(","),
        arguments.backends.split(","),
        [int(batch) for batch in arguments.batches.split(",") if batch],
    ):
        print(line(row, compared(row, arguments.budget, arguments.seed)))
        print(f"  {row.command(arguments.budget, arguments.seed)}", flush=True)
    print(f"all predicted; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
