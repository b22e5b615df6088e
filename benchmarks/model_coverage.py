"""Which models go through: captured, planned by `plan`, run on 4 ranks, equal to one device.

    python benchmarks/model_coverage.py                      # the tables, from the rows kept
    python benchmarks/model_coverage.py --run                # first the stages that are missing
    python benchmarks/model_coverage.py --run --stage plan   # none after this one
    python benchmarks/model_coverage.py --run --only whisper # models with this in their name
    python benchmarks/model_coverage.py --run --only BertModel,ClapModel  # or one of these
    python benchmarks/model_coverage.py --run --again        # also those that failed before
    python benchmarks/model_coverage.py --run --fresh        # all, whatever earlier runs said
    python benchmarks/model_coverage.py --run --jobs 14 --minutes 12  # begins none after these
    python benchmarks/model_coverage.py --run --rows FILE    # keeps rows there: all anew, resumable
    python benchmarks/model_coverage.py --merge FILE         # takes rows from there instead of old

Models are listed in benchmarks/coverage_models: classes of Transformers (`hf:CLASS/tiny`), networks
of timm and torchvision, and modules as people write them. Plans are for `slow_machine.toml`, on
which it pays to split a tiny model. Each model is a row of benchmarks/model_coverage.jsonl that
says how far it came, at which commit and, if it failed, in one line why: 'sentence' is a refusal
with its reason, 'traceback' is a defect, 'hang' is one that was ended after --limit seconds. Models
come in an order that is as good as random, so that what is done when it is stopped is a sample of
all. A class that the Transformers here does not have is left out, as are networks of a library that
is not installed.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import msgspec

from coverage_stages import Failure, fork_server, tried

HERE = Path(__file__).parent
LISTS = HERE / "coverage_models"
ROWS = HERE / "model_coverage.jsonl"
STAGES = ("capture", "plan", "run")
UNKNOWN = ("has no class", "No module named")
"""What is said of a class that another Transformers has, and of a library that is not there."""


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
    split: int = 0
    """Units that the plan splits."""
    equal: bool | None = None
    """What the comparison with one device says."""
    dtype: str = ""
    """What it was compared in."""
    errors: dict[str, float] = {}
    """The largest relative differences."""
    failure: Failure | None = None
    commit: str = ""
    """At which its last stage was tried, with a + if there were changes; rows of before 2026-11-18
    do not say."""


def listed() -> list[Row]:
    """All models before anything was tried."""
    rows = [
        Row(name=name, family=f"Transformers: {family}", source=f"hf:{name}/tiny{mark}{rest}")
        for family, classes in _lines("transformers.txt")
        for name, mark, rest in (one.partition("?") for one in classes)
    ]
    for library, names in _lines("vision_libraries.txt"):
        for name, _, side in (one.partition("@") for one in names):
            source = f"{LISTS}/vision_libraries.py:{library}?name={name}&side={side}"
            rows.append(Row(name=f"{library}.{name}", family=library, source=source))
    for file in sorted(LISTS.glob("*.py")):
        functions = re.findall(r"^def ([a-z]\w*)\(batch", file.read_text(), re.MULTILINE)
        family = file.stem.replace("_", " ")
        rows += [Row(name=one, family=family, source=f"{file}:{one}") for one in functions]
    return rows


def _lines(file: str) -> Iterable[tuple[str, list[str]]]:
    """The lists of a file: a family, and names."""
    for line in (LISTS / file).read_text().splitlines():
        if not line.startswith("#"):
            family, _, names = line.partition(":")
            yield family, names.split()


def commit() -> str:
    """What is tried here."""
    asked = ("git", "describe", "--always", "--exclude=*", "--dirty=+")
    return subprocess.run(asked, cwd=HERE, capture_output=True, text=True).stdout.strip()


def advanced(row: Row, stages: Sequence[str], limit: float, plans: Path, at: str) -> Row:
    """A row after the stages that it has not passed, at a commit."""
    row = msgspec.structs.replace(row, failure=None)
    for stage in stages:
        if stage in row.done or (stage == "run" and not row.loss):
            continue
        row = msgspec.structs.replace(row, commit=at)
        outcome = tried(stage, row.source, plans / f"{row.name}.json", limit)
        if isinstance(outcome, Failure):
            return msgspec.structs.replace(row, failure=outcome)
        row = msgspec.structs.replace(row, done=(*row.done, stage), **outcome)
    return row


def kept(file: Path = ROWS) -> dict[str, Row]:
    """Rows of earlier runs, of models as they are listed now."""
    if not file.exists():
        return {}
    sources = {row.name: row.source for row in listed()}
    lines = file.read_bytes().splitlines()
    rows = (msgspec.json.decode(line, type=Row) for line in lines)
    updated = {row.name: msgspec.structs.replace(row, source=_here(row.source)) for row in rows}
    return {name: row for name, row in updated.items() if sources.get(name) == row.source}


def keep(rows: Iterable[Row], file: Path = ROWS) -> None:
    """Write all rows, so that a run can be stopped at any time."""
    shown = (msgspec.structs.replace(r, source=r.source.replace(f"{LISTS}/", "")) for r in rows)
    file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in shown))


def _here(source: str) -> str:
    return source if source.startswith("hf:") else f"{LISTS}/{source}"


def proceed(asked: argparse.Namespace) -> None:
    """Take models through the stages that are missing, a few at a time."""
    fork_server(planning=asked.stage != "capture")
    asked.plans.mkdir(parents=True, exist_ok=True)
    rows, stages = kept(asked.rows), STAGES[: STAGES.index(asked.stage) + 1]
    every, writing, at = listed(), Lock(), commit()
    last = time.monotonic() + 60 * asked.minutes

    def go_on(new: Row) -> None:
        row = new if asked.fresh else rows.get(new.name, new)
        began = time.monotonic()
        if began > last or (row.failure is not None and not asked.again):
            return
        after = advanced(row, stages, asked.limit, asked.plans, at)
        said = "" if after.failure is None else after.failure.said
        if after == row or any(phrase in said for phrase in UNKNOWN):
            return
        remark = after.failure or ("" if after.equal is None else f"equal: {after.equal}")
        with writing:
            rows[row.name] = after
            print(
                f"{time.monotonic() - began:6.1f} s {after.name} {after.done} {remark}", flush=True
            )
            keep((rows[one.name] for one in every if one.name in rows), asked.rows)

    names = asked.only.lower().split(",")
    wanted = [row for row in every if any(n in f"{row.name} {row.family}".lower() for n in names)]
    with ThreadPoolExecutor(asked.jobs) as pool:
        for _ in pool.map(go_on, sorted(wanted, key=lambda row: zlib.crc32(row.name.encode()))):
            pass


def table(rows: Sequence[Row]) -> str:
    """A line for each family: how many of those that were tried passed each stage."""
    families: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        families[row.family].append(row)
        families[_set(row)].append(row)
    lines = [
        "| models | captured | planned | run on 4 ranks | equal to one device | sentences | "
        "tracebacks | hangs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, members in families.items():
        passed = (_share(members, stage) for stage in STAGES)
        judged = [row for row in members if row.equal is not None]
        kinds = [row.failure.kind for row in members if row.failure is not None]
        counts = (str(kinds.count(kind)) for kind in ("sentence", "traceback", "hang"))
        equal = f"{sum(bool(row.equal) for row in judged)} of {len(judged)}"
        lines.append(f"| {' | '.join((family, *passed, equal, *counts))} |")
    return "\n".join(lines)


def _set(row: Row) -> str:
    return "**all of Transformers**" if row.source.startswith("hf:") else "**all others**"


def _share(rows: Sequence[Row], stage: str) -> str:
    """How many passed a stage, of those that were tried."""
    passed = sum(stage in row.done for row in rows)
    failed = sum(row.failure is not None and row.failure.stage == stage for row in rows)
    return f"{passed} of {passed + failed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--stage", choices=STAGES, default="run")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=180.0)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--rows", type=Path, default=ROWS)
    parser.add_argument("--merge", type=Path)
    parser.add_argument("--plans", type=Path, default=Path("/tmp/model_coverage"))
    asked = parser.parse_args()
    if asked.run:
        proceed(asked)
    if asked.merge:
        both = kept() | kept(asked.merge)
        keep(both[one.name] for one in listed() if one.name in both)
    rows = list(kept(asked.rows).values())
    print(table(rows))
    for row in rows:
        if row.failure is not None:
            print(f"{row.name}: {row.failure.stage}: {row.failure.kind}: {row.failure.said}")
        elif row.equal is False:
            print(f"{row.name}: NOT EQUAL in {row.dtype}: {row.errors}")


if __name__ == "__main__":
    main()
