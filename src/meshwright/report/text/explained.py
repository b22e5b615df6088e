"""Terminal report of `explain`: critical path, link, operator and collective costs. Enters: an
`Explained`. Leaves: what the verb `explain` shows besides the tables of decisions (`planned`);
every figure in it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from meshwright.base.quantities import (
    counted,
    format_bytes,
    format_gibibytes,
    format_seconds,
    format_traffic,
)
from meshwright.collectives.dsl import Program
from meshwright.explain.confirm import is_faster
from meshwright.explain.decisions import Decision
from meshwright.explain.explanation import Explained
from meshwright.explain.exposed import CollectiveCost, KindCost, LinkCost
from meshwright.explain.path_breakdown import PathStretch, by_category
from meshwright.explain.what_if import Improvement
from meshwright.report.band_text import describe_band
from meshwright.report.outline import short_description
from meshwright.report.predictions import (
    describe_machine,
    describe_memory_by_kind,
    describe_predicted,
)
from meshwright.report.terminal_tables import new_table
from meshwright.report.text.planned import (
    describe_held,
    describe_lower_bound,
    describe_outline,
    missing,
)
from meshwright.report.throughput_text import (
    describe_cost,
    describe_step_parts,
    describe_throughput,
    describe_training,
    describe_workload,
)
from meshwright.report.words import describe_program
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.throughput import throughput

CATEGORIES = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "update": "updates of parameters",
    "launch": "launches of kernels",
    "latency": "latencies of collectives",
}
"""Of stretches, in words; the others are links."""

STOPPED = {
    "budget": "The time was up: some decisions or changes are left out.",
    "interrupted": "Interrupted: what is left out was not looked into.",
}


def describe_explained(explained: Explained) -> str:
    """The plan in words, what it gets done and how good it can be said to be; a line each."""
    planned = explained.planned
    plan = planned.best.plan
    achieved = throughput(plan, planned.best.prediction)
    fits = not missing(planned, planned.best)
    kinds = describe_memory_by_kind(planned.best.prediction.memory)
    lines = [
        f"{plan.graph.name} on {describe_machine(plan.cluster)}: "
        f"{describe_workload(achieved.workload)}, {describe_training(plan)}; {plan.origin}; "
        f"{describe_predicted(plan.cluster)}",
        describe_outline(short_description(plan, planned.rewrites)),
        f"throughput: {describe_throughput(achieved)}",
        f"step: {describe_step_parts(explained.parts)}",
        describe_categories(explained.spending.stretches),
        *describe_band(plan, planned.best.prediction.step),
        f"cost: {describe_cost(achieved)}",
        f"{describe_held(planned)}: {kinds}" if fits else _lacks(planned),
        describe_lower_bound(planned),
    ]
    return ".\n".join(lines) + "."


def describe_categories(stretches: Sequence[PathStretch]) -> str:
    """What the critical path is made of, in a line.

    >>> from meshwright.base.quantities import Seconds
    >>> describe_categories([PathStretch("update", "optimizer", 1, Seconds(1e-3), 1.0)])
    'critical path: updates of parameters 100.0%'
    """
    whole = sum(stretch.seconds for stretch in stretches)
    parts = (
        f"{CATEGORIES.get(category, category)} {seconds / whole:.1%}"
        for category, seconds in by_category(stretches).items()
    )
    return f"critical path: {', '.join(parts)}"


def _lacks(planned: PlanResult) -> str:
    memory, limit = planned.best.prediction.memory, format_gibibytes(planned.question.memory)
    lacks = format_gibibytes(missing(planned, planned.best))
    return (
        f"peak memory: it does NOT fit into {limit}: {memory.device} holds "
        f"{format_gibibytes(memory.total)} and lacks {lacks}"
    )


def describe_better(decisions: Sequence[Decision], step: float) -> str:
    """Which runner-up is the best of those that a search found to fit and to be faster than what
    was chosen.
    """
    searched = [decision for decision in decisions if decision.searched is not None]
    if not searched:
        return "None of them was searched (--budget), so that none is called faster."
    faster = [decision for decision in searched if decision.fits and is_faster(decision, step)]
    if not faster:
        return "No runner-up that fits is faster than what was chosen."
    best = min(faster, key=lambda decision: decision.best or step)
    gain = format_seconds(step - (best.best or step))
    count = "1 runner-up that fits" if len(faster) == 1 else f"{len(faster)} runners-up that fit"
    return (
        f"{count} would be faster; the best, {best.runner_up} for {best.subject}, by {gain}: "
        f"plan with {best.fix}. A search found it so."
    )


def table_of_stretches(stretches: Sequence[PathStretch], most: int) -> Table:
    """What the critical path is made of."""
    table = new_table("critical path", "namely~", "times>", "predicted>", "of the step>")
    for stretch in stretches[:most]:
        table.add_row(
            stretch.category,
            stretch.subject,
            str(stretch.times),
            format_seconds(stretch.seconds),
            f"{stretch.share:.1%}",
        )
    return table


def describe_stretches(stretches: Sequence[PathStretch], most: int) -> str:
    """What the table of stretches shows, and what not."""
    text = "The critical path from the beginning of the step to its end; copies of a layer are one."
    if len(stretches) > most:
        rest = sum(stretch.share for stretch in stretches[most:])
        text += (
            f" {counted(len(stretches) - most, 'more line')} ({rest:.1%}): --top {len(stretches)}."
        )
    return text


def table_of_links(costs: Sequence[LinkCost]) -> Table:
    """How busy the busiest link of every kind is, and what of that is exposed."""
    table = new_table("link", "carries>", "busy>", "of the step>", "exposed>")
    for cost in costs:
        table.add_row(
            cost.link,
            format_traffic(cost.bytes),
            format_seconds(cost.seconds),
            f"{cost.share:.1%}",
            format_seconds(cost.exposed),
        )
    return table


def table_of_kinds(costs: Sequence[KindCost], most: int) -> Table:
    """What the operators of every kind take."""
    table = new_table("operators", "number>", "compute>", "of all>", "of the roofline>", "exposed>")
    for cost in costs[:most]:
        table.add_row(
            cost.kind,
            str(cost.operators),
            format_seconds(cost.seconds),
            f"{cost.share:.1%}",
            f"{cost.roofline:.1%}",
            format_seconds(cost.exposed),
        )
    return table


def table_of_collectives(costs: Sequence[CollectiveCost], most: int) -> Table:
    """What every collective takes; sums with their programs."""
    table = new_table(
        "collective", "over~", "of~", "bytes>", "program~", "times>", "total>", "exposed>"
    )
    for cost in costs[:most]:
        table.add_row(
            cost.operation,
            cost.over,
            cost.purpose,
            format_bytes(round(cost.bytes)),
            describe_program(Program.parse(cost.program)) if cost.program else "",
            str(cost.times),
            format_seconds(cost.seconds),
            format_seconds(cost.exposed),
        )
    return table


def describe_costs(explained: Explained, most: int) -> str:
    """What the tables of costs show, and what not."""
    text = "exposed: on the critical path; the rest overlaps with something else."
    spent = explained.spending
    left = max(len(spent.kinds), len(spent.collectives))
    if left > most:
        text += f" Tables are cut after {counted(most, 'line')}: --top {left} shows all."
    return text


def table_of_helps(improvements: Sequence[Improvement]) -> Table:
    """What would help, the most useful first."""
    table = new_table("what would help~", "step with it>", "samples a second>", "note~")
    for improvement in improvements:
        table.add_row(
            improvement.change,
            "" if improvement.step is None else format_seconds(improvement.step),
            "" if improvement.step is None else f"{improvement.gain:+.1%}",
            improvement.note,
        )
    return table


def describe_helps() -> str:
    """What the table of help shows."""
    return (
        "Each predicted by simulating the same layouts with the change; a search for it may find "
        "better ones."
    )
