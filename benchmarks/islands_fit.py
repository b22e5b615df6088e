"""What V100s and T4s of AMP's trials reach: rates of mixed-v100-t4 fitted to measured steps.

    python benchmarks/islands_fit.py --run --processes 14 --seconds 300     rows are appended
    python benchmarks/islands_fit.py                                        the best row, all steps

Random starts around the data sheet, then one constant after the other is changed while the median
error (plus a tenth of the mean) of the measured steps gets less.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from msgspec.structs import replace

from meshwright.base.quantities import Seconds
from meshwright.capture.load import load_model
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.cluster.island_toml import named_machine
from meshwright.cluster.rates import Rates, Software
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.validate.heterogeneous import (
    HetJudged,
    Judge,
    embedded_rows,
    median_error,
    pairs_in_order,
)

FILE = Path(__file__).with_suffix(".jsonl")
FIXED = {"half_head": 20.0, "half": 73.36, "attention": 1.079}
START = {
    "v100.best": 0.4,
    "v100.streaming": 0.7,
    "v100.scores": 3.0,
    "v100.node": 0.5,
    "v100.gpu": 0.6,
    "t4.best": 0.16,
    "t4.streaming": 0.5,
    "t4.scores": 3.0,
    "t4.node": 0.4,
    "t4.gpu": 0.6,
    "launch": 8e-6,
}
LEAST, MOST = 0.04, 1.0


def machine_of(constants: dict[str, float]) -> IslandCluster:
    machine = named_machine("mixed-v100-t4")
    assert isinstance(machine, IslandCluster)
    islands = []
    for island in machine.islands:
        island_values = {
            name.partition(".")[2]: value
            for name, value in constants.items()
            if name.startswith(f"{island.name}.")
        }
        rates = Rates(
            best=island_values["best"],
            streaming=island_values["streaming"],
            scores=island_values["scores"],
            launch=Seconds(constants["launch"]),
            **FIXED,  # type: ignore[arg-type]
        )
        device = replace(island.cluster.device, rates=rates, software=Software(flash=False))
        levels = tuple(
            replace(
                level,
                links=tuple(
                    replace(
                        link,
                        out=link.out * island_values[level.name],
                        into=link.into * island_values[level.name],
                    )
                    for link in level.links
                ),
            )
            for level in island.cluster.levels
        )
        islands.append(
            replace(island, cluster=replace(island.cluster, device=device, levels=levels))
        )
    return replace(machine, islands=tuple(islands))


class Trial:
    """Judges constants; graphs are made once."""

    def __init__(self) -> None:
        self._captured: dict[tuple[str, int], OperatorGraph] = {}
        self._graphs: dict[tuple[object, ...], OperatorGraph] = {}
        self.rows = [row for row in embedded_rows() if row.measured and "gpt" in row.model]

    def _graph(self, source: str, batch: int) -> OperatorGraph:
        key = source, batch
        if key not in self._captured:
            self._captured[key] = load_model(source, batch, {}).graph
        return self._captured[key]

    def judged(self, constants: dict[str, float], recompute: bool) -> list[HetJudged]:
        """All rows with some constants."""
        judge = Judge(self._graph, machine_of(constants), recompute=recompute)
        judge._graphs = self._graphs
        return [judge.judged(row) for row in self.rows]

    def score(self, constants: dict[str, float], recompute: bool) -> dict[str, float]:
        """How good constants are."""
        judgements = self.judged(constants, recompute)
        errors = [judgement.error for judgement in judgements if judgement.error is not None]
        even = [judgement for judgement in judgements if judgement.row.experiment == "homogeneous"]
        mixed = [judgement for judgement in judgements if judgement.row.experiment != "homogeneous"]
        return {
            "median": median_error(judgements),
            "even": median_error(even),
            "mixed": median_error(mixed),
            "mean": sum(errors) / len(errors),
            "order": pairs_in_order(judgements),
            "rows": len(errors),
        }


def fitted(seed: int, seconds: float) -> None:
    """Rows of one process, until its time is over."""
    draw, trial, end = random.Random(seed), Trial(), time.monotonic() + seconds
    recompute = seed % 2 == 0
    best = {
        name: value if seed < 2 else value * draw.uniform(0.5, 1.6) for name, value in START.items()
    }
    score = _goal(scores := trial.score(best, recompute))
    _append(best, recompute, scores)
    step = 1.35
    while time.monotonic() < end and step > 1.02:
        better = False
        for name in draw.sample(list(best), len(best)):
            for factor in (step, 1 / step):
                tried = best | {name: best[name] * factor}
                if name.split(".")[-1] in ("best", "streaming", "node", "gpu"):
                    tried[name] = min(MOST, max(LEAST, tried[name]))
                scores = trial.score(tried, recompute)
                if _goal(scores) < score:
                    best, score, better = tried, _goal(scores), True
                    _append(best, recompute, scores)
                    break
                if time.monotonic() > end:
                    return
        step = step if better else step**0.5


def _goal(scores: dict[str, float]) -> float:
    return scores["median"] + scores["even"] + scores["mixed"] + 0.3 * scores["mean"]


def _append(constants: dict[str, float], recompute: bool, scores: dict[str, float]) -> None:
    row = {"recompute": recompute, **scores, "constants": constants}
    with FILE.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _shown(tell: Callable[[str], None]) -> None:
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    best = min(rows, key=lambda row: _goal(row))
    tell(json.dumps(best, indent=1))
    for judgement in Trial().judged(best["constants"], best["recompute"]):
        row = judgement.row
        tell(
            f"{row.experiment} {row.stages} TP {row.tensor} DP {row.data} micro-batch "
            f"{row.micro_batch}: {row.measured} s measured, "
            + (
                f"{judgement.predicted:.2f} s predicted"
                if judgement.predicted
                else judgement.skipped
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    if options.run:
        with ProcessPoolExecutor(options.processes) as pool:
            jobs = [pool.submit(fitted, seed, options.seconds) for seed in range(options.processes)]
            for job in jobs:
                job.result()
    _shown(print)


if __name__ == "__main__":
    main()
