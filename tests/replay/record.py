"""Everything that is said of a question and its answer, as text. Enters: a `PlanRequest`. Leaves:
lines, each a subject and its numbers in full; times in nanoseconds.

What sentences say is left out where a number says it too: notes, reasons, headings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from meshwright.base.quantities import Bytes
from meshwright.cost.tables import pricer_of
from meshwright.explain.decisions import explain
from meshwright.explain.explanation import Spending, spending
from meshwright.explain.what_if import helps
from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_by_kind
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan, Prediction
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.simulate.simulation import prices_of, simulate

DEVICES = 8
"""Devices whose bytes are told: so many of the first, and the last."""


def replayed(question: PlanRequest, proposals: int) -> Iterator[str]:
    """A search that no clock ends, its answer explained, and the bytes that it would send."""
    planned = best_plan(question, Budget(proposals=proposals))
    yield from _of_search(planned)
    yield from of_plan(planned.plan)
    yield from _of_explanation(planned.plan, question.memory)
    yield from _of_bytes(planned.plan)


def judged_again(plan: Plan, memory: Bytes) -> Iterator[str]:
    """A plan from elsewhere: what is predicted of it, explained, and the bytes it would send."""
    yield _line("predicted", _prediction(simulate(plan).prediction))
    yield from of_plan(plan)
    yield from _of_explanation(plan, memory)
    yield from _of_bytes(plan)


def _line(subject: str, *values: object) -> str:
    return f"{subject}: {' '.join(json.dumps(value, ensure_ascii=False) for value in values)}"


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


def _prediction(prediction: Prediction) -> dict[str, object]:
    held = prediction.memory
    return {
        "step": _nanoseconds(prediction.step),
        "compute": _nanoseconds(prediction.compute),
        "volume": prediction.moved,
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "activations": held.activations,
        "workspace": held.workspace,
        "peak at": _nanoseconds(held.seconds),
        "missing": prediction.missing,
    }


def _options(options: Options) -> list[object]:
    """Micro-batches, schedule, recomputation, ZeRO stage, bucket."""
    return [
        options.micro_batches,
        options.schedule,
        options.recompute,
        options.zero,
        options.bucket,
    ]


def _of_search(planned: PlanResult) -> Iterator[str]:
    graph = planned.question.graph
    yield _line("graph", len(graph.operators), len(graph.tensors), graph.parameter_count)
    for name, candidate in planned.baselines:
        yield _line(
            f"baseline {name}", _options(candidate.plan.options), _prediction(candidate.prediction)
        )
        yield from _of_layouts(f"baseline {name}", candidate.plan)
    yield _line("refused", [name for name, _ in planned.refused])
    for candidate in planned.front:
        held = candidate.prediction.memory.total
        yield _line("front", _nanoseconds(candidate.prediction.step), held, candidate.plan.origin)
    for improvement in planned.history:
        yield _line("history", _nanoseconds(improvement.step))
    yield _line("search", planned.graphs, planned.simulated, planned.stopped)
    yield _line("lower bound", planned.bound * 1e9, planned.gap)
    for text in planned.rewrites:
        yield _line("rewrite", text)
    yield _line("predicted", _prediction(planned.best.prediction))


def of_plan(plan: Plan) -> Iterator[str]:
    """What is decided."""
    yield _line("plan", plan.origin, _options(plan.options), len(plan.graph.operators))
    yield from _of_layouts("plan", plan)
    for entry in plan.programs:
        yield _line("program", entry.over, entry.beside, entry.bytes, entry.program)
    for chain in plan.chains:
        yield _line("chain", chain.collective, chain.over, chain.bytes, chain.steps)


def _of_layouts(subject: str, plan: Plan) -> Iterator[str]:
    """Every layout, with the numbers of the units that have it."""
    numbers: dict[str, list[int]] = {}
    for number, (_, layout) in enumerate(plan.layouts):
        numbers.setdefault(layout, []).append(number)
    for layout, members in numbers.items():
        yield f"{subject} {layout}: {ranges(members)}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short, as "0-2 5"."""
    runs = groupby(enumerate(numbers), key=lambda it: it[1] - it[0])
    stretches = [[number for _, number in run] for _, run in runs]
    return " ".join(
        f"{stretch[0]}-{stretch[-1]}" if len(stretch) > 1 else f"{stretch[0]}"
        for stretch in stretches
    )


def _of_explanation(plan: Plan, memory: Bytes) -> Iterator[str]:
    prices, operators = prices_of(plan), pricer_of(plan.cluster.device)
    yield from _of_spending(spending(simulate(plan, prices, operators)))
    for decision in explain(plan, prices=prices, operators=operators, memory=memory):
        step = _nanoseconds(decision.step)
        yield _line(
            f"decision {decision.subject}", decision.chosen, decision.runner_up, step, decision.fits
        )
    for change in helps(plan, memory):
        step = _nanoseconds(change.step)
        yield _line(f"change {change.change}", step, change.samples, change.gain)


def _of_spending(spent: Spending) -> Iterator[str]:
    parts: Iterable[tuple[str, Sequence[object]]] = (
        ("critical path", spent.stretches),
        ("link", spent.links),
        ("kind", spent.kinds),
        ("collective", spent.collectives),
    )
    for subject, rows in parts:
        for row in rows:
            yield _line(subject, *msgspec.to_builtins(row).values())


def _of_bytes(plan: Plan) -> Iterator[str]:
    """What devices send in a step, by kind of instruction, and which of them send as much."""
    script, count = Script(plan), plan.cluster.devices
    senders: dict[str, list[int]] = {}
    for device in sorted({*range(min(DEVICES, count)), count - 1}):
        sent = json.dumps(dict(sent_bytes_by_kind(script, device)))
        senders.setdefault(sent, []).append(device)
    for sent, devices in senders.items():
        yield f"sent by devices {ranges(devices)}: {sent}"
