"""Peak memory of plans on NCCL ranks that share a GPU, beside what is predicted.

    PYTHONPATH=tests python benchmarks/gpu_memory.py          # the table of the rows that are kept
    PYTHONPATH=tests python benchmarks/gpu_memory.py --run    # measures them; needs a GPU

Measured is the most that PyTorch's allocator has handed out on any rank
(`torch.cuda.max_memory_allocated`) in three steps after one to warm up; what gradients take of it
is looked up at the fullest moment of one more. Rows are kept in benchmarks/gpu_memory.jsonl. With
--run models and dtypes can be named: --run BERT float32.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import msgspec

from meshwright.base.quantities import Seconds
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Held, Measurement, Plan
from meshwright.run.launch.gpus import mps_service
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.run.training import TrainingTask
from support.training_bodies import trains_each

RESULTS = Path(__file__).with_suffix(".jsonl")
RANKS, BATCH, STEPS = 4, 32, 3

MODELS = {
    "BERT": "zoo:bert-large?layers=4&sequence=256&dropout=0",
    "GPT-2": "zoo:gpt2-xl?layers=4&hidden=1280&heads=20&sequence=256&dropout=0",
    "Llama": "zoo:llama3-8b?layers=4&hidden=1024&heads=8&key_value_heads=4&inner=3584"
    "&vocabulary=32000&sequence=256",
    "ViT": "zoo:vit-large?layers=6",
}

CONFIGS = (
    *(ParallelConfig(data=4, zero=zero) for zero in (0, 1, 2, 3)),
    ParallelConfig(data=4, zero=2, micro_batches=4),
    ParallelConfig(data=4, zero=3, recompute=True),
    ParallelConfig(data=2, pipeline=2, micro_batches=4, zero=1),
    ParallelConfig(data=2, tensor=2),
)
DTYPES = ("float32", "bfloat16")


class Case(NamedTuple):
    """What is trained."""

    model: str
    dtype: str
    config: ParallelConfig

    @property
    def plan(self) -> Plan:
        """For ranks as nodes of two."""
        cluster = Cluster.named("dgx-h100", node=2, gpu=2)
        return configured(_graph(self.model, self.dtype), cluster, self.config)


@cache
def _graph(model: str, dtype: str) -> OperatorGraph:
    return cast_graph(load_model(MODELS[model], BATCH).graph, dtype)


def cases() -> Iterator[Case]:
    """All of them; not every model has layers to cut for a pipeline or tensors."""
    for model in MODELS:
        for dtype in DTYPES:
            for config in CONFIGS:
                yield Case(model, dtype, config)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of a case."""

    model: str
    dtype: str
    config: ParallelConfig
    peak: int
    held: Held


def measure(all_: Sequence[Case]) -> list[Row]:
    """Train all cases on the same ranks."""
    tasks = [
        TrainingTask(case.plan, MODELS[case.model], steps=STEPS, measure=True) for case in all_
    ]
    home, patience = Home(gpus=1), Seconds(900.0)
    (measurements, *_) = run_ranks(trains_each, tasks, ranks=RANKS, home=home, timeout=patience)
    return [
        Row(
            model=case.model,
            dtype=case.dtype,
            config=case.config,
            peak=int(ran.memory.total),
            held=ran.memory,
        )
        for case, ran in zip(all_, cast(list[Measurement], measurements), strict=True)
    ]


def table(rows: Sequence[Row]) -> None:
    """Predicted beside measured, and the errors."""
    from meshwright.simulate.simulation import simulate

    known = {Case(row.model, row.dtype, row.config): row for row in rows}
    errors = []
    print(f"{'model':7}{'dtype':10}{'configuration':44}{'predicted':>10}{'measured':>10}  error")
    for case in cases():
        row = known.get(case)
        if row is None:
            continue
        held = simulate(case.plan).prediction.memory
        error = held.tensors / row.peak - 1
        errors.append(abs(error))
        kinds = zip(_kinds(held), _kinds(row.held), strict=True)
        details = "  ".join(
            f"{name} {a / 2**20:.0f}|{b / 2**20:.0f}" for (name, a), (_, b) in kinds
        )
        print(
            f"{case.model:7}{case.dtype:10}{case.config!s:44}{held.tensors / 2**20:>7.0f}MiB"
            f"{row.peak / 2**20:>7.0f}MiB {error:>+6.1%}  {details}"
        )
    within = sum(deviation <= 0.05 for deviation in errors)
    print(
        f"{len(errors)} plans: median error {statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}, within 5 % {within}"
    )


def _kinds(held: Held) -> list[tuple[str, int]]:
    return [
        ("parameters", held.parameters),
        ("gradients", held.gradients),
        ("optimizer", held.optimizer),
        ("rest", held.activations + held.workspace),
    ]


def main(words: Sequence[str]) -> None:
    """Measure if that is asked for, else print."""
    if "--run" not in words:
        lines = RESULTS.read_bytes().splitlines()
        table([msgspec.json.decode(line, type=Row) for line in lines])
        return
    named = set(words) - {"--run"}
    for model in MODELS:
        for dtype in DTYPES:
            if not named or named <= {model, dtype}:
                chosen = [case for case in cases() if (case.model, case.dtype) == (model, dtype)]
                with mps_service(), RESULTS.open("ab") as file:
                    file.write(b"".join(msgspec.json.encode(r) + b"\n" for r in measure(chosen)))


if __name__ == "__main__":
    main(sys.argv[1:])
