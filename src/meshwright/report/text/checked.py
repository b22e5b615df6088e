"""Terminal report of `check`: an evaluated hand-written configuration. Enters: `Checked`. Leaves:
what the verb `check` shows; every figure in it is predicted.
"""

from __future__ import annotations

from rich.table import Table

from meshwright.base.quantities import (
    counted,
    format_gibibytes,
    format_seconds,
)
from meshwright.cluster.software import describe_software
from meshwright.configs.better import ConfigTrial
from meshwright.configs.judge import BUBBLE, COMPUTING, Checked, ConfigLoad, matrix_text
from meshwright.explain.step_parts import step_parts
from meshwright.plan.plan import Plan, Prediction
from meshwright.report.band_text import describe_band
from meshwright.report.outline import short_description
from meshwright.report.predictions import (
    PredictionRow,
    describe_machine,
    describe_peak,
    parts_of,
    strategies_table,
)
from meshwright.report.throughput_text import (
    describe_cost,
    describe_step_parts,
    describe_throughput,
)
from meshwright.simulate.throughput import throughput
from meshwright.validate.bands import band_of, inside

ALMOST = 0.01
"""A gain of less than this is no gain."""


def describe_checked(checked: Checked, model: str) -> str:
    """What is checked, in a line or two."""
    facts = checked.facts
    words = [
        counted(facts.layers, "layer"), counted(facts.heads, "head"),
        f"{facts.positions} positions", counted(facts.samples, "sample") + " a step",
    ]  # fmt: skip
    if facts.experts:
        words.insert(2, counted(facts.experts, "expert"))
    lines = [
        f"{model} on {describe_machine(checked.cluster)}: {checked.config}; {_software(checked)}",
        f"model: {', '.join(words)}",
    ]
    if checked.rows is not None:
        levels = " ".join(checked.cluster.level_names)
        lines.append(f"placement: {matrix_text(checked.rows)} (levels: {levels})")
    return "\n".join(lines)


def _software(checked: Checked) -> str:
    """What the configuration is priced as: what runs degrees unless said, or its own framework."""
    words = f"priced as {describe_software(checked.cluster)}"
    form = checked.written.form
    return words if form == "options" else f"{words}, as the {form} configuration says"


def describe_running(checked: Checked) -> str:
    """Whether it runs, and if not why, a line each."""
    if not checked.problems:
        return "It runs: all degrees divide what they cut."
    return "\n".join(["It does NOT run:", *(f"  {problem}" for problem in checked.problems)])


def describe_fitting(checked: Checked) -> str:
    """Whether it fits, by what it holds, and what would make it fit."""
    assert checked.simulation is not None
    memory = checked.simulation.prediction.memory
    parts = ", ".join(f"{name} {format_gibibytes(n)}" for name, n in parts_of(memory).items())
    peak = describe_peak(memory, checked.memory)
    if not checked.missing:
        return f"It fits: {peak}: {parts}."
    missing = format_gibibytes(checked.missing)
    lines = [f"It does NOT fit: {peak}, {missing} too much: {parts}."]
    if checked.fixes:
        lines.append("One change makes it fit (predicted):")
        lines += [f"  {_change(checked, fix)}" for fix in checked.fixes]
    else:
        lines.append("No single change makes it fit.")
    return "\n".join(lines)


def _change(checked: Checked, trial: ConfigTrial) -> str:
    settings = " ".join(checked.changes(trial))
    held, step = trial.prediction.memory.total, trial.prediction.step
    return f"{settings}: {format_gibibytes(held)}, a step takes {format_seconds(step)}"


def describe_step(checked: Checked) -> str:
    """What a step takes, what gets done and what holds it up."""
    assert checked.simulation is not None
    simulation = checked.simulation
    achieved = throughput(simulation.plan, simulation.prediction)
    first, *others = checked.loads
    step = simulation.prediction.step
    band = "".join(f"E{text[1:]}.\n" for text in describe_band(simulation.plan, step))
    rest = ", ".join(f"{load.what} {load.share:.0%}" for load in others)
    return (
        f"Step (predicted): {describe_step_parts(step_parts(simulation))}.\n"
        f"{band}"
        f"Throughput: {describe_throughput(achieved)}.\n"
        f"Cost: {describe_cost(achieved)}.\n"
        f"Bottleneck: {_bottleneck(first, checked)}. Besides: {rest or 'nothing'}; they overlap."
    )


def _bottleneck(load: ConfigLoad, checked: Checked) -> str:
    share = f"{load.share:.0%} of the step"
    if load.what == COMPUTING:
        return f"computing, {share} on the busiest device"
    if load.what == BUBBLE:
        runs = checked.config.micro_batches * checked.config.chunks
        return (
            f"the pipeline's bubble, {share}: {checked.config.pipeline} stages have {runs} slots "
            "to fill"
        )
    across = _axes_across(load.what, checked)
    return f"the link {load.what}, busy {share}{across}"


def _axes_across(link: str, checked: Checked) -> str:
    """Which axes cross the level of a link."""
    level = checked.cluster.level_names.index(link.partition("/")[0])
    rows = checked.rows or {}
    names = [axis for axis, row in rows.items() if row[level] > 1]
    return f"; {' and '.join(names)} {'cross' if len(names) > 1 else 'crosses'} it" if names else ""


def table_of_checked(checked: Checked) -> Table:
    """The configuration, the best of the same form, and the plan of the search."""
    simulation = checked.simulation
    rows = []
    if simulation is not None:
        prediction = simulation.prediction
        rows.append(
            PredictionRow(
                "as written", simulation.plan, prediction, 1.0, checked.missing, marked=False
            )
        )
    others: list[tuple[str, Plan, Prediction]] = []
    if checked.best is not None:
        others.append(("best configuration", checked.best.plan, checked.best.prediction))
    if checked.planned is not None:
        others.append(("plan", *checked.planned.best))
    for name, plan, prediction in others:
        speedup = None if simulation is None else simulation.prediction.step / prediction.step
        missing = max(0, prediction.memory.total - checked.memory)
        rows.append(
            PredictionRow(name, plan, prediction, speedup, missing, marked=name == others[-1][0])
        )
    return strategies_table(rows)


def describe_better(checked: Checked) -> str:
    """What to change in the file, and the plan that no such file can say."""
    lines = []
    if checked.best is not None:
        lines += _configuration(checked, checked.best)
    if checked.planned is not None:
        best = checked.planned.best
        lines.append(f"plan: {short_description(best.plan, checked.planned.rewrites)}.")
    return "\n".join(lines)


def _configuration(checked: Checked, best: ConfigTrial) -> list[str]:
    tried = counted(checked.tried, "configuration")
    if best.prediction.memory.total > checked.memory:
        return [f"best configuration: of {tried} that were simulated none fits."]
    if checked.good and checked.simulation is not None:
        gain = checked.simulation.prediction.step / best.prediction.step - 1
        if gain < ALMOST:
            return [f"best configuration: as written; of {tried} none is 1 % faster."]
    lines = [f"best configuration of {tried}: {best.config}{_doubt(checked, best)}. Change to:"]
    return [*lines, *(f"  {line}" for line in checked.changes(best))]


def _doubt(checked: Checked, best: ConfigTrial) -> str:
    """Whether the gain is smaller than what predictions are off by."""
    simulation = checked.simulation
    if simulation is None or checked.missing:
        return ""
    faster = simulation.prediction.step / best.prediction.step
    band = band_of(best.plan.cluster, best.plan, best.prediction.step)
    if band is None or not inside(band, faster):
        return ""
    return f" ({faster:.2f}x as fast, inside the error of such predictions, ±{band.share:.0%})"


def describe_notes(checked: Checked) -> str:
    """What is priced otherwise than it runs, a line each."""
    return "\n".join(f"note: {note}." for note in checked.written.notes)


def describe_ignored(checked: Checked) -> str:
    """The settings that do not count."""
    return f"not about parallelism: {', '.join(checked.written.ignored)}."
