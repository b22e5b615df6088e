"""Measures a device in one command: launching, whole training steps, then as many operators as fit.

    python3 benchmarks/calibrate_device.py --device cuda --budget 540 --out "$OUT"

Leaves `prices.jsonl`, a table of prices that goes on growing if the command is given again, and
`steps.json`: what launching and whole steps took, and all that failed, which ends nothing: not even
an operator that ends the process. Needs torch, numpy and msgspec alone. `--tiny` takes the tiny
twins of the models, to try the command out.
"""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import msgspec
import torch

from meshwright.base.quantities import Seconds, format_bytes, format_seconds
from meshwright.calibrate.calls import calls_to_measure
from meshwright.calibrate.profile_calls import CallCalibration, calibrate
from meshwright.calibrate.provenance import price_origin
from meshwright.capture.load import load_model
from meshwright.cost.profile_table import Origin
from meshwright.graph.operator_graph import Call, OperatorGraph
from meshwright.run.step import (
    DispatchMeasurement,
    OptimizerName,
    StepMeasurement,
    measure_dispatch,
    measure_step,
    real_example,
)
from random_calls import MOST_FLOPS, random_calls

STEP_SHARE, FLOAT32_SHARE = 0.35, 0.15
"""Of the budget; the operators in bfloat16 have the rest."""

PRICES, STEPS = "prices.jsonl", "steps.json"
TRIED, LOST = "tried.txt", "lost.txt"
"""What is being measured now, and what ended a process that measured it."""

WORKER = "--worker"
"""Followed by the seconds that a process which measures has; not for users."""

LEAST = 15
"""Seconds for which a new process is not worth starting."""

SEED = 20261115
RANDOM, RANDOM_FLOAT32 = 900, 200
OPTIMIZERS: tuple[OptimizerName, ...] = ("adam", "sgd")
SEARCHED = ("bert-large?layers=1", "gpt2-xl?layers=1", "resnet-50")
"""Models whose pieces are measured; one layer has the calls of all."""


class Workload(msgspec.Struct, frozen=True):
    """A model of the zoo, perhaps with other sizes, and its batches."""

    name: str
    model: str
    sizes: dict[str, int]
    batches: tuple[int, ...]


BERT_TINY = {"hidden": 128, "layers": 2, "heads": 2, "inner": 512}
BERT_BASE = {"hidden": 768, "layers": 12, "heads": 12, "inner": 3072}

WORKLOADS = (
    Workload("bert-tiny", "bert-large", BERT_TINY, (8, 32)),
    Workload("bert-base", "bert-large", BERT_BASE, (8, 32)),
    Workload("bert-large", "bert-large", {}, (4, 16)),
    Workload("gpt2-small", "gpt2-xl", {"hidden": 768, "layers": 12, "heads": 12}, (4, 16)),
    Workload("gpt2-medium", "gpt2-xl", {"hidden": 1024, "layers": 24, "heads": 16}, (4, 16)),
    Workload("gpt2-large", "gpt2-xl", {"hidden": 1280, "layers": 36, "heads": 20}, (2, 8)),
)  # fmt: skip

TINY_WORKLOADS = (
    Workload("bert-tiny", "bert-large", {"layers": 1}, (2,)),
    Workload("gpt2-tiny", "gpt2-xl", {"layers": 1}, (2,)),
)


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One measured training step."""

    workload: str
    model: str
    sizes: dict[str, int]
    batch: int
    dtype: str
    optimizer: OptimizerName
    measured: StepMeasurement


class Findings(msgspec.Struct, kw_only=True):
    """What `steps.json` holds; it is written anew after every measurement."""

    origin: Origin
    dispatch: DispatchMeasurement | None = None
    steps: list[StepRow] = []
    failures: list[str] = []


class Session:
    """A process that measures: where it writes, and how much of its time is left."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = torch.device(arguments.device)
        self.tiny: bool = arguments.tiny
        self.random: int = arguments.random
        self.dtype: str = arguments.dtype
        self.budget: float = arguments.worker
        self.begin = time.monotonic()
        self.out = Path(arguments.out)
        self.prices = self.out / PRICES
        command = shlex.join(["python3", *sys.argv[: sys.argv.index(WORKER)]])
        self.findings = _found(self.out) or Findings(origin=price_origin(self.device, command))
        lost = self.out / LOST
        self.lost = frozenset(lost.read_text().splitlines() if lost.exists() else ())

    @property
    def spent(self) -> float:
        """Seconds since this process began to measure."""
        return time.monotonic() - self.begin

    def tried(self, what: str) -> None:
        """Leave word of what is being tried, in case it ends this process."""
        (self.out / TRIED).write_text(what)

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Do something; if it fails, say so in the findings and go on."""
        if what in self.lost:
            return
        self.tried(what)
        try:
            work()
        except Exception as error:
            reason = next(iter(str(error).splitlines()), "")
            self.fail(f"{what}: {type(error).__name__}: {reason}")
        self.save()

    def fail(self, text: str) -> None:
        """Put a failure among the findings, once."""
        if text not in self.findings.failures:
            self.findings.failures.append(text)
            print(f"FAILED {text}", flush=True)

    def save(self) -> None:
        """Write the findings."""
        _save(self.out, self.findings)


def _found(out: Path) -> Findings | None:
    file = out / STEPS
    return msgspec.json.decode(file.read_bytes(), type=Findings) if file.exists() else None


def _save(out: Path, findings: Findings) -> None:
    text = msgspec.json.format(msgspec.json.encode(findings), indent=1)
    (out / STEPS).write_bytes(text)


def main() -> None:
    arguments = _arguments()
    if arguments.worker is not None:
        _measure(Session(arguments))
    else:
        _supervise(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a device's operators and training steps.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=540, help="seconds in all")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for the results")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--random", type=int, default=RANDOM, help="random operators in 16 bits")
    parser.add_argument("--tiny", action="store_true", help="the tiny twins of the models")
    parser.add_argument(WORKER, type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _supervise(arguments: argparse.Namespace) -> None:
    """Measure in a process of its own; if one operator ends it, go on without that operator."""
    deadline = time.monotonic() + arguments.budget
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    for name in (STEPS, LOST, TRIED):
        (out / name).unlink(missing_ok=True)
    left = arguments.budget
    while _process(left) != 0 and (out / TRIED).exists():
        _lose(out)
        left = deadline - time.monotonic()
        if left < LEAST:
            break
    for name in (LOST, TRIED):
        (out / name).unlink(missing_ok=True)
    _summarize(out, arguments.budget - (deadline - time.monotonic()))


def _process(budget: float) -> int:
    """The exit status of a process that measures."""
    command = [sys.executable, *sys.argv, WORKER, f"{budget:.0f}"]
    return subprocess.run(command, check=False).returncode


def _lose(out: Path) -> None:
    """Note what ended the process, so that the next one leaves it out."""
    what = (out / TRIED).read_text()
    with (out / LOST).open("a") as lost:
        lost.write(f"{what}\n")
    findings = _found(out)
    if findings is not None:
        findings.failures.append(f"ended the process: {what}")
        _save(out, findings)


def _measure(session: Session) -> None:
    """Launching and steps, a few operators in float32, all other time for those in 16 bits."""
    if session.findings.dispatch is None:
        session.attempt("dispatch", lambda: _dispatch(session))
    _steps(session)
    small = chain(_interleaved(_searched(session, "float32", (1,))), _random(session, "float32"))
    _calibrated(session, small, (STEP_SHARE + FLOAT32_SHARE) * session.budget)
    large = _interleaved(
        [
            _step_operators(session),
            *_searched(session, session.dtype, (1, 2, 4, 8)),
            _random(session, session.dtype),
        ]
    )
    _calibrated(session, large, session.budget)


def _dispatch(session: Session) -> None:
    session.findings.dispatch = measure_dispatch(session.device)


def _steps(session: Session) -> None:
    """Small models first; those for which no time is left are named as failures."""
    done = {(row.workload, row.batch, row.optimizer) for row in session.findings.steps}
    for workload in TINY_WORKLOADS if session.tiny else WORKLOADS:
        for batch in workload.batches:
            for optimizer in OPTIMIZERS:
                what = f"step of {workload.name}, batch {batch}, {optimizer}"
                if (workload.name, batch, optimizer) in done:
                    continue
                if session.spent > STEP_SHARE * session.budget:
                    session.fail(f"{what}: no time left")
                    continue
                session.attempt(what, _step_of(session, workload, batch, optimizer))


def _step_of(
    session: Session, workload: Workload, batch: int, optimizer: OptimizerName
) -> Callable[[], None]:
    def work() -> None:
        _forget(session)
        device = session.device
        example = real_example(workload.model, batch, device, workload.sizes, tiny=session.tiny)
        dtype = getattr(torch, session.dtype)
        row = StepRow(
            workload=workload.name,
            model=workload.model,
            sizes=workload.sizes,
            batch=batch,
            dtype=session.dtype,
            optimizer=optimizer,
            measured=measure_step(example, optimizer, device, dtype, steps=10),
        )
        session.findings.steps.append(row)
        print(_line(row), flush=True)

    return work


def _forget(session: Session) -> None:
    """Give back what the last model held, so that it does not count in the next one's peak."""
    gc.collect()
    if session.device.type == "cuda":
        torch.cuda.empty_cache()


def _source(model: str, session: Session) -> str:
    name, _, options = model.partition("?")
    tiny = "/tiny" if session.tiny else ""
    return f"zoo:{name}{tiny}" + (f"?{options}" if options else "")


def _searched(session: Session, dtype: str, degrees: tuple[int, ...]) -> list[tuple[Call, ...]]:
    """The calls of some models and, beyond degree 1, of their pieces."""
    sources = [_source(model, session) for model in SEARCHED]
    return [_calls_of(session, source, None, dtype, degrees) for source in sources]


def _step_operators(session: Session) -> tuple[Call, ...]:
    """The whole operators of the models whose steps are measured."""
    calls: list[Call] = []
    for workload in TINY_WORKLOADS if session.tiny else WORKLOADS:
        sizes = "&".join(
            f"{key}={value}" for key, value in (workload.sizes | {"layers": 1}).items()
        )
        source = _source(f"{workload.model}?{sizes}", session)
        for batch in workload.batches:
            calls += _calls_of(session, source, batch, session.dtype, (1,))
    return tuple(dict.fromkeys(calls))


def _calls_of(
    session: Session, source: str, batch: int | None, dtype: str, degrees: tuple[int, ...]
) -> tuple[Call, ...]:
    calls: list[Call] = []

    def work() -> None:
        graph = _graph(source, batch)
        calls.extend(calls_to_measure(graph, degrees, None if dtype == "float32" else dtype))

    session.attempt(f"calls of {source}", work)
    return tuple(calls)


@cache
def _graph(source: str, batch: int | None) -> OperatorGraph:
    return load_model(source, batch).graph


def _random(session: Session, dtype: str) -> tuple[Call, ...]:
    """Fewer and smaller ones in float32, for which a GPU is ten times slower."""
    if session.tiny:
        return random_calls(15, dtype, SEED, most_bytes=1e6, most_flops=1e8)
    if dtype == "float32":
        return random_calls(RANDOM_FLOAT32, dtype, SEED, most_flops=MOST_FLOPS / 10)
    return random_calls(session.random, dtype, SEED)


def _interleaved(lists: Iterable[Iterable[Call]]) -> Iterator[Call]:
    """One of each list in turn, so that a budget that ends early cuts all of them short."""
    missing: Any = None
    for calls in zip_longest(*lists, fillvalue=missing):
        yield from (call for call in calls if call is not None)


def _calibrated(session: Session, calls: Iterable[Call], until: float) -> None:
    """Measure into the table until so many seconds of the budget are spent."""
    last_line = time.monotonic()
    wanted = [call for call in calls if _text(call) not in session.lost]
    command = session.findings.origin.command

    def progress(done: int, total: int, call: Call) -> None:
        nonlocal last_line
        session.tried(_text(call))
        if time.monotonic() - last_line > 20:
            last_line = time.monotonic()
            print(f"{session.spent:6.0f} s: {done} of {total} calls, now {call.kind}", flush=True)

    def work() -> None:
        total = Seconds(max(until - session.spent, 0.0))
        result = calibrate(wanted, session.device, session.prices, command, progress, total=total)
        _report(session, result, len(set(wanted)))
        if result.stopped == "device lost":
            session.tried(_text(result.failures[-1].call))
            session.save()
            sys.exit("the device is lost")

    _forget(session)
    session.attempt("calibration", work)


def _text(call: Call) -> str:
    return msgspec.json.encode(call).decode()


def _report(session: Session, result: CallCalibration, wanted: int) -> None:
    for failure in result.failures:
        session.fail(str(failure))
    print(
        f"{session.spent:6.0f} s: {result.stopped}: {result.measured} calls measured, "
        f"{result.known} known before, {len(result.failures)} failed, of {wanted}",
        flush=True,
    )


def _line(row: StepRow) -> str:
    measured = row.measured
    host = "" if measured.host is None else f", host {format_seconds(measured.host)}"
    peak = "" if measured.peak is None else f", peak {format_bytes(measured.peak)}"
    spread = (max(measured.samples) - min(measured.samples)) / measured.seconds
    return (
        f"{row.workload} batch {row.batch} {row.dtype} {row.optimizer}: "
        f"{format_seconds(measured.seconds)} (spread {spread:.0%}){host}{peak}"
    )


def _summarize(out: Path, spent: float) -> None:
    findings = _found(out)
    if findings is None:
        sys.exit("nothing was measured")
    print(f"\n{findings.origin.device}, {findings.origin.software}")
    if findings.dispatch is not None:
        forward, backward = findings.dispatch.forward, findings.dispatch.backward
        print(f"launching: {format_seconds(forward)} forward, {format_seconds(backward)} backward")
    for row in findings.steps:
        print(_line(row))
    prices = out / PRICES
    rows = max(prices.read_bytes().count(b"\n") - 1, 0) if prices.exists() else 0
    print(f"{rows} prices in {prices}, {len(findings.failures)} failures, {spent:.0f} s")
    for failure in findings.failures[:10]:
        print(f"  {failure}")


if __name__ == "__main__":
    main()
