"""Which models go through: captured, planned by `plan`, run on 4 ranks, equal to one device.

    python benchmarks/model_coverage.py                      # the tables, from the rows kept
    python benchmarks/model_coverage.py --run                # first the stages that are missing
    python benchmarks/model_coverage.py --run --stage plan   # none after this one
    python benchmarks/model_coverage.py --run --only whisper # models with this in their name
    python benchmarks/model_coverage.py --run --again        # also those that failed before

Models are listed in benchmarks/coverage_models: classes of Transformers (`hf:CLASS/tiny`), and
modules as people write them. Each is a row of benchmarks/model_coverage.jsonl that says how far it
came and, if it failed, in one line why: 'sentence' is a refusal with its reason, 'traceback' is a
defect, 'hang' is one that was ended after --limit seconds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

HERE = Path(__file__).parent
LISTS = HERE / "coverage_models"
ROWS = HERE / "model_coverage.jsonl"
STAGES = ("capture", "plan", "run")
RANKS, BATCH, STEPS, BUDGET = 4, 8, 2, "3s"

Kind = Literal["sentence", "traceback", "hang"]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the list."""

    name: str
    family: str
    source: str


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a model stopped, and why."""

    stage: str
    kind: Kind
    said: str


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a model came."""

    name: str
    family: str
    source: str
    done: tuple[str, ...] = ()
    """Stages that it passed."""
    operators: int = 0
    loss: bool = True
    """Whether there is a loss to train it by; without, nothing can be run."""
    equal: str = ""
    """What the comparison with one device says."""
    failure: Failure | None = None


def cases() -> list[Case]:
    """All models, in the order of their lists."""
    listed = []
    for line in (LISTS / "transformers.txt").read_text().splitlines():
        if not line.startswith("#"):
            family, _, classes = line.partition(":")
            listed += [
                Case(
                    name=name,
                    family=f"Transformers: {family}",
                    source=f"hf:{name}/tiny{mark}{rest}",
                )
                for name, mark, rest in (one.partition("?") for one in classes.split())
            ]
    for file in sorted(LISTS.glob("*.py")):
        for name in re.findall(r"^def ([a-z]\w*)\(batch", file.read_text(), re.MULTILINE):
            family = f"{file.stem.replace('_', ' ')}"
            source = f"{file.relative_to(HERE.parent)}:{name}"
            listed.append(Case(name=name, family=family, source=source))
    return listed


def captured(case: Case, out: Path) -> dict[str, object]:
    """Capture a model, as the first half of `plan` does."""
    from meshwright.capture.load import load_model

    graph = load_model(case.source, BATCH).graph
    return {"operators": len(graph.operators), "loss": graph.loss is not None}


def planned(case: Case, out: Path) -> dict[str, object]:
    """Plan a model by the command line."""
    from meshwright.cli.main import command

    words = f"plan {case.source} --cluster laptop --resize process={RANKS} --batch {BATCH} "
    words += f"--budget {BUDGET} --no-explain --cores 1 --save {out} --json"
    command()(words.split(), prog_name="meshwright", standalone_mode=False)
    return {}


def _child(answer: Connection, stage: Callable[..., object], case: Case, out: Path) -> None:
    """What a process says of a stage: its result, or a failure."""
    from meshwright.foundation.errors import InputError

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            answer.send(stage(case, out))
    except InputError as error:
        answer.send(("sentence", str(error)))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        answer.send(("traceback", f"{type(error).__name__} at {place}: {error}"))


def tried(stage: str, case: Case, out: Path, limit: float) -> dict[str, object] | Failure:
    """A stage in a process of its own, which is ended if it takes too long."""
    functions = {"capture": captured, "plan": planned}
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(there, functions[stage], case, out))
    process.start()
    there.close()
    try:
        answer = here.recv() if here.poll(limit) else ("hang", f"no answer in {limit:g} s")
    except EOFError:
        answer = ("traceback", f"the process died with exit code {process.exitcode}")
    if process.is_alive():
        process.join(2)
        process.kill()
    if isinstance(answer, dict):
        return answer
    kind, said = answer
    return Failure(stage=stage, kind=kind, said=" ".join(said.split())[:400])


def run(case: Case, out: Path, limit: float) -> dict[str, object] | Failure:
    """Run a plan on ranks of this machine, and compare with one device."""
    from meshwright.foundation.errors import InputError
    from meshwright.foundation.units import Seconds
    from meshwright.plan.file import load_plan
    from meshwright.run.ranks import RankError, run_ranks
    from meshwright.run.training import Task, train

    try:
        task = Task(plan=load_plan(str(out)), model=case.source, steps=STEPS, one_device=True)
        measured = run_ranks(train, task, ranks=RANKS, timeout=Seconds(limit))[0]
    except (RankError, InputError) as error:
        text = str(error).strip()
        kind: Kind = "traceback" if "Traceback" in text else "sentence"
        last = text.splitlines()[-1] if kind == "traceback" else " ".join(text.split())
        return Failure(
            stage="run",
            kind="hang" if "time" in last.lower() and "out" in last.lower() else kind,
            said=last[:400],
        )
    return {"equal": str(measured.one_device)}


def advanced(row: Row, stages: Sequence[str], limit: float, plans: Path) -> Row:
    """A row after the stages that it has not passed."""
    out = plans / f"{row.name}.json"
    case = Case(name=row.name, family=row.family, source=row.source)
    row = msgspec.structs.replace(row, failure=None)
    for stage in stages:
        if stage in row.done or (stage == "run" and not row.loss):
            continue
        found = run(case, out, limit) if stage == "run" else tried(stage, case, out, limit)
        if isinstance(found, Failure):
            return msgspec.structs.replace(row, failure=found)
        row = msgspec.structs.replace(row, done=(*row.done, stage), **found)
    return row


def kept() -> dict[str, Row]:
    """Rows of earlier runs."""
    if not ROWS.exists():
        return {}
    lines = ROWS.read_bytes().splitlines()
    return {row.name: row for row in (msgspec.json.decode(line, type=Row) for line in lines)}


def keep(rows: Iterable[Row]) -> None:
    """Write all rows, so that a run can be stopped at any time."""
    ROWS.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--stage", choices=STAGES, default="run")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--plans", type=Path, default=Path("/tmp/model_coverage"))
    asked = parser.parse_args()
    rows = kept()
    listed = cases()
    if asked.run:
        asked.plans.mkdir(parents=True, exist_ok=True)
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            [
                "meshwright.run.quiet",
                "torch",
                "torch.distributed",
                "meshwright.capture.kernels",
                "transformers",
                "transformers.modeling_utils",
                "meshwright.capture.load",
                "meshwright.cli.main",
                "meshwright.run.training",
            ]
        )
        stages = STAGES[: STAGES.index(asked.stage) + 1]
        for case in listed:
            row = rows.get(case.name)
            if row is None or row.source != case.source:
                row = Row(name=case.name, family=case.family, source=case.source)
            wanted = asked.only.lower() in f"{case.name} {case.family}".lower()
            if not wanted or (row.failure is not None and not asked.again):
                continue
            began = time.monotonic()
            after = advanced(row, stages, asked.limit, asked.plans)
            if after != row:
                seconds, said = time.monotonic() - began, after.failure or after.equal
                print(f"{seconds:6.1f} s  {after.name}: {after.done} {said}", flush=True)
            rows[case.name] = after
            keep(rows[one.name] for one in listed if one.name in rows)


if __name__ == "__main__":
    sys.exit(main())
