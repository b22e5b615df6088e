"""`meshwright validate published`, by several processes, resumable.

    python benchmarks/published_judge.py FILE [--held-out] [--processes N] [--seconds S]
    python benchmarks/published_judge.py FILE --summary [--bands FILE]

FILE has a line of JSON for each row that was judged; rows that have one are not judged again. The
summary is that of `validate published`; `--bands` writes error bands as it does.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from meshwright.base.files import write_atomically
from meshwright.report.text.published_table import describe_published
from meshwright.validate.bands import bands_of
from meshwright.validate.published.accuracy import PublishedErrors, summarize_published
from meshwright.validate.published.folds import folds_of
from meshwright.validate.published.predicted_rows import JudgedRow, Predictor
from meshwright.validate.published.rows import load_published


@cache
def predictor(held_out: bool) -> Predictor:
    """One for each process: what it has captured and predicted is used again."""
    from meshwright.capture.load import load_model

    folds = folds_of(load_published()) if held_out else {}
    return Predictor(lambda name, batch: load_model(name, batch).graph, folds)


def judge(number: int, held_out: bool) -> dict[str, Any]:
    """A row beside its prediction, as a line has it."""
    row = load_published()[number]
    judged = predictor(held_out).judge(row)
    columns = {name: getattr(judged, name) for name in TOLD}
    return {"number": number, "source": row.source, "model": row.model, "gpu": row.gpu, **columns}


TOLD = ("predicted_s", "predicted_bytes", "fits", "config", "skipped")


def judge_rest(path: Path, held_out: bool, processes: int, seconds: float) -> None:
    """Judge the rows that have no line yet."""
    done = {line["number"] for line in lines_of(path)}
    rest = [n for n in range(len(load_published())) if n not in done]
    end = time.monotonic() + seconds
    with (
        path.open("a") as out,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        asked = [pool.submit(judge, number, held_out) for number in rest]
        for future in as_completed(asked):
            out.write(json.dumps(future.result()) + "\n")
            out.flush()
            if time.monotonic() > end:
                pool.shutdown(wait=True, cancel_futures=True)
                break


def lines_of(path: Path) -> list[Mapping[str, Any]]:
    """What was judged so far."""
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def judged_of(path: Path) -> list[JudgedRow]:
    """The same as the rows' own noun."""
    rows = load_published()
    lines = sorted(lines_of(path), key=lambda line: int(line["number"]))
    return [
        msgspec.convert(
            {name: line[name] for name in TOLD}
            | {"row": msgspec.to_builtins(rows[line["number"]])},
            JudgedRow,
        )
        for line in lines
    ]


def tell(name: str, errors: PublishedErrors) -> None:
    """A line of errors."""
    shares = (f"{share:+7.1%}" for share in (errors.median, errors.ninetieth, errors.signed))
    print(f"  {name[:44]:44} {errors.rows:4}", *shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--summary", action="store_true")
    parser.add_argument("--bands")
    args = parser.parse_args()
    if not args.summary:
        judge_rest(args.file, args.held_out, args.processes, args.seconds)
    judged = judged_of(args.file)
    summary = summarize_published(judged)
    if summary.overall is not None:
        tell("all", summary.overall)
    for group in (summary.by_source, summary.by_gpu, summary.by_kind):
        print()
        for name, errors in group.items():
            tell(name, errors)
    print(describe_published(summary))
    for reason, count in summary.skipped.items():
        print(f"{count:4} {reason}")
    if args.bands:
        text = msgspec.json.format(msgspec.json.encode(bands_of(judged)), indent=1)
        write_atomically(args.bands, text + b"\n")


if __name__ == "__main__":
    main()
