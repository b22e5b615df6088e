"""Irregular machines: the found plan against the usual answers, and how planning grows.

    python benchmarks/islands.py --run --processes 6 --budget 40s     rows are appended
    python benchmarks/islands.py                                      the table

Each row is one machine and one model: steps of the plan over islands, of equal shares, of each
island alone, of one regular machine (odd devices dropped), and the seconds that planning took.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.degraded import degraded
from meshwright.cluster.island_cluster import IslandCluster, Machine
from meshwright.cluster.island_toml import named_machine, parse_machine
from meshwright.graph.cast import cast_graph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.islands.island_planner import best_island_plan
from meshwright.search.islands.island_question import IslandQuestion

FILE = Path(__file__).with_suffix(".jsonl")

NAMED = """name = "{name}"
{islands}"""
ISLAND = """
[[island]]
name = "{name}"
cluster = "{cluster}"
resize = {{ node = {nodes} }}
speed = {speed}
"""


def mixed(name: str, *islands: tuple[str, str, int, float]) -> Machine:
    text = "".join(
        ISLAND.format(name=island, cluster=cluster, nodes=nodes, speed=speed)
        for island, cluster, nodes, speed in islands
    )
    return parse_machine(NAMED.format(name=name, islands=text))


def machines() -> dict[str, tuple[Machine, str, int]]:
    """The machine, the model and the batch of each row."""
    h100 = Cluster.named("hgx-h100")
    three = (("h100", "hgx-h100", 2, 1.0), ("a100", "hgx-a100", 2, 1.0))
    thousand = (
        ("h100", "hgx-h100", 400, 1.0),
        ("a100", "hgx-a100", 320, 1.0),
        ("tired", "hgx-h100", 280, 0.8),
    )
    llama, bert = "zoo:llama3-8b", "zoo:bert-large"
    return {
        "4x8 without a GPU": (degraded(h100, ["node3.gpu5"]), llama, 62),
        "8x8, one node with 7": (
            degraded(h100.resized({"node": 8}), ["node0.gpu0"]),
            llama,
            252,
        ),
        "32x8, 31 nodes and one with 4": (
            degraded(h100.resized({"node": 32}), [f"node31.gpu{n}" for n in range(4)]),
            llama,
            1016,
        ),
        "5x6 and one with 5": (
            degraded(h100.resized({"node": 5, "gpu": 6}), ["node4.gpu5"]),
            bert,
            116,
        ),
        "4x8, a straggler at 70 %": (degraded(h100, slow={"node2": 0.7}), llama, 64),
        "H100 + A100 + V100": (
            mixed("three", *three, ("v100", "jean-zay-v100", 4, 1.0)),
            bert,
            256,
        ),
        "V100 + T4 (AMP)": (named_machine("mixed-v100-t4"), bert, 32),
        "1,000 nodes in three islands": (mixed("thousand", *thousand), llama, 8192),
    }


def planned(name: str, budget: str) -> None:
    """One row."""
    machine, model, batch = machines()[name]
    assert isinstance(machine, IslandCluster)
    dtype = "float16" if "V100" in name else "bfloat16"
    graph = cast_graph(load_model(model, batch, {}).graph, dtype)
    begin, used = time.monotonic(), time.process_time()
    question = IslandQuestion(graph=graph, cluster=machine, training=Options(mixed=True))
    answer = best_island_plan(question, Budget.parse(budget))
    best = answer.best
    row = {
        "name": name,
        "model": model,
        "batch": batch,
        "budget": budget,
        "devices": machine.devices,
        "seconds": time.monotonic() - begin,
        "cpu_seconds": time.process_time() - used,
        "best": best.plan.origin,
        "step": best.prediction.step,
        "missing": best.prediction.missing,
        "bound": answer.bound,
        "parts": [(part.name, part.stage, part.share) for part in best.plan.parts],
        "idle": best.plan.idle,
        "others": {
            candidate.plan.origin: (candidate.prediction.step, candidate.prediction.missing)
            for candidate in answer.alternatives
        },
    }
    with FILE.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _shown() -> None:
    for line in FILE.read_text().splitlines():
        row = json.loads(line)
        others = {
            name: f"{step / row['step']:.3f}x" + (" (does not fit)" if missing else "")
            for name, (step, missing) in row["others"].items()
            if name != row["best"]
        }
        print(f"{row['name']}: {row['model']}, batch {row['batch']}, {row['devices']} devices")
        took = f"{row['step']:.4g} s; planned in {row['seconds']:.3g} s"
        print(f"  {row['best']} {row['parts']}: {took}")
        print(f"  others take: {others}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--budget", default="40s")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.run:
        done = (
            {json.loads(line)["name"] for line in FILE.read_text().splitlines()}
            if FILE.exists()
            else set()
        )
        names = [name for name in machines() if name not in done and options.only in name]
        with ProcessPoolExecutor(options.processes, max_tasks_per_child=1) as pool:
            jobs = {name: pool.submit(planned, name, options.budget) for name in names}
            for name, job in jobs.items():
                error = job.exception()
                if error is not None:
                    print(f"{name}: {error}")
    _shown()


if __name__ == "__main__":
    main()
