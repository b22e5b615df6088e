"""Terminal report and JSON of `diff`: two simulated plans compared. Enters: a `Contrast`. Leaves:
what the verb `diff` shows; every figure in it is predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.table import Table

from meshwright.base.quantities import (
    counted,
    format_gibibytes,
    format_rate,
    format_seconds,
    format_traffic,
)
from meshwright.cluster.software import describe_software
from meshwright.collectives.dsl import Program
from meshwright.explain.step_parts import StepParts, step_parts
from meshwright.graph.workload import workload
from meshwright.plan.plan import Plan
from meshwright.report.contrast import (
    Amount,
    CollectiveChange,
    Contrast,
    LayoutChange,
    merge_adjacent_changes,
)
from meshwright.report.documents import Document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.predictions import (
    describe_machine,
    machine_document,
    parts_of,
    prediction_document,
)
from meshwright.report.terminal_tables import new_table
from meshwright.report.throughput_text import (
    AMOUNT,
    describe_workload,
    rate,
    step_parts_document,
    unit_of,
)
from meshwright.report.words import describe_program
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.throughput import Throughput, throughput
from meshwright.validate.bands import band_of, inside

ONE, OTHER = "first", "second"
"""What the plans are called in tables."""

MANY = 10
"""From so many times as much on a change is told as a ratio."""


def describe_contrast(contrast: Contrast, names: tuple[str, str]) -> str:
    """Which plans these are, which is faster, in what graphs and clusters differ; a line each."""
    lines = [
        f"{word}: {name}: {own_plan.graph.name} on {describe_machine(own_plan.cluster)}, "
        f"{describe_workload(workload(own_plan.graph))}, {own_plan.origin}, priced as "
        f"{describe_software(own_plan.cluster)}: "
        f"{short_description(own_plan)}"
        for word, name, own_plan in zip(
            (ONE, OTHER), names, (contrast.one.plan, contrast.other.plan), strict=True
        )
    ]
    if contrast.same:
        lines.append(_alike(contrast.one.plan, contrast.other.plan))
    else:
        lines.append(_faster(contrast))
    lines += [f"{text[0].upper()}{text[1:]}" for text in (contrast.graph, contrast.cluster) if text]
    return ".\n".join(lines) + "."


def _alike(one: Plan, other: Plan) -> str:
    but = "" if one.origin == other.origin else ", but for where they come from"
    return f"The plans are the same{but}"


def _faster(contrast: Contrast) -> str:
    one, other = (it.prediction.step for it in (contrast.one, contrast.other))
    if one == other:
        return "Both are predicted to take as long"
    word, ratio = (OTHER, one / other) if other < one else (ONE, other / one)
    band = band_of(contrast.one.plan.cluster, contrast.one.plan, one)
    doubt = ""
    if band is not None and inside(band, ratio):
        doubt = f": inside the error of such predictions ({band})"
    return f"The {word} is predicted to be {ratio:.3g}x as fast{doubt}"


def table_of_predictions(contrast: Contrast) -> Table:
    """What is predicted of both."""
    table = new_table("predicted", f"{ONE}>", f"{OTHER}>", "change>")
    both = contrast.one.prediction, contrast.other.prediction
    split = [step_parts(it) for it in (contrast.one, contrast.other)]
    done = [throughput(it.plan, it.prediction) for it in (contrast.one, contrast.other)]
    rows: list[tuple[str, Callable[[float], str], float, float]] = [
        ("step", format_seconds, both[0].step, both[1].step),
        ("  compute on the busiest device", format_seconds, both[0].compute, both[1].compute),
        ("  exposed communication", format_seconds, split[0].exposed, split[1].exposed),
        *_host_row(split),
        ("  pipeline bubble", format_seconds, split[0].bubble, split[1].bubble),
        (_rate_name(done), format_rate, rate(done[0]), rate(done[1])),
        ("MFU", "{:.1%}".format, done[0].mfu or 0.0, done[1].mfu or 0.0),
        ("HFU", "{:.1%}".format, done[0].hfu or 0.0, done[1].hfu or 0.0),
        *_cost_row(done),
        ("communication volume", format_traffic, both[0].moved, both[1].moved),
        ("peak memory", format_gibibytes, both[0].memory.total, both[1].memory.total),
    ]
    one, other = (parts_of(it.memory) for it in both)
    rows += [
        (f"  {part}", format_gibibytes, one.get(part, 0), other.get(part, 0))
        for part in one | other
    ]
    for what, text, first, second in rows:
        table.add_row(what, text(first), text(second), change(first, second))
    return table


def _cost_row(
    both: Sequence[Throughput],
) -> list[tuple[str, Callable[[float], str], float, float]]:
    """Device-hours, if both are known."""
    one, other = (achieved.device_hours(AMOUNT) for achieved in both)
    if not (math.isfinite(one) and math.isfinite(other)):
        return []
    unit = " and ".join(dict.fromkeys(unit_of(achieved.workload) for achieved in both))
    return [(f"device-hours for 1 B {unit}", "{:,.1f}".format, one, other)]


def _host_row(
    split: Sequence[StepParts],
) -> list[tuple[str, Callable[[float], str], float, float]]:
    """Waiting for hosts, if there is any."""
    one, other = (parts.host for parts in split)
    return [("  waiting for the host", format_seconds, one, other)] if one or other else []


def _rate_name(both: Sequence[Throughput]) -> str:
    """What is counted; samples, if one of the plans has no tokens."""
    return " and ".join(dict.fromkeys(f"{unit_of(achieved.workload)}/s" for achieved in both))


def change(one: float, other: float) -> str:
    """By how much a figure differs, in words."""
    if one == other:
        return ""
    if not one or other / one >= MANY:
        return f"{other / one:.3g}x" if one else "new"
    return f"{other / one - 1:+.1%}"


def table_of_waits(contrast: Contrast) -> Table:
    """What the critical paths are made of."""
    table = new_table("critical path", f"{ONE}>", f"{OTHER}>", "difference>")
    for category, one, other in contrast.waits:
        sign = "+" if other >= one else "-"
        more = "" if one == other else f"{sign}{format_seconds(abs(other - one))}"
        table.add_row(category, format_seconds(one), format_seconds(other), more)
    return table


def table_of_options(contrast: Contrast) -> Table:
    """Options that differ."""
    table = new_table("option", ONE, OTHER)
    for each in contrast.options:
        table.add_row(*each)
    return table


def table_of_layouts(contrast: Contrast, most: int) -> Table:
    """Layouts that differ."""
    table = new_table("unit~", "times>", f"{ONE}~", f"{OTHER}~")
    for each in _lines(contrast, most)[:most]:
        table.add_row(each.name, str(each.times), each.one, each.other)
    return table


def _lines(contrast: Contrast, most: int) -> Sequence[LayoutChange]:
    """A line for each change; units in a row are joined if that would be more than `most`."""
    return (
        contrast.layouts
        if len(contrast.layouts) <= most
        else list(merge_adjacent_changes(contrast.layouts))
    )


def describe_layouts(contrast: Contrast, most: int) -> str:
    """What the table of layouts shows, and what not."""
    units = sum(each.times for each in contrast.layouts)
    text = f"{counted(units, 'unit')} laid out differently; copies of a layer are one line."
    left = len(_lines(contrast, most)) - most
    if left > 0:
        text += f" {counted(left, 'more line')}: --top {len(contrast.layouts)} shows all."
    for word, count in zip((ONE, OTHER), contrast.alone, strict=True):
        if count:
            text += f" {counted(count, 'unit')} only in the {word}."
    return text


def table_of_changes(contrast: Contrast, most: int) -> Table:
    """Collectives that differ, sums by their programs."""
    table = new_table("collective", "over", "of", "program~", f"{ONE}>", f"{OTHER}>")
    for each in contrast.collectives[:most]:
        program = describe_program(Program.parse(each.program)) if each.program else ""
        amounts = map(_amount, (each.one, each.other))
        table.add_row(each.operation, each.over, each.purpose, program, *amounts)
    return table


def _amount(amount: Amount) -> str:
    return f"{amount.times} in {format_seconds(amount.seconds)}" if amount.times else "none"


def describe_changes(contrast: Contrast, most: int) -> str:
    """What the table of collectives shows, and what not."""
    text = "Collectives of a step, all sizes together; their times may overlap."
    if len(contrast.collectives) > most:
        more = counted(len(contrast.collectives) - most, "more line")
        text += f" {more}: --top {len(contrast.collectives)}."
    return text


def contrast_document(contrast: Contrast, names: tuple[str, str]) -> Document:
    """`diff --json`."""
    return {
        "same": contrast.same,
        "plans": [
            _plan(name, it) for name, it in zip(names, (contrast.one, contrast.other), strict=True)
        ],
        "speedup": contrast.one.prediction.step / contrast.other.prediction.step,
        "graph": contrast.graph,
        "cluster": contrast.cluster,
        "options": [each._asdict() for each in contrast.options],
        "layouts": [each._asdict() for each in contrast.layouts],
        "units_alone": list(contrast.alone),
        "collectives": [_collective(each) for each in contrast.collectives],
        "waits": [
            {"category": category, "one_s": one, "other_s": other}
            for category, one, other in contrast.waits
        ],
    }


def _collective(collective: CollectiveChange) -> Document:
    return {
        "operation": collective.operation,
        "over": collective.over,
        "purpose": collective.purpose,
        "program": collective.program or None,
        "one": {"times": collective.one.times, "predicted_s": collective.one.seconds},
        "other": {"times": collective.other.times, "predicted_s": collective.other.seconds},
    }


def _plan(name: str, simulation: Simulation) -> Document:
    plan, prediction = simulation.plan, simulation.prediction
    return {
        "file": name,
        "origin": plan.origin,
        "backend": plan.backend,
        "graph": plan.graph.name,
        "units": len(plan.layouts),
        **machine_document(plan.cluster),
        **prediction_document(plan, prediction, prediction.missing),
        **step_parts_document(step_parts(simulation)),
        "plan": outline_document(short_description(plan)),
    }
