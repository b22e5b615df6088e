"""Five jobs as they leave the house: plan | for megatron | for torchtitan | for pytorch.

    python benchmarks/export_table.py --run [--only WORD] [--budget 60s] [--processes 4]
                                      [--seconds 500]                   computes what misses
    python benchmarks/export_table.py                                   prints the table

Every figure comes from the command line that a user would type: `plan`, then `export --to` each
target (what the plan becomes there), and `plan --for` each target, exported again (the best that
the target can say). All are predicted. Rows are in export_table.jsonl, a job and target each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

ROWS = Path(__file__).with_suffix(".jsonl")
TARGETS = ("megatron", "torchtitan", "pytorch")
MESHWRIGHT = (sys.executable, "-m", "meshwright")


class Job(NamedTuple):
    """What is trained on what."""

    name: str
    model: str
    cluster: str
    nodes: int
    batch: int

    @property
    def words(self) -> list[str]:
        """For the command line."""
        return [
            f"zoo:{self.model}", "--cluster", self.cluster, "--nodes", str(self.nodes), "--batch",
            str(self.batch), "--dtype", "bfloat16", "--mixed", "--cores", "1",
        ]  # fmt: skip


JOBS = (
    Job("Llama-3 8B, 2x8 H100", "llama3-8b", "dgx-h100", 2, 128),
    Job("Llama-3 70B, 8x8 H100", "llama3-70b", "dgx-h100", 8, 128),
    Job("Llama-3 70B, 16x8 H100", "llama3-70b", "dgx-h100", 16, 256),
    Job("Mixtral 8x7B, 4x8 H100", "mixtral-8x7b", "dgx-h100", 4, 128),
    Job("GPT-3 175B, 8x8 A100", "gpt3-175b", "dgx-a100", 8, 192),
)


class CommandError(Exception):
    """A command that did not answer; the text is what it said."""


def said(*words: str) -> dict[str, Any]:
    """What a command answers as JSON."""
    done = subprocess.run([*MESHWRIGHT, *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise CommandError(done.stderr.strip()[-400:])
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def exported(plan: Path, target: str) -> dict[str, Any]:
    try:
        answer = said("export", str(plan), "--to", target, "--out", str(plan.with_suffix("")))
    except CommandError as error:
        return {"refused": str(error)}
    kept = ("configuration", "lost")
    return {name: answer[name] for name in kept} | {
        "step_s": answer["written"]["step"],
        "missing_bytes": answer["written"]["missing"],
        "planned_s": answer["planned"]["step"],
    }


def rows_of(job: Job, target: str, budget: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of a job's plan ("plan": what it becomes for all targets), or for a target."""
    plan = folder / f"{job.model}-{job.nodes}-{target}.json"
    words = ["--budget", budget, "-o", str(plan)]
    if target != "plan":
        words += ["--for", target]
    began = time.monotonic()
    try:
        said("plan", *job.words, *words)
    except CommandError as error:
        return [{"job": job.name, "from": target, "to": target, "refused": str(error)}]
    seconds = time.monotonic() - began
    to = TARGETS if target == "plan" else (target,)
    return [
        {
            "job": job.name, "from": target, "to": library, "budget": budget, "search_s": seconds,
            **exported(plan, library),
        }
        for library in to
    ]  # fmt: skip


def kept() -> list[dict[str, Any]]:
    if not ROWS.exists():
        return []
    return [json.loads(line) for line in ROWS.read_text().splitlines()]


def compute(only: str, budget: str, processes: int, seconds: float) -> None:
    have = {(row["job"], row["from"]) for row in kept()}
    wanted = [
        (job, target)
        for job in JOBS
        for target in ("plan", *TARGETS)
        if only in f"{job.name} {target}" and (job.name, target) not in have
    ]
    began, lock = time.monotonic(), Lock()

    def one(task: tuple[Job, str]) -> None:
        if time.monotonic() - began > seconds:
            return
        with tempfile.TemporaryDirectory() as folder:
            rows = rows_of(*task, budget, Path(folder))
        with lock, ROWS.open("a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                print(row["job"], row["from"], row["to"], row.get("step_s"), flush=True)

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, wanted))


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "-"
    if "refused" in row:
        return "refused"
    return f"{row['step_s']:.4g} s{' (does not fit)' if row['missing_bytes'] else ''}"


def show() -> None:
    """The table, and below it what was lost."""
    by = {(row["job"], row["from"], row["to"]): row for row in kept()}
    print(
        "| job | plan | "
        + " | ".join(f"for {library}: exported / --for" for library in TARGETS)
        + " |"
    )
    print("|---|---|" + "---|" * len(TARGETS))
    for job in JOBS:
        first = by.get((job.name, "plan", TARGETS[0]), {})
        planned = f"{first['planned_s']:.4g} s" if "planned_s" in first else "-"
        cells = [
            " / ".join(cell(by.get((job.name, source, library))) for source in ("plan", library))
            for library in TARGETS
        ]
        print(f"| {job.name}, batch {job.batch} | {planned} | {' | '.join(cells)} |")
    for (job_name, source, target), row in by.items():
        words = row.get("refused") or f"{row['configuration']}; lost: "
        lost = "; ".join(row.get("lost", ())) or "nothing"
        print(f"{job_name}, {source} -> {target}: {words}{'' if 'refused' in row else lost}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=500.0)
    asked = parser.parse_args()
    if asked.run:
        compute(asked.only, asked.budget, asked.processes, asked.seconds)
    show()


if __name__ == "__main__":
    main()
