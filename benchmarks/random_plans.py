"""Random legal plans of all tiny models, and plans that the joint search finds, held against one
device: loss, every gradient, parameters after 5 steps, and the bytes that each rank sent.

Run as `PYTHONPATH=tests python benchmarks/random_plans.py [COUNT] [SEED] [DTYPE]` (300 plans, seed
0, float64), or with `found` instead of COUNT for the plans of the joint search on 2, 4 and 8 ranks.
With --graphs segments run as traced graphs, with --compile compiled by Inductor; with --nccl ranks
share one GPU. PyTorch older than 2.12 cannot trace recurrent models, which are left out there.
Each plan becomes a line of random_plans.jsonl; a command that is given again goes on where it was
interrupted; with --only-summary it only tells what lines say. Prints every plan that is wrong, how
often everything occurred, and the largest errors. Exit code 1 if a plan is wrong.

The gradients of the first step and the bytes have no excuse. After five steps a tiny difference may
have grown; where losses or parameters are further off than the tolerance, one device is trained
again from weights that differ by one or by ten last bits, and the plan may differ ten times as much
as that does.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice, product
from pathlib import Path

import msgspec
import torch

from meshwright.base.quantities import Seconds
from meshwright.lower.script import Script
from meshwright.run.launch.gpus import mps_service
from meshwright.run.launch.ranks import Home, RankError
from support.drawn_plans import MODELS, Drawn, drawn_plans
from support.found_plans import MACHINES, found_plan
from support.plan_features import features
from support.proved import Verdict, verdicts

RESULTS = Path(__file__).with_suffix(".jsonl")

TOGETHER = 20
"""Plans that share one start of ranks."""

BUDGET = Seconds(1.0)
"""Of each search."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a plan."""

    series: str
    """Where it is from: "found", or "drawn" with seed and dtype."""
    number: int
    text: str
    features: tuple[str, ...]
    right: bool
    loss: float = 0.0
    gradient: float = 0.0
    parameter: float = 0.0
    drift: float = 0.0
    sent: int = 0
    """Bytes in a step, of all ranks."""


RECURRENT = ("nmt", "rnnlm", "rnntc")
TRACED = tuple(own for own in MODELS if torch.__version__ >= "2.12" or own not in RECURRENT)

BACKEND = {"--graphs": "graphs", "--compile": "inductor"}
"""What runs segments, by the word that asks for it."""

Numbered = tuple[int, Drawn]


def main(words: list[str]) -> int:
    """Draw, run, print."""
    arguments = [word for word in words if not word.startswith("--")]
    count = arguments[0] if arguments else "300"
    seed = arguments[1] if len(arguments) > 1 else "0"
    dtype = arguments[2] if len(arguments) > 2 else "float64"
    series = "found" if count == "found" else f"drawn {seed} {dtype}"
    backend = BACKEND.get(next((word for word in words if word in BACKEND), ""), "operators")
    series += "" if backend == "operators" else f" {backend}"
    home = Home(gpus=1) if "--nccl" in words else None
    series += "" if home is None else " nccl"
    known = [row for row in _rows() if row.series == series]
    if "--only-summary" not in words:
        done = {row.number for row in known}
        if count == "found":
            plans = _found(done)
        else:
            every = drawn_plans(int(seed), TRACED, dtype)
            drawn = enumerate(islice(every, int(count)))
            plans = (numbered for numbered in drawn if numbered[0] not in done)
        with mps_service() if home else nullcontext():
            known += _run(series, plans, backend, home)
    _print_totals(known)
    return 0 if all(row.right for row in known) else 1


def _rows() -> list[Row]:
    lines = RESULTS.read_bytes().splitlines() if RESULTS.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def _found(done: set[int]) -> Iterator[Numbered]:
    for number, (model, sizes) in enumerate(product(MODELS, MACHINES)):
        if number not in done:
            yield number, found_plan(BUDGET, model, sizes, tight=number % 2 == 1)


def _run(series: str, plans: Iterator[Numbered], backend: str, home: Home | None) -> list[Row]:
    """What becomes of plans, some of them on the same ranks."""
    began, rows = time.monotonic(), list[Row]()
    waiting: dict[int, list[Numbered]] = {}

    def settle(group: list[Numbered]) -> None:
        new = _judged(series, group, backend, home)
        with RESULTS.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in new))
        rows.extend(new)
        wrong = sum(not row.right for row in rows)
        print(f"{len(rows)} plans, {wrong} wrong, {time.monotonic() - began:.0f} s", flush=True)

    for number, case in plans:
        group = waiting.setdefault(case.plan.cluster.devices, [])
        group.append((number, case))
        if len(group) == TOGETHER:
            settle(waiting.pop(case.plan.cluster.devices))
    for group in waiting.values():
        settle(group)
    return rows


def _judged(
    series: str, group: list[Numbered], backend: str, home: Home | None = None
) -> list[Row]:
    """A row for each plan; if ranks fail, each is run by itself."""
    try:
        judgements = verdicts([case for _, case in group], home=home, backend=backend)
    except RankError as error:
        if len(group) == 1:
            return [_row(series, group[0], str(error))]
        return [row for numbered in group for row in _judged(series, [numbered], backend, home)]
    return [
        _row(series, numbered, verdict) for numbered, verdict in zip(group, judgements, strict=True)
    ]


def _row(series: str, numbered: Numbered, verdict: Verdict | str) -> Row:
    number, case = numbered
    occurring = tuple(sorted(features(Script(case.plan), case.rewrites)))
    if isinstance(verdict, str):
        text = f"{case.key} failed, {case.plan.options}: {verdict}"
        row = Row(series=series, number=number, text=text, features=occurring, right=False)
    else:
        row = Row(
            series=series,
            number=number,
            text=str(verdict),
            features=occurring,
            right=verdict.right,
            loss=verdict.loss,
            gradient=verdict.gradient,
            parameter=verdict.parameter,
            drift=verdict.drift,
            sent=sum(steps[0] for steps in verdict.sent),
        )
    if not row.right:
        print("WRONG", number, row.text, flush=True)
    return row


def _print_totals(rows: Sequence[Row]) -> None:
    if not rows:
        print("no plan has run")
        return
    wrong = [row for row in rows if not row.right]
    occurred = Counter(word for row in rows for word in row.features)
    print(f"\n{len(rows)} plans ran, {len(wrong)} wrong; each occurred in so many plans:")
    for word, count in sorted(occurred.items()):
        print(f"  {count:4d}  {word}")
    for row in wrong:
        print("WRONG", row.number, row.text)
    _print_worst("", [row for row in rows if not row.drift])
    _print_worst(", where one device drifts by itself", [row for row in rows if row.drift])
    sent = sum(row.sent for row in rows)
    print(f"bytes sent in a step, all plans and ranks: {sent}; each rank's as predicted if right")


def _print_worst(where: str, rows: Sequence[Row]) -> None:
    for name in ("loss", "gradient", "parameter") if rows else ():
        worst = max(rows, key=lambda row: float(getattr(row, name)))
        print(f"largest error of a {name}{where}: {worst.text}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
