"""Exports for Megatron and torchtitan, judged by those systems' own parsers.

    python benchmarks/export_parsers.py --python PYTHON [--old FOLDER]

PYTHON is that of an environment with torch, megatron-core and torchtitan 0.3 (pip install --no-deps
into a scratch one; tyro, spmd_types, triton besides), FOLDER a place with torchtitan 0.2.2 (pip
install --no-deps --target). Configurations of torchtitan's debug model on 8, 16 and 32 GPUs become
plans, plans become files, and `export_parsers_judge.py` reads those there. Files of six models more
are for Megatron-Core, which also builds the model that the flags mean: it must have as many
parameters as the plan's. Nothing is trained.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.export.exported import Exported
from meshwright.export.write import exported
from meshwright.graph.cast import cast_graph
from meshwright.plan.plan import Plan

DEBUG = (
    "zoo:llama3-8b?layers=6&hidden=256&heads=16&key_value_heads=16&inner=768&vocabulary=2048"
    "&sequence=256"
)
"""torchtitan's debug model; the others are for Megatron alone."""

MODELS = {
    DEBUG: (1, 2, 4),
    "zoo:gpt2-xl?layers=6&hidden=256&heads=16&vocabulary=2048&sequence=256": (1,),
    "zoo:mixtral-8x7b?layers=6&hidden=256&heads=16&key_value_heads=8&inner=768&vocabulary=2048"
    "&sequence=256": (1,),
    "hf:Qwen3ForCausalLM/tiny?head_dim=32&num_hidden_layers=6": (1,),
    "hf:Qwen2ForCausalLM/tiny?num_hidden_layers=6": (1,),
    "hf:Qwen3MoeForCausalLM/tiny?num_hidden_layers=6": (1,),
    "hf:Phi3ForCausalLM/tiny?num_hidden_layers=6": (1,),
}
"""With the numbers of nodes: dropout, biases, heads of another width, norms of heads, experts."""

JUDGE = Path(__file__).with_name("export_parsers_judge.py")


def configurations(devices: int, experts: int) -> Iterator[ParallelConfig]:
    """Degrees that multiply to some devices, with settings that take turns."""
    number = 0
    for tensor, pipeline, context in product((1, 2, 4, 8), (1, 2, 3, 4), (1, 2)):
        taken = tensor * pipeline * context
        if devices % taken:
            continue
        number += 1
        yield ParallelConfig(
            tensor=tensor,
            pipeline=pipeline,
            context=context,
            data=devices // taken,
            micro_batches=4 if pipeline > 1 else 1 + number % 2,
            chunks=3 if pipeline == 2 and number % 2 else 1,
            zero=number % 4,
            recompute=number % 3 == 0,
            recompute_layers=3 if number % 6 == 0 else 0,
            uneven=pipeline == 4,
            expert=math.gcd(experts, devices // taken * context, 4) if experts else 1,
            sequence=tensor > 1,
            mixed=True,
        )


def write_all(folder: Path) -> int:
    """Files of all plans, a folder each; how many plans."""
    count = 0
    for model, machines in MODELS.items():
        graph = cast_graph(load_model(model, 64).graph, "bfloat16")
        targets = ("megatron", "torchtitan") if model == DEBUG else ("megatron",)
        for nodes in machines:
            cluster = Cluster.named("dgx-h100", node=nodes)
            for config in configurations(cluster.devices, transformer_facts(graph).experts):
                try:
                    plan = configured(graph, cluster, config)
                except InputError:
                    continue
                for target in targets:
                    write(exported(plan, graph, target), folder / f"{count:03}" / target, plan)
                count += 1
    return count


def write(export: Exported, place: Path, plan: Plan) -> None:
    """The files of an export, and what they are judged by."""
    place.mkdir(parents=True)
    for name, text in export.files:
        (place / name).write_text(text)
    (place / "devices").write_text(str(plan.cluster.devices))
    (place / "parameters").write_text(str(plan.graph.parameter_count))


def judged(python: str, system: str, folder: Path, old: str | None) -> list[dict[str, str]]:
    """What a parser says of each plan."""
    words = [python, "-W", "ignore", str(JUDGE), system, str(folder), *([old] if old else [])]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{system}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--old")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{write_all(folder)} plans")
        systems = ["megatron-core", "torchtitan-0.3", *(["torchtitan-0.2"] if asked.old else [])]
        for system in systems:
            rows = judged(asked.python, system, folder, asked.old if "0.2" in system else None)
            bad = [row for row in rows if row["said"] != "accepted"]
            print(f"{system}: {len(rows) - len(bad)} of {len(rows)} accepted")
            for row in bad:
                print(f"  {row['plan']}: {row['said']}")


if __name__ == "__main__":
    main()
