"""Exports for JAX, DeepSpeed and Accelerate, judged by those libraries.

    python benchmarks/export_libraries.py --python PYTHON [--only jax deepspeed accelerate]

PYTHON is that of an environment with jax, deepspeed and accelerate (and torch, but not
Meshwright). Configurations of six models become plans, plans become files, and
`export_libraries_judge.py` reads those there:

    jax         the Mesh is built on CPU devices (--xla_force_host_platform_device_count), and
                every parameter is put on it; the box that each device then holds is compared with
                the one that the plan gives it (`lower.ownership`, which knows no PartitionSpec)
    deepspeed   DeepSpeedConfig of ds_config.json, told that there are so many ranks
    accelerate  'accelerate launch' parses accelerate.yaml; ParallelismConfig and the FSDP plugin
                are built from the environment that it would start ranks with; Transformers
                builds the TrainingArguments
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.data import zero
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.export.exported import Exported
from meshwright.export.write import exported
from meshwright.lower.ownership import Holdings
from meshwright.lower.script import Script
from meshwright.plan.plan import Plan

MODELS = (
    "zoo:llama3-8b/tiny",
    "zoo:bert-large/tiny",
    "zoo:gpt2-xl/tiny",
    "zoo:vit-large/tiny",
    "zoo:mixtral-8x7b/tiny",
    "zoo:mlp/tiny",
)
TARGETS = ("jax", "deepspeed", "accelerate")
JUDGE = Path(__file__).with_name("export_libraries_judge.py")
BATCH = 16


def configurations() -> Iterator[tuple[Cluster, ParallelConfig]]:
    """Degrees of DP and TP on one and two nodes, with every stage of ZeRO."""
    for nodes, gpus in ((1, 4), (2, 4)):
        cluster = Cluster.named("dgx-h100", node=nodes, gpu=gpus)
        for tensor in (1, 2, 4):
            for stage in (0, 1, 2, 3):
                data = cluster.devices // tensor
                yield cluster, ParallelConfig(data=data, tensor=tensor, zero=stage)


def plans(model: str) -> Iterator[Plan]:
    graph = load_model(model, BATCH).graph
    for cluster, config in configurations():
        try:
            plan = configured(graph, cluster, config)
        except InputError:
            if config.tensor > 1:
                continue
            plan = zero(config.zero)(graph, cluster)
        yield replace(plan, model=model, batch=BATCH)


def held(export: Exported) -> dict[str, list[list[list[int]]]]:
    """For every parameter the box that each device computes with, by the plan that was written."""
    plan = export.plans[1]
    whole = plan.changed(options=replace(plan.options, zero=0))
    holdings = Holdings(Script(whole))
    boxes = {}
    for parameter in whole.graph.parameters:
        name = parameter.tensor.name
        if name not in holdings.shares:
            continue
        regions = [holdings.regions(name, n) for n in range(plan.cluster.devices)]
        boxes[name] = [[list(ends) for ends in device_regions[0].box] for device_regions in regions]
    return boxes


def write_all(folder: Path, targets: tuple[str, ...]) -> int:
    count = 0
    for model in MODELS:
        for plan in plans(model):
            for target in targets:
                try:
                    export = exported(plan, plan.graph, target)
                except InputError:
                    continue
                place = folder / f"{count:03}" / target
                place.mkdir(parents=True)
                for name, text in export.files:
                    (place / name).write_text(text)
                said: dict[str, Any] = {
                    "model": model, "devices": plan.cluster.devices, "batch": BATCH,
                    "degrees": export.config.degrees, "zero": export.config.zero,
                    "micro_batches": export.config.micro_batches, "lost": " ".join(export.lost),
                }  # fmt: skip
                if target == "jax":
                    said["held"] = held(export)
                (place / "said.json").write_text(json.dumps(said))
            count += 1
    return count


def judged(python: str, target: str, folder: Path) -> list[dict[str, Any]]:
    words = [python, "-W", "ignore", str(JUDGE), target, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"plan"')]
    if not lines:
        raise SystemExit(f"{target}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", choices=TARGETS, nargs="*", default=TARGETS)
    asked = parser.parse_args()
    targets = tuple(asked.only)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{write_all(folder, targets)} plans of {len(MODELS)} models")
        for target in targets:
            rows = judged(asked.python, target, folder)
            bad = [row for row in rows if row["said"] != "accepted"]
            more = ""
            if target == "jax":
                more = f"; {sum(row['parameters'] for row in rows)} parameters placed"
            print(f"{target}: {len(rows) - len(bad)} of {len(rows)} accepted{more}")
            for row in bad:
                print(f"  {row['plan']}: {row['said']}")


if __name__ == "__main__":
    main()
