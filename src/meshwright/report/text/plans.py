"""Terminal report and JSON of `simulate` and `compare`. Enters: simulations, comparisons. Leaves:
what the verbs `simulate` and `compare` show; every figure in it is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from meshwright.base.quantities import (
    counted,
    format_gibibytes,
    format_rate,
    format_seconds,
    format_traffic,
)
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import describe_software
from meshwright.explain.step_parts import step_parts
from meshwright.explain.utilisation import Cost, Occupancy, costliest, occupancies
from meshwright.graph.workload import workload
from meshwright.plan.plan import Plan, Prediction
from meshwright.report.band_text import describe_band
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
from meshwright.report.terminal_tables import new_table
from meshwright.report.throughput_text import (
    describe_training,
    describe_workload,
    rate,
    step_parts_document,
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
    memory, done = prediction.memory, throughput(simulation.plan, prediction)
    table.add_row("step", format_seconds(prediction.step))
    table.add_row("  compute on the busiest device", format_seconds(parts.compute))
    table.add_row("  exposed communication", format_seconds(parts.exposed))
    if parts.host:
        table.add_row("  waiting for the host", format_seconds(parts.host))
    table.add_row("  pipeline bubble", format_seconds(parts.bubble))
    table.add_row(f"{unit_of(done.workload)} a second", format_rate(rate(done)))
    table.add_row("  a device", format_rate(rate(done) / done.devices))
    if done.mfu is not None and done.hfu is not None:
        table.add_row("MFU", f"{done.mfu:.1%}")
        table.add_row("HFU", f"{done.hfu:.1%}")
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


def table_of_occupancies(occupied: Sequence[Occupancy]) -> Table:
    """How busy compute streams and links are."""
    table = new_table("resource", "simulated>", "busiest (predicted)>", "of the step>", "mean>")
    for occupancy in occupied:
        table.add_row(
            occupancy.kind,
            str(occupancy.resources),
            format_seconds(occupancy.busiest),
            f"{occupancy.busiest_share:.1%}",
            f"{occupancy.mean_share:.1%}",
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
            candidate.plan,
            candidate.prediction,
            _speedup(comparison, candidate),
            candidate.prediction.missing,
            marked=candidate is searched,
        )
        for name, candidate in comparison.strategies
    )


def describe_search(comparison: Comparison) -> str:
    """How the search went, and how far such predictions are off."""
    chains = comparison.found
    kind = "locally optimal" if chains.local_optimum else "not known to be locally optimal"
    text = (
        f"search: {chains.proposals} proposals in {format_seconds(chains.seconds)}, from "
        f"{chains.origin!r}, {kind}; {STOPPED[chains.stopped]}."
    )
    fits = [name for name, candidate in comparison.strategies if not candidate.prediction.missing]
    if comparison.searched.prediction.missing and fits:
        best = comparison.best
        text += f" Its plan does NOT fit into memory; the fastest that fits is {best!r}."
    elif not fits:
        text += " Its plan does NOT fit into memory, and no other does."
    searched = comparison.searched
    faster = _speedup(comparison, searched)
    band = describe_band(
        searched.plan, searched.prediction.step, faster, "the fastest baseline that fits"
    )
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
        **step_parts_document(step_parts(simulation)),
        "costliest": [
            {
                "kind": cost.kind,
                "subject": cost.subject,
                "times": cost.times,
                "predicted_s": cost.seconds,
                "share": cost.share,
            }
            for cost in costliest(simulation, MOST)
        ],
        "resources": [
            {
                "kind": occupancy.kind,
                "simulated": occupancy.resources,
                "busiest_s": occupancy.busiest,
                "busiest_share": occupancy.busiest_share,
                "mean_share": occupancy.mean_share,
            }
            for occupancy in occupancies(simulation)
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
            {"name": name, "speedup": _speedup(comparison, candidate)}
            | msgspec.to_builtins(candidate.plan.options)
            | prediction_document(*candidate, candidate.prediction.missing)
            for name, candidate in comparison.strategies
        ],
        "best": comparison.best,
        "refused": refused_document(comparison.refused),
        "search": _search_document(comparison.found),
    }


def _search_document(chains: ChainsResult) -> Document:
    return {
        "proposals": chains.proposals,
        "seconds": chains.seconds,
        "origin": chains.origin,
        "local_optimum": chains.local_optimum,
        "stopped": chains.stopped,
        "history": [
            {"proposals": proposals, "seconds": seconds, "step_s": nanoseconds / NANO}
            for proposals, seconds, nanoseconds in chains.history
        ],
    }


def _speedup(comparison: Comparison, candidate: Candidate) -> float | None:
    """How much faster a strategy is than the fastest baseline that fits, if any does."""
    steps = [
        other.prediction.step
        for _, other in comparison.strategies[:-1]
        if not other.prediction.missing
    ]
    return min(steps) / candidate.prediction.step if steps else None
