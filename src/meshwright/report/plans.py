"""Plans, simulated and side by side: tables, sentences and JSON. Enters: simulations, comparisons.
Leaves: what the verbs `simulate` and `compare` show; every figure in it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from meshwright.base.units import (
    counted,
    format_gibibytes,
    format_rate,
    format_seconds,
    format_traffic,
)
from meshwright.cluster.model import Cluster
from meshwright.cluster.software import describe_software
from meshwright.explain.step_parts import step_parts
from meshwright.explain.utilisation import Cost, Occupancy, costliest, occupancies
from meshwright.graph.workload import workload
from meshwright.plan.model import Plan, Prediction
from meshwright.report.bands import describe_band
from meshwright.report.documents import Document
from meshwright.report.outline import describe_options
from meshwright.report.predictions import (
    PredictionRow,
    describe_machine,
    describe_peak,
    describe_predicted,
    machine_document,
    parts_of,
    prediction_document,
    refused_document,
    strategies_table,
)
from meshwright.report.tables import new_table
from meshwright.report.throughput import (
    describe_training,
    describe_workload,
    parts_document,
    rate,
    unit_of,
)
from meshwright.search.candidate import Candidate
from meshwright.search.compare import Comparison
from meshwright.search.mcmc.parallel_chains import ChainsResult
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.throughput import throughput

MOST = 10
"""The costliest tasks that are shown."""

STOPPED = {
    "budget": "it stopped because the budget was used up",
    "settled": "it stopped because nothing was left to try",
    "interrupted": "interrupted: this is the best so far",
}


def describe_plan(plan: Plan) -> str:
    """What is planned, in a line."""
    words = [f"{plan.graph.name} on {describe_machine(plan.cluster)}: {plan.origin}"]
    words.append(f"{describe_workload(workload(plan.graph))}, {describe_training(plan)}")
    words += describe_options(plan.options)
    words += [counted(len(plan.layouts), "unit"), f"priced as {describe_software(plan.cluster)}"]
    return "; ".join(words)


def table_of_prediction(simulation: Simulation) -> Table:
    """What is predicted of a plan as a whole."""
    table = new_table("predicted", ">")
    prediction, parts = simulation.prediction, step_parts(simulation)
    memory, found = prediction.memory, throughput(simulation.plan, prediction)
    table.add_row("step", format_seconds(prediction.step))
    table.add_row("  compute on the busiest device", format_seconds(parts.compute))
    table.add_row("  exposed communication", format_seconds(parts.exposed))
    table.add_row("  pipeline bubble", format_seconds(parts.bubble))
    table.add_row(f"{unit_of(found.workload)} a second", format_rate(rate(found)))
    table.add_row("  a device", format_rate(rate(found) / found.devices))
    if found.mfu is not None and found.hfu is not None:
        table.add_row("MFU", f"{found.mfu:.1%}")
        table.add_row("HFU", f"{found.hfu:.1%}")
    table.add_row("communication volume", format_traffic(prediction.moved))
    table.add_row("peak memory", format_gibibytes(memory.total))
    for part, held in parts_of(memory).items():
        table.add_row(f"  {part}", format_gibibytes(held))
    return table


def describe_memory(prediction: Prediction, cluster: Cluster) -> str:
    """Whether a plan fits, and where and when its memory is at its peak."""
    peak = describe_peak(prediction.memory, cluster.device.memory)
    if prediction.missing:
        return f"It does NOT fit: {peak}; {format_gibibytes(prediction.missing)} are missing."
    return f"It fits: {peak}."


def table_of_costs(costs: Sequence[Cost]) -> Table:
    """The costliest units and transfers."""
    table = new_table("costliest", "of~", "times>", "predicted>", "of the step>")
    for cost in costs:
        time, share = format_seconds(cost.seconds), f"{cost.share:.1%}"
        table.add_row(cost.kind, cost.subject, str(cost.times), time, share)
    return table


def table_of_occupancies(found: Sequence[Occupancy]) -> Table:
    """How busy compute streams and links are."""
    table = new_table("resource", "simulated>", "busiest (predicted)>", "of the step>", "mean>")
    for own in found:
        table.add_row(
            own.kind,
            str(own.resources),
            format_seconds(own.busiest),
            f"{own.busiest_share:.1%}",
            f"{own.mean_share:.1%}",
        )
    return table


def describe_comparison(comparison: Comparison) -> str:
    """What is compared, in a line."""
    plan = comparison.searched.plan
    work = f"{describe_workload(workload(plan.graph))}, {describe_training(plan)}"
    where = describe_machine(plan.cluster)
    return f"{plan.graph.name} on {where}: {work}; {describe_predicted(plan.cluster)}"


def table_of_strategies(comparison: Comparison) -> Table:
    """Baselines and the search, side by side."""
    searched = comparison.searched
    return strategies_table(
        PredictionRow(
            name,
            own.plan,
            own.prediction,
            _speedup(comparison, own),
            own.prediction.missing,
            marked=own is searched,
        )
        for name, own in comparison.strategies
    )


def describe_search(comparison: Comparison) -> str:
    """How the search went, and how far such predictions are off."""
    found = comparison.found
    kind = "locally optimal" if found.local_optimum else "not known to be locally optimal"
    text = (
        f"search: {found.proposals} proposals in {format_seconds(found.seconds)}, from "
        f"{found.origin!r}, {kind}; {STOPPED[found.stopped]}."
    )
    fits = [name for name, own in comparison.strategies if not own.prediction.missing]
    if comparison.searched.prediction.missing and fits:
        best = comparison.best
        text += f" Its plan does NOT fit into memory; the fastest that fits is {best!r}."
    elif not fits:
        text += " Its plan does NOT fit into memory, and no other does."
    searched = comparison.searched
    faster = _speedup(comparison, searched)
    band = describe_band(searched.plan, faster, "the fastest baseline that fits")
    return "\n".join([text, *(f"E{line[1:]}." for line in band)])


def simulation_document(simulation: Simulation, engine: str) -> Document:
    """`simulate --json`."""
    plan = simulation.plan
    return {
        "origin": plan.origin,
        "graph": plan.graph.name,
        "units": len(plan.layouts),
        "engine": engine,
        **machine_document(plan.cluster),
        **msgspec.to_builtins(plan.options),
        **prediction_document(plan, simulation.prediction, simulation.prediction.missing),
        **parts_document(step_parts(simulation)),
        "costliest": [
            {
                "kind": own.kind,
                "subject": own.subject,
                "times": own.times,
                "predicted_s": own.seconds,
                "share": own.share,
            }
            for own in costliest(simulation, MOST)
        ],
        "resources": [
            {
                "kind": own.kind,
                "simulated": own.resources,
                "busiest_s": own.busiest,
                "busiest_share": own.busiest_share,
                "mean_share": own.mean_share,
            }
            for own in occupancies(simulation)
        ],
    }


def comparison_document(comparison: Comparison, asked: Document) -> Document:
    """`compare --json`; `asked` are the options that decide what the search does."""
    plan = comparison.searched.plan
    return {
        "graph": plan.graph.name,
        "units": len(plan.layouts),
        **machine_document(plan.cluster),
        **asked,
        "strategies": [
            {"name": name, "speedup": _speedup(comparison, own)}
            | msgspec.to_builtins(own.plan.options)
            | prediction_document(*own, own.prediction.missing)
            for name, own in comparison.strategies
        ],
        "best": comparison.best,
        "refused": refused_document(comparison.refused),
        "search": _search_document(comparison.found),
    }


def _search_document(found: ChainsResult) -> Document:
    return {
        "proposals": found.proposals,
        "seconds": found.seconds,
        "origin": found.origin,
        "local_optimum": found.local_optimum,
        "stopped": found.stopped,
        "history": [
            {"proposals": proposals, "seconds": seconds, "step_s": nanoseconds / NANO}
            for proposals, seconds, nanoseconds in found.history
        ],
    }


def _speedup(comparison: Comparison, own: Candidate) -> float | None:
    """How much faster a strategy is than the fastest baseline that fits, if any does."""
    steps = [
        other.prediction.step
        for _, other in comparison.strategies[:-1]
        if not other.prediction.missing
    ]
    return min(steps) / own.prediction.step if steps else None
