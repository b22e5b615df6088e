"""Explanations that hold: for ten plans, every runner-up that `explain` prints as searched is asked
of the planner: `plan plan.json --start plan.json --fix ...`, and cold, with no start. Run with
`python benchmarks/confirm_runners_up.py [SECONDS [JOB ...]]`; jobs that have rows in
`confirm_runners_up.jsonl` are not run again. A row is one runner-up; SECONDS are each search's.

Goal: within 1 % of what was said.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from meshwright import Cluster, capture_model, find_plan
from meshwright.cost.tables import pricer_of
from meshwright.explain.confirm import confirm_decisions, constraints_of
from meshwright.explain.decisions import explain
from meshwright.explain.evaluate_plan import question_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.budget import Budget
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.simulation import prices_of

FILE = Path(__file__).with_suffix(".jsonl")

JOBS: dict[str, tuple[str, str, dict[str, int], int, str | None]] = {
    "lenet on 4 processes": ("zoo:lenet", "laptop", {}, 64, None),
    "alexnet on 2x4 P100": ("zoo:alexnet", "flexflow-p100", {"node": 2}, 256, None),
    "mlp on 2x4 A100": ("zoo:mlp", "dgx-a100", {"node": 2, "gpu": 4}, 256, None),
    "candle-uno on 2x4 A100": ("zoo:candle-uno", "dgx-a100", {"node": 2, "gpu": 4}, 256, None),
    "dlrm on 8 H100": ("zoo:dlrm", "dgx-h100", {"node": 1}, 512, None),
    "bert of 4 layers on 2x8 A100": (
        "zoo:bert-large?layers=4", "gcp-a100", {"node": 2, "gpu": 8}, 64, "bf16"),
    "llama of 4 layers on 2x8 H100": (
        "zoo:llama3-8b?layers=4&sequence=2048", "dgx-h100", {"node": 2}, 32, "bf16"),
    "gpt2 of 4 layers on 8 H100": ("zoo:gpt2-xl?layers=4", "dgx-h100", {"node": 1}, 32, "bf16"),
    "vit of 4 layers on 2x4 A100": (
        "zoo:vit-large?layers=4", "dgx-a100", {"node": 2, "gpu": 4}, 128, "bf16"),
    "rnntc on 4 P100": ("zoo:rnntc/tiny", "flexflow-p100", {"node": 1}, 64, None),
}  # fmt: skip


def rows(name: str, budget: float) -> list[dict[str, object]]:
    """Every runner-up of one plan that was searched, and what the planner says of it."""
    model, cluster, sizes, batch, dtype = JOBS[name]
    machine = Cluster.named(cluster, **sizes)

    captured = capture_model(model, batch=batch, dtype=dtype)

    def asked(
        graph: OperatorGraph, fix: Iterable[str] = (), pin: Iterable[str] = (), **more: Any
    ) -> PlanResult:
        mixed = dtype is not None
        return find_plan(graph, machine, budget=budget, mixed=mixed, fix=fix, pin=pin, **more)

    planned = asked(captured)
    (plan, prediction), question = planned.best, planned.question
    decisions = explain(
        plan,
        prices=prices_of(plan),
        operators=pricer_of(plan.cluster.device),
        memory=question.memory,
        deadline=time.monotonic() + budget,
    )
    searches = confirm_decisions(
        plan, question_of(plan, question.memory), decisions, Budget.of(budget), step=prediction.step
    )
    *_, again = (decisions, *searches)
    records = []
    for decision in again:
        if decision.searched is None:
            continue
        fixed = constraints_of(decision.fix)
        constraints = {
            "fix": [f"{key}={value}" for key, value in fixed.fixed],
            "pin": [f"{key}={value}" for key, value in fixed.pinned],
        }
        # Names of units are those of the graph as it was rewritten.
        step = asked(plan.graph, **constraints, start=plan).best.prediction.step
        cold = asked(plan.graph if fixed.pinned else captured, **constraints).best.prediction.step
        records.append(
            {
                "job": name,
                "plan_s": prediction.step,
                "decision": decision.subject,
                "fix": decision.fix,
                "kept_s": decision.step,
                "searched_s": decision.searched,
                "confirmed_s": step,
                "cold_s": cold,
                "difference": decision.searched / step - 1,
            }
        )
    return records


def main(budget: float = 6.0, *names: str) -> None:
    """Rows of the jobs that have none yet, then all of them."""
    known = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    for name in names or JOBS:
        if any(row["job"] == name for row in known):
            continue
        for row in rows(name, budget):
            known.append(row)
            with FILE.open("a") as file:
                print(json.dumps(row), file=file)
    table(known)


def table(known: list[dict[str, Any]]) -> None:
    """Rows, and how many of them hold."""
    print(f"{'job':<32}{'fix':<44}{'kept':>11}{'searched':>11}{'--start':>11}{'cold':>11}{'':>8}")
    for row in known:
        times = "".join(
            f"{1e3 * row[key]:>9.4g}ms" for key in ("kept_s", "searched_s", "confirmed_s", "cold_s")
        )
        print(f"{row['job']:<32}{row['fix'][:42]:<44}{times}{row['difference']:>+8.2%}")
    plans = len({row["job"] for row in known})
    for what, key in (("from the plan", "confirmed_s"), ("cold", "cold_s")):
        near = sum(abs(row["searched_s"] / row[key] - 1) <= 0.01 for row in known)
        faster = sum(row[key] < 0.99 * row["searched_s"] for row in known)
        print(
            f"{near} of {len(known)} runners-up of {plans} plans are within 1 % of a search {what},"
            f" which finds {faster} more than 1 % faster"
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["jobs"]:
            print("\n".join(JOBS))
        case ["table"]:
            table([json.loads(line) for line in FILE.read_text().splitlines()])
        case [budget, *names]:
            main(float(budget), *names)
        case _:
            main()
