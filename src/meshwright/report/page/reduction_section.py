"""Reduction programs of a plan as step diagrams. Enters: a simulated plan. Leaves: for each
different reduction its steps, drawn: which devices talk in which groups, what each holds, over
which link, for how long; all predicted.

Reductions of the same factors by the same program are one, told with the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.base.quantities import counted, format_gibibytes, format_seconds
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import Program
from meshwright.collectives.factors import summed_devices, summed_hierarchy
from meshwright.collectives.lowering import Groups, lower_program, reduction_groups
from meshwright.collectives.predict import PricedProgram, ProgramStepPrice, predict
from meshwright.cost.alpha_beta import Pricer
from meshwright.plan.plan import Plan, PlannedReduction
from meshwright.report.page.markup import Markup, bar, element, joined
from meshwright.report.page.picture import colours_of
from meshwright.report.words import describe_program
from meshwright.simulate.reduction_choice import with_programs
from meshwright.simulate.simulation import Simulation

MOST = 12
"""Reductions that are drawn, those with the most bytes first."""

ROWS, COLUMNS = 4, 8
"""Devices that are drawn of a group, by the outer levels and by the innermost."""


class Sum(NamedTuple):
    """Reductions over the same factors by the same program."""

    largest: PlannedReduction
    alike: int
    """How many sizes there are."""
    priced: PricedProgram
    together: tuple[int, ...]
    """The devices of the first group that sums up."""
    beside: int
    """How many such groups there are."""
    steps: tuple[Groups, ...]
    """For each step the groups inside the first group."""


def distinct_reductions(simulation: Simulation) -> list[Sum]:
    """All that differ, the largest first."""
    plan = with_programs(simulation.plan, simulation.problem)
    groups: dict[tuple[object, ...], list[PlannedReduction]] = {}
    for reduction in plan.programs:
        groups.setdefault((reduction.over, reduction.beside, reduction.program), []).append(
            reduction
        )
    pricer = simulation.problem.prices.pricer
    return [_sum(plan, pricer, alike) for alike in groups.values()]


def _sum(plan: Plan, pricer: Pricer, alike: Sequence[PlannedReduction]) -> Sum:
    largest, cluster = alike[0], plan.cluster
    inside, every = (sum(1 << f for f in numbers) for numbers in (largest.over, largest.beside))
    hierarchy = summed_hierarchy(cluster, inside, every)
    program = Program.parse(largest.program)
    device = summed_devices(cluster, inside, every)
    groups = reduction_groups(hierarchy)
    members = set(groups[0])
    steps = tuple(
        tuple(tuple(device[n] for n in group) for group in step.groups if members.issuperset(group))
        for step in lower_program(hierarchy, program)
    )
    return Sum(
        largest=largest,
        alike=len(alike),
        priced=predict(hierarchy, program, pricer, largest.bytes),
        together=tuple(sorted(device[n] for n in groups[0])),
        beside=len(groups),
        steps=steps,
    )


def reductions_section(simulation: Simulation) -> Markup:
    """Every different reduction, drawn."""
    reductions = distinct_reductions(simulation)
    if not reductions:
        return element(
            "p",
            "No sum over several devices is an all-reduce; what is scattered to its owners at once "
            "(ReduceScatter) is among the collectives of 'Where the time goes'.",
        )
    drawn = [
        _drawn(simulation.plan, reduction, number)
        for number, reduction in enumerate(reductions[:MOST])
    ]
    rest = len(reductions) - MOST
    more = f"{counted(rest, 'smaller reduction')} not drawn." if rest > 0 else ""
    return joined([*drawn, element("p", more, class_="note")])


def _drawn(plan: Plan, reduction: Sum, number: int) -> Markup:
    size, time = format_gibibytes(reduction.largest.bytes), format_seconds(reduction.priced.seconds)
    also = (
        f" and {counted(reduction.alike - 1, 'smaller size')} alike" if reduction.alike > 1 else ""
    )
    beside = f"; {reduction.beside} such groups side by side" if reduction.beside > 1 else ""
    steps = zip(reduction.priced.steps, reduction.steps, strict=True)
    cards = [
        _step(plan.cluster, reduction, place, step, groups)
        for place, (step, groups) in enumerate(steps, start=1)
    ]
    return element(
        "details",
        element(
            "summary",
            element("strong", f"{size} over {counted(len(reduction.together), 'device')}"),
            f" ({_levels(plan, reduction.largest.over)})",
            f"{also}: {time} predicted",
        ),
        element("p", f"{describe_program(reduction.priced.program)}{beside}."),
        element("ol", *cards, class_="steps"),
        class_="sum",
        open=number == 0,
    )


def _levels(plan: Plan, over: Sequence[int]) -> str:
    """How many ways of which levels are summed over."""
    ways: dict[str, int] = {}
    for number in over:
        name = plan.cluster.level_names[plan.factors[number].level]
        ways[name] = ways.get(name, 1) * plan.factors[number].size
    return ", ".join(f"{name} {count}" for name, count in ways.items())


def _step(
    cluster: Cluster, reduction: Sum, place: int, step: ProgramStepPrice, groups: Groups
) -> Markup:
    """A card for a step of a program."""
    name = describe_program(Program((step.instruction,)))
    share = step.seconds / reduction.priced.seconds if reduction.priced.seconds else 0.0
    of = f"{counted(len(groups), 'group')} of {counted(len(groups[0]), 'device')}"
    return element(
        "li",
        element("h4", f"{place}. {name}"),
        _grid(cluster, reduction.together, groups),
        element(
            "dl",
            *_pair("groups", of),
            *_pair("held by each before", format_gibibytes(step.held)),
            *_pair("paced by", step.link),
            *_pair("predicted", bar(share, f"{format_seconds(step.seconds)} ({share:.0%})")),
        ),
    )


def _pair(name: str, value: str) -> tuple[Markup, Markup]:
    return element("dt", name), element("dd", value)


def _grid(cluster: Cluster, together: Sequence[int], groups: Groups) -> Markup:
    """The devices that sum up, a row for each machine around the innermost level; of many some."""
    group_of = {device: n for n, group in enumerate(groups) for device in group}
    inner = cluster.hierarchy[-1]
    rows: dict[int, list[int]] = {}
    for device in together:
        rows.setdefault(device // inner, []).append(device)
    if len(rows) == len(together):
        rows = {0: list(together)}
    lines = [
        element("div", *_cells(row, group_of), class_="line") for row in list(rows.values())[:ROWS]
    ]
    if len(rows) > ROWS:
        lines.append(element("div", f"… {len(rows) - ROWS} more rows", class_="note"))
    return element("div", *lines, class_="grid", role="img", aria_label=_words(groups))


def _cells(devices: Sequence[int], group_of: dict[int, int]) -> list[Markup]:
    cells = []
    for device in devices[:COLUMNS]:
        group = group_of.get(device)
        text, colour = ("·", "rests") if group is None else (str(group + 1), colours_of(group))
        title = f"device {device}: " + ("rests" if group is None else f"group {group + 1}")
        cells.append(element("span", text, class_=f"cell {colour}", title=title))
    if len(devices) > COLUMNS:
        cells.append(element("span", f"+{len(devices) - COLUMNS}", class_="gap"))
    return cells


def _words(groups: Groups) -> str:
    some = "; ".join(", ".join(map(str, group[:8])) for group in groups[:3])
    return f"groups of devices: {some}{' and so on' if len(groups) > 3 else ''}"
