"""Terminal report of `plan`: strategies, lower bound, peak memory and Pareto front. Enters:
`PlanResult`, decisions. Leaves: what the verb `plan` shows; every figure in it is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace
from rich.table import Table

from meshwright.base.errors import InputError
from meshwright.base.quantities import (
    counted,
    format_bytes,
    format_count,
    format_gibibytes,
    format_rate,
    format_seconds,
)
from meshwright.explain.step_parts import StepParts
from meshwright.graph.workload import workload
from meshwright.plan.plan import Plan
from meshwright.report.band_text import describe_band
from meshwright.report.outline import Outline, short_description
from meshwright.report.predictions import (
    PredictionRow,
    describe_machine,
    describe_memory_by_kind,
    describe_peak,
    describe_predicted,
    parts_of,
    strategies_table,
)
from meshwright.report.terminal_tables import new_table
from meshwright.report.throughput_text import (
    describe_cost,
    describe_step_parts,
    describe_throughput,
    describe_training,
    describe_workload,
    rate,
    unit_of,
)
from meshwright.search.candidate import Candidate
from meshwright.search.joint.coarse.global_config import micro_batches
from meshwright.search.joint.request.constraints import held_degrees
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.throughput import throughput

DAY = 86_400
"""Seconds."""

KINDS = 3
"""Layouts that are told, at most."""

FOUND = "plan"
"""What the plan that was found is called among the strategies."""

STOPPED = {
    "complete": "it stopped because nothing was left to try",
    "budget": "it stopped because the budget was used up",
    "interrupted": "interrupted: this is the best so far",
}

ACTIVATIONS, WORKSPACE = "activations", "workspace"
"""What micro-batches make smaller."""

HELPS = {
    "parameters": "more devices to spread them over (--nodes, --gpus)",
    "gradients": "more devices to spread them over (--nodes, --gpus)",
    "optimizer": "an optimizer that remembers less (--optimizer) or more devices (--nodes, --gpus)",
    ACTIVATIONS: "a smaller batch (--batch) or more devices (--nodes, --gpus)",
    WORKSPACE: "a smaller batch (--batch) or more devices (--nodes, --gpus)",
    "framework": "fewer groups of devices that talk, or another figure in [device.overhead]",
}
"""By the largest part of what a device holds: what makes it smaller."""


def describe_question(planned: PlanResult) -> str:
    """What is planned on what, in a line."""
    asked = planned.question
    words = [
        f"{asked.graph.name} on {describe_machine(asked.cluster)}",
        f"{describe_workload(workload(asked.graph))}, {describe_training(planned.plan)}",
        f"least {asked.minimize} with at most {format_bytes(asked.memory)} a device",
        describe_predicted(asked.cluster),
    ]
    if held := held_degrees(asked.constraints):
        degrees = ", ".join(f"{axis.upper()} {degree}" for axis, degree in held.items())
        words.append(f"only configurations with {degrees} are searched")
    if asked.graph.loss is None:
        words.append(
            "the model has no loss, so that the plan is for a forward and backward pass "
            "and cannot be run: capture it with its loss"
        )
    return f"{words[0]}: {'; '.join(words[1:])}"


def missing(planned: PlanResult, candidate: Candidate) -> int:
    """Bytes by which the limit is too small for a plan; 0 if it fits."""
    return max(0, candidate.prediction.memory.total - planned.question.memory)


def reference(planned: PlanResult) -> float | None:
    """The step of the fastest baseline that fits, if any does."""
    limit = planned.question.memory
    fitting = [
        candidate.prediction.step for _, candidate in planned.baselines if candidate.fits(limit)
    ]
    return min(fitting, default=None)


def speedup(planned: PlanResult, candidate: Candidate) -> float | None:
    """How much faster a plan is than the fastest baseline that fits, if any does."""
    step = reference(planned)
    return None if step is None else step / candidate.prediction.step


def table_of_planned(planned: PlanResult) -> Table:
    """The baselines, and at the end the plan that was found."""
    return strategies_table(
        PredictionRow(
            name,
            candidate.plan,
            candidate.prediction,
            speedup(planned, candidate),
            missing(planned, candidate),
            marked=name == FOUND,
        )
        for name, candidate in (*planned.baselines, (FOUND, planned.best))
    )


def describe_planned(planned: PlanResult, parts: StepParts | None = None) -> str:
    """The plan in words, what it gets done, how good it can be said to be, and how it was found; a
    line each. `parts` are those of its step.
    """
    done = throughput(planned.plan, planned.best.prediction)
    lines = [
        describe_outline(short_description(planned.plan, planned.rewrites)),
        f"throughput: {describe_throughput(done)}",
        *([] if parts is None else [f"step: {describe_step_parts(parts)}"]),
        *describe_band(
            planned.plan,
            planned.best.prediction.step,
            speedup(planned, planned.best),
            "the best baseline",
        ),
        f"cost: {describe_cost(done)}",
    ]
    fits = missing(planned, planned.best) == 0
    kinds = describe_memory_by_kind(planned.best.prediction.memory)
    lines.append(f"{describe_held(planned)}: {kinds}" if fits else _lacking(planned))
    if planned.bound:
        lines.append(describe_lower_bound(planned))
    if planned.history:  # A plan that is only judged has none.
        lines.append(
            f"search: {counted(planned.simulated, 'plan')} simulated, "
            f"{counted(planned.graphs, 'graph')} looked at in {format_seconds(planned.seconds)}; "
            f"{STOPPED[planned.stopped]}"
        )
    return ".\n".join(lines) + "."


def describe_outline(outline: Outline) -> str:
    """A plan: a line for each of its main layouts, and one for what holds for the whole graph."""
    kinds = [kind.told() for kind in outline.kinds[:KINDS]]
    left = sum(kind.share for kind in outline.kinds[KINDS:])
    if left:
        kinds.append(f"{left:.0%} of FLOPs otherwise: meshwright explain")
    return "plan: " + ".\n      ".join([*kinds, *filter(None, ["; ".join(outline.decided())])])


def describe_hints(planned: PlanResult) -> list[str]:
    """What a person would likely have asked for instead, a sentence each."""
    asked, work = planned.question, workload(planned.question.graph)
    hints, peaks = [], dict(asked.cluster.device.peak)
    if 0 < work.samples < asked.cluster.devices:
        hints.append(
            f"a step has {counted(work.samples, 'sample')} for {asked.cluster.devices} devices: "
            f"--batch {asked.cluster.devices} gives each one"
        )
    if work.dtype == "float32" and peaks.get("bf16", 0.0) > 2 * peaks.get("fp32", math.inf):
        hints.append(
            "the model is in fp32, of which the device has "
            f"{peaks['fp32'] / peaks['bf16']:.0%} of the peak of bf16: --dtype bf16 --mixed"
        )
    return [f"note: {hint}." for hint in hints]


def describe_lower_bound(planned: PlanResult) -> str:
    """The lower bound on the step of any plan, and how far this one is from it."""
    graphs = "the graph" if planned.graphs == 1 else f"the {planned.graphs} graphs"
    micro = planned.best.plan.options.micro_batches
    with_ = "one micro-batch" if micro == 1 else f"one or {micro} micro-batches"
    bound = f"lower bound: {format_seconds(planned.bound)} for any plan of {graphs} with {with_}"
    if planned.best.prediction.step <= planned.bound:
        return f"{bound}; no optimality gap"
    return f"{bound}; optimality gap at most {planned.gap:.1%}"


def describe_held(planned: PlanResult) -> str:
    """The peak of memory, of what a device may hold."""
    return describe_peak(planned.best.prediction.memory, planned.question.memory)


def _lacking(planned: PlanResult) -> str:
    """That nothing fits, what is missing, and what would help."""
    candidate = smallest(planned)
    memory, limit = candidate.prediction.memory, format_gibibytes(planned.question.memory)
    largest = max(parts_of(memory).items(), key=lambda part: part[1])
    return (
        f"peak memory: NOTHING fits into {limit} a device. Of all plans that were simulated the "
        f"smallest holds {format_gibibytes(memory.total)} and lacks "
        f"{format_gibibytes(missing(planned, candidate))}. The largest part are {largest[0]}, "
        f"{format_gibibytes(largest[1])}; what helps: {_help(planned, candidate)}"
    )


def smallest(planned: PlanResult) -> Candidate:
    """Of all plans that are known the one that holds the least."""
    known = (planned.best, *planned.front, *(candidate for _, candidate in planned.baselines))
    return min(known, key=lambda candidate: candidate.prediction.memory.total)


def _help(planned: PlanResult, candidate: Candidate) -> str:
    parts, asked = parts_of(candidate.prediction.memory), planned.question
    largest = max(parts, key=lambda name: parts[name])
    words = [HELPS[largest]]
    micro_batches, most = candidate.plan.options.micro_batches, _most_micro_batches(candidate.plan)
    if largest in (ACTIVATIONS, WORKSPACE) and most > micro_batches:
        words.insert(0, f"more micro-batches than {micro_batches} (--fix micro-batches={most})")
    if asked.memory < asked.cluster.device.memory:
        device = format_gibibytes(asked.cluster.device.memory)
        words.append(f"a higher limit (--memory; a device has {device})")
    else:
        words.append("devices with more memory")
    if asked.constraints != type(asked.constraints)():
        words.append("fewer constraints")
    return ", ".join(words)


def _most_micro_batches(plan: Plan) -> int:
    """Into how many a plan's layouts can be cut."""
    for count in reversed(micro_batches(plan.graph)):
        try:
            plan.changed(options=replace(plan.options, micro_batches=count))
        except InputError:
            continue
        return count
    return plan.options.micro_batches


def table_of_front(planned: PlanResult) -> Table:
    """Plans that no other beats in both time and memory, the fastest first."""
    table = new_table("step>", "memory>", "fits", "plan~")
    for candidate in planned.front:
        table.add_row(
            format_seconds(candidate.prediction.step),
            format_gibibytes(candidate.prediction.memory.total),
            "yes" if candidate.fits(planned.question.memory) else "no",
            str(short_description(candidate.plan)),
            style="bold" if candidate.prediction == planned.best.prediction else None,
        )
    return table


def table_of_machines(plans: Sequence[PlanResult]) -> Table:
    """The best plans on machines of several sizes, in the order given."""
    unit = unit_of(throughput(*plans[0].best).workload)
    table = new_table(
        "machine", "devices>", "step>", f"{unit}/s>", f"{unit} a day>", "device time a step>",
        "memory>", "fits",
    )  # fmt: skip
    for planned in plans:
        prediction, cluster = planned.best.prediction, planned.question.cluster
        done = rate(throughput(*planned.best))
        table.add_row(
            describe_machine(cluster),
            str(cluster.devices),
            format_seconds(prediction.step),
            format_rate(done),
            format_count(round(done * DAY)),
            format_seconds(prediction.step * cluster.devices),
            format_gibibytes(prediction.memory.total),
            "yes" if planned.best.fits(planned.question.memory) else "no",
            style="bold" if planned is plans[0] else None,
        )
    return table
