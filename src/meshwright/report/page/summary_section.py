"""Summary section of the HTML report: plan, step time, memory and throughput. Enters: `PlanResult`.
Leaves: what is planned on what, the figures that matter and what was decided, in words.
"""

from __future__ import annotations

import math

from meshwright.base.quantities import counted, format_gibibytes, format_rate, format_seconds
from meshwright.report.outline import Outline, describe_options, short_description
from meshwright.report.page.markup import Markup, bar, element, joined
from meshwright.report.text.planned import (
    describe_planned,
    describe_question,
    missing,
    reference,
    speedup,
)
from meshwright.report.throughput_text import mfu_cell, rate, unit_of
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.throughput import throughput

DEVICES = "devices"
"""The one card that is no prediction."""


def summary_section(planned: PlanResult) -> Markup:
    """Cards with the figures, then sentences."""
    best = planned.best.prediction
    limit, held = planned.question.memory, best.memory.total
    outline = short_description(planned.best.plan, planned.rewrites)
    done = throughput(*planned.best)
    fits = "fits" if not missing(planned, planned.best) else "does NOT fit"
    cards = (
        ("step", format_seconds(best.step), _faster(planned)),
        (
            f"{unit_of(done.workload)}/s",
            format_rate(rate(done)),
            f"{format_rate(rate(done) / done.devices)} a device",
        ),
        (
            "MFU",
            mfu_cell(done) or "not known",
            "" if done.hfu is None else f"hardware FLOPs utilisation {done.hfu:.1%}",
        ),
        ("optimality gap", *_gap(planned)),
        (
            "peak memory",
            format_gibibytes(held),
            bar(held / limit, f"of {format_gibibytes(limit)}: {fits}"),
        ),
        (DEVICES, str(outline.devices), _devices(outline, planned.question.cluster.devices)),
        ("computing", f"{best.compute / best.step:.0%}", "of the step on the busiest device"),
        ("communication volume", format_gibibytes(best.moved), "between devices in a step"),
    )
    return joined(
        [
            element("p", f"{describe_question(planned)}."),
            element("div", *(_card(*card) for card in cards), class_="cards"),
            element("h3", "What was decided"),
            element("ul", *(element("li", decision) for decision in _decided(planned))),
            *map(_told, _sentences(planned)),
        ]
    )


def _sentences(planned: PlanResult) -> list[str]:
    """What is said of the plan besides what was decided, which stands in a list of its own."""
    lines = describe_planned(planned).splitlines()
    return [line for line in lines if not line.startswith(("plan: ", " "))]


def _told(line: str) -> Markup:
    """A sentence, with what it is about set off."""
    about, _, rest = line.partition(": ")
    return element("p", element("strong", f"{about}: "), rest)


def _card(name: str, value: str, note: str) -> Markup:
    return element(
        "div",
        element("h3", name if name == DEVICES else f"{name} (predicted)"),
        element("p", value, class_="figure"),
        element("p", note, class_="note"),
        class_="card",
    )


def _faster(planned: PlanResult) -> str:
    ratio, step = speedup(planned, planned.best), reference(planned)
    if ratio is None or step is None:
        return "no baseline fits"
    return f"{ratio:.2f}x the fastest baseline that fits, {format_seconds(step)}"


def _gap(planned: PlanResult) -> tuple[str, str]:
    if not planned.bound:
        return "not known", "no lower bound was computed"
    note = f"lower bound of all plans that were in question: {format_seconds(planned.bound)}"
    return f"{max(0.0, planned.gap):.1%}", note


def _devices(outline: Outline, every: int) -> str:
    """Of how many, and how many repeat the work of others."""
    if not outline.enough:
        return f"of {every}"
    once = math.prod(outline.enough.values())
    return f"of {every}; {every - once} of them repeat the work of the other {once}"


def _decided(planned: PlanResult) -> list[str]:
    plan = planned.best.plan
    outline = short_description(plan, planned.rewrites)
    words = [kind.told() for kind in outline.kinds]
    words += describe_options(plan.options)
    words.append(f"optimizer: {plan.options.optimizer}")
    rewrites = f"the graph is rewritten by {counted(len(planned.rewrites), 'rule')}"
    words.append(rewrites if planned.rewrites else "the graph is as given")
    return words
