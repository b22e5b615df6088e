"""The joint search held against full grids of configurations, on the same simulator.

    python benchmarks/against_grid.py                     # the table, from the rows that are kept
    python benchmarks/against_grid.py --run [--jobs 2]    # first computes what is missing of them
    python benchmarks/against_grid.py --run --only llama  # only jobs with 'llama' in their names
    python benchmarks/against_grid.py --only-summary

A grid has every configuration that divides: degrees of DP, TP, CP, PP and EP, micro-batches (all
divisors, thinned to about two for each power of two), ZeRO 0 to 3, recomputation, virtual stages
1, 2, 4, ... Configurations go in an order drawn from the seed, through the reader and the
simulator that `meshwright check` has, with reduction programs as the search has them. One that
differs from a simulated one only in ZeRO or virtual stages computes as long: where that alone
takes longer than the best so far, it is left out and counted (`skipped`). A grid ends after
`--seconds`; how many were left then is told (`left`).

`plan` has its default budget, seed 0. The bound of a result is its own step at most; `raw` is the
bound of the plan's own graph and micro-batches, found anew and not capped: a step below it would
prove a bound wrong. Rows are kept in benchmarks/against_grid.jsonl, each with the commit it was
computed on: delete lines to compute them anew. Four rows have neither (from before c3a5ae0, and
before the fitted rates of DGX machines): they are stale, and the table says so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from joint_cases import Case, question_of
from meshwright.base.errors import InputError
from meshwright.base.integers import divisors, factorizations
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.degrees.refusals import refusals
from meshwright.bounds.lower_bound import lower_bound
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL
from meshwright.cost.tables import pricer_of
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.sweep import Failed, sweep
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

RESULTS = Path(__file__).with_name("against_grid.jsonl")
BUDGET = "60s"
SECONDS = 120.0
LARGEST = 1_500_000
"""Tasks of a simulation above which a configuration is left out, as units x micro-batches."""

LLAMA, LARGE_LLAMA, GPT3, XL = "llama3-8b", "llama3-70b", "gpt3-175b", "gpt2-xl"
NEO = "gpt3-175b?layers=32&hidden=2560&heads=32&sequence=2048&vocabulary=50304"
OPT = "gpt3-175b?layers=24&hidden=1024&heads=16&sequence=2048&vocabulary=50272"
BERT, T5, VIT, MIXTRAL = "bert-large", "t5-large", "vit-large", "mixtral-8x7b"

JOBS = (
    ("Llama-3 8B, 8 H100, 216", LLAMA, 216, "dgx-h100 node=1", ""),
    ("Llama-3 8B, 8 H100, 4096", LLAMA, 4096, "dgx-h100 node=1", ""),
    ("GPT-3 175B, 64 A100, 512", GPT3, 512, "dgx-a100 node=8", ""),
    ("GPT-3 175B, 64 A100, 64", GPT3, 64, "dgx-a100 node=8", ""),
    ("GPT-3 175B, 96 A100, 192", GPT3, 192, "dgx-a100 node=12", ""),
    ("Llama-3 70B, 64 H100, 32", LARGE_LLAMA, 32, "dgx-h100 node=8", ""),
    ("GPT-Neo 2.7B, 32 A100, 2048", NEO, 2048, "gcp-a100 node=8 gpu=4", "32 GiB"),
    ("GPT-Neo 2.7B, 16 A100, 512", NEO, 512, "gcp-a100 node=4 gpu=4", "32 GiB"),
    ("GPT-2 XL, 1 A100, 21", XL, 21, "dgx-a100 node=1 gpu=1", "29.3 GiB"),
    ("Llama-3 8B, 32 H100, 32", LLAMA, 32, "dgx-h100 node=4", ""),
    ("BERT-Large, 32 A100, 64", BERT, 64, "gcp-a100 node=4 gpu=8", ""),
    ("BERT-Large, 12 V100, 48", BERT, 48, "summit node=2", ""),
    ("BERT-Large, 24 A100, 120", BERT, 120, "gcp-a100 node=3 gpu=8", "16 GiB"),
    ("GPT-2 XL, 16 A100, 96", XL, 96, "dgx-a100 node=2", "24 GiB"),
    ("GPT-2 XL, 40 A100, 200", XL, 200, "gcp-a100 node=5 gpu=8", ""),
    ("T5-Large, 8 A100, 40", T5, 40, "dgx-a100 node=1", ""),
    ("T5-Large, 32 A100, 128", T5, 128, "gcp-a100 node=4 gpu=8", "12 GiB"),
    ("ViT-Large, 16 A100, 1000", VIT, 1000, "dgx-a100 node=2", ""),
    ("ViT-Large, 8 A100, 600", VIT, 600, "gcp-a100 node=1 gpu=8", "10 GiB"),
    ("Mixtral 8x7B, 32 H100, 64", MIXTRAL, 64, "dgx-h100 node=4", ""),
    ("Mixtral 8x7B, 64 H100, 256", MIXTRAL, 256, "dgx-h100 node=8", ""),
    ("OPT-350M, 16 A100, 2048", OPT, 2048, "gcp-a100 node=4 gpu=4", ""),
    ("Llama-3 8B, 48 H100, 144", LLAMA, 144, "dgx-h100 node=6", "40 GiB"),
    ("Llama-3 70B, 128 H100, 192", LARGE_LLAMA, 192, "dgx-h100 node=16", ""),
    ("Llama-3 70B, 1,024 H100, 1024", LARGE_LLAMA, 1024, "dgx-h100 node=128", ""),
)
"""Names, models of the zoo in bfloat16, samples of a step, machines, memory if not all of it. The
first ten are those of issue 23, and the eleventh is the demo."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the search finds."""

    step: float
    fits: bool
    bound: float
    simulated: int
    seconds: float
    stopped: str
    plan: str
    raw: float | None = None
    """A bound that knows nothing of the step."""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What a grid has."""

    step: float | None
    """Of the fastest that fits."""
    config: str
    size: int
    simulated: int
    skipped: int
    left: int
    seconds: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A job."""

    name: str
    case: Case
    found: Found
    grid: Grid
    commit: str = ""
    """On which it was computed; "" if nobody noted it, which is long ago."""

    @property
    def gain(self) -> float:
        """By how much a step of the grid's best is longer, as a share of it; negative: shorter."""
        if self.grid.step is None:
            return 0.0
        return 1 - self.found.step / self.grid.step if self.found.fits else -1.0


def cases() -> Iterator[tuple[str, Case]]:
    """All jobs."""
    for name, model, batch, cluster, memory in JOBS:
        yield (
            name,
            Case(model=f"zoo:{model}", batch=batch, cluster=cluster, half=True, memory=memory),
        )


def configurations(question: PlanRequest) -> list[ParallelConfig]:
    """The whole grid."""
    facts, devices = transformer_facts(question.graph), question.cluster.devices
    configs = []
    for tensor, context, pipeline, data in factorizations(devices, (devices,) * 4):
        each = facts.samples // data
        layers = facts.layers // pipeline
        virtual = [n for n in (1, 2, 3, 4, 6, 8) if n == 1 or (pipeline > 1 and n <= layers)]
        experts = divisors(facts.experts) if facts.experts else (1,)
        for expert, micro, zero, recompute, chunks in product(
            experts, _thinned(divisors(each)) if each else (), (0, 1, 2, 3), (False, True), virtual
        ):
            if len(question.graph.operators) * micro > LARGEST or (zero and data * context == 1):
                continue
            config = ParallelConfig(
                data=data, tensor=tensor, context=context, pipeline=pipeline, expert=expert,
                micro_batches=micro, zero=zero, recompute=recompute, chunks=chunks,
                sequence=tensor > 1, uneven=bool(facts.layers % pipeline),
                optimizer=question.training.optimizer, mixed=question.training.mixed,
            )  # fmt: skip
            if not refusals(question.graph, question.cluster, config):
                configs.append(config)
    return configs


def _thinned(counts: tuple[int, ...]) -> list[int]:
    """The least of those in each half octave, and the most of all."""
    octaves: dict[int, int] = {}
    for count in counts:
        octaves.setdefault(int((count * count).bit_length()), count)
    return sorted({*octaves.values(), counts[-1]})


def gridded(question: PlanRequest, seconds: float, seed: int) -> Grid:
    """The best of the grid."""
    every = configurations(question)
    random.Random(seed).shuffle(every)
    prices = CollectivePrices(Pricer(question.cluster, NCCL, algorithm="best"), programs=True)
    operators = pricer_of(question.cluster.device)
    began, computing = time.monotonic(), dict[object, float]()
    best: tuple[float, str] | None = None
    simulated = skipped = 0
    for config in every:
        if time.monotonic() - began > seconds:
            break
        alike = msgspec.structs.replace(config, zero=0, chunks=1)
        if best is not None and computing.get(alike, 0.0) >= best[0]:
            skipped += 1
            continue
        try:
            plan = configured(question.graph, question.cluster, config)
        except InputError:
            skipped += 1
            continue
        prediction = simulate(plan, prices, operators).prediction
        simulated += 1
        # Shards are updated in no more time, and updates are a small part of computing.
        computing[alike] = 0.97 * prediction.compute
        if prediction.memory.total <= question.memory and (
            best is None or prediction.step < best[0]
        ):
            best = prediction.step, str(config)
    return Grid(
        step=best[0] if best else None,
        config=best[1] if best else "",
        size=len(every),
        simulated=simulated,
        skipped=skipped,
        left=len(every) - simulated - skipped,
        seconds=time.monotonic() - began,
    )


def searched(question: PlanRequest, budget: str) -> Found:
    """What the search finds."""
    planned = best_plan(question, Budget.parse(budget))
    plan = planned.plan
    raw = lower_bound(
        plan.graph,
        plan.cluster,
        operators=pricer_of(plan.cluster.device),
        backend=NCCL,
        optimizer=plan.options.optimizer,
        micro_batches=(plan.options.micro_batches,),
    )
    return Found(
        raw=raw.seconds,
        step=planned.best.prediction.step,
        fits=planned.best.fits(question.memory),
        bound=planned.bound,
        simulated=planned.simulated,
        seconds=planned.seconds,
        stopped=planned.stopped,
        plan=planned.best.plan.origin + f"; {planned.best.plan.options}",
    )


def computed(job: tuple[str, Case], seconds: float, seed: int) -> Row:
    """A row."""
    name, case = job
    question = question_of(case)
    return Row(
        name=name,
        case=case,
        found=searched(question, BUDGET),
        grid=gridded(question, seconds, seed),
        commit=_commit(),
    )


def _commit() -> str:
    command = ["git", "-C", str(RESULTS.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def line(row: Row) -> str:
    """One line of the table."""
    grid, search = row.grid, row.found
    best = "nothing fits" if grid.step is None else f"{grid.step:9.4f} s"
    held = "" if search.fits else " DOES NOT FIT"
    rest = "whole" if not grid.left else f"{grid.left} left"
    when = row.commit or "stale"
    return (
        f"{row.name:38} {search.step:9.4f} s {search.step / search.bound - 1:6.1%} "
        f"{search.simulated:5} {search.seconds:5.0f} s  {best:>12} {row.gain:6.1%}  "
        f"{grid.simulated}/{grid.size}, {rest}; {grid.config}{held} [{when}]"
    )


def summary(rows: list[Row]) -> str:
    """What it comes to."""
    lost = [row.name for row in rows if row.gain < 0]
    ahead = sum(row.gain >= 0.03 for row in rows)
    gap = statistics.median(row.found.step / row.found.bound - 1 for row in rows)
    raw = [row.found for row in rows if row.found.raw is not None]
    below = sum(search.raw is not None and search.step < search.raw for search in raw)
    stale = sum(not row.commit for row in rows)
    named = f" ({'; '.join(lost)})" if lost else ""
    return (
        f"{len(rows)} jobs: slower than the grid's best in {len(lost)}{named}, "
        f"at least 3 % faster in {ahead}; "
        f"median gap {gap:.1%}; below a bound that is not capped: {below} of {len(raw)}; "
        f"{stale} stale"
    )


def kept() -> list[Row]:
    """The rows there are."""
    if not RESULTS.exists():
        return []
    return [msgspec.json.decode(text, type=Row) for text in RESULTS.read_text().splitlines()]


def main() -> None:
    """Compute what is asked for, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only-summary", action="store_true")
    asked = parser.parse_args()
    if asked.run:
        known = {(row.name, row.case) for row in kept()}
        wanted = [job for job in cases() if asked.only.lower() in job[0].lower()]

        def told(job: tuple[str, Case], result: Row | Failed) -> None:
            if isinstance(result, Failed):
                print(f"{job[0]}: {result.sentence}", flush=True)
                return
            with RESULTS.open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
            print(line(result), flush=True)

        missing = [job for job in wanted if job not in known]
        work = partial(computed, seconds=asked.seconds, seed=asked.seed)
        sweep(missing, work, cores=asked.jobs, progress=told)
    rows = [row for row in kept() if asked.only.lower() in row.name.lower()]
    if not asked.only_summary:
        print(*map(line, rows), sep="\n")
    if rows:
        print(summary(rows))


if __name__ == "__main__":
    main()
