"""HTML report page: sections, chart data, scripts and styles in one file. Enters: what a search
answered, its decisions, the simulation of its best plan. Leaves: one HTML file as text: it needs no
network, and says to the browser that it may use none.

Sections are written by their modules; what charts draw is JSON beside them, and scripts and styles
are the files of this folder. Names come from users: markup escapes them, and in JSON no `<` is left
that could end the script that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import msgspec

from meshwright.explain.decisions import Decision
from meshwright.explain.replan import Replanned
from meshwright.explain.what_if import Improvement
from meshwright.report.page.cluster_section import machine_section
from meshwright.report.page.markup import Markup, element, joined
from meshwright.report.page.memory_chart import memory_document
from meshwright.report.page.operator_section import graph_document
from meshwright.report.page.progress import progress_document, progress_section
from meshwright.report.page.reduction_section import reductions_section
from meshwright.report.page.spent import bottlenecks_section
from meshwright.report.page.strategies import (
    decisions_section,
    improvements_section,
    strategies_section,
)
from meshwright.report.page.summary_section import summary_section
from meshwright.report.page.timeline import timeline_document
from meshwright.report.predictions import describe_machine
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.simulation import Simulation

SCRIPTS = (
    "units",
    "theme",
    "tables",
    "machine",
    "graph",
    "timeline",
    "memory",
    "progress",
    "start",
)
"""Our scripts, in the order in which they run."""

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""What the browser may fetch: nothing."""


MAKER = "Meshwright"

UNITS = (
    "Made by Meshwright. Every figure is predicted, none was measured. Bytes are counted in KiB, "
    "MiB, GiB (1024 each), rates of links in GB/s as their makers do (1000 each)."
)


class Section(NamedTuple):
    """A part of the page under a heading."""

    name: str
    title: str
    body: Markup


def page(
    planned: PlanResult,
    decisions: Sequence[Decision],
    simulation: Simulation,
    *,
    helps: Sequence[Improvement] = (),
    what_ifs: tuple[Replanned, ...] = (),
) -> str:
    """The whole report."""
    graph, cluster = planned.question.graph, planned.question.cluster
    title = f"{graph.name} on {describe_machine(cluster)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=MAKER),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{title} — Meshwright"),
        element("style", _file("page.css")),
    )
    helping = Section("helps", "What would help", improvements_section(planned, helps, what_ifs))
    sections = _sections(planned, decisions, simulation, helping)
    body = element(
        "body",
        element("a", "Skip to the report", href="#summary", class_="skip"),
        _header(title, sections),
        element("main", *map(_section, sections)),
        element("footer", UNITS),
        _data(planned, simulation),
        element("script", _file("vendor/echarts.min.js")),
        element("script", _scripts()),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def looks_like_report(path: str | Path) -> bool:
    """Whether a file begins as those do that hold a `page`."""
    try:
        with Path(path).open("rb") as file:
            return f'content="{MAKER}"'.encode() in file.read(200)
    except OSError:
        return False


def _sections(
    planned: PlanResult, decisions: Sequence[Decision], simulation: Simulation, helping: Section
) -> tuple[Section, ...]:
    return (
        Section("summary", "Summary", summary_section(planned)),
        Section("strategies", "Strategies", strategies_section(planned)),
        Section("machine", "Cluster and placement", machine_section(simulation)),
        Section("graph", "Graph", _drawn_by_script("graph-view", GRAPH)),
        Section("timeline", "Timeline", _drawn_by_script("timeline-view", TIMELINE)),
        Section("spent", "Where the time goes", bottlenecks_section(simulation)),
        Section("memory", "Memory over time", _drawn_by_script("memory-view", MEMORY)),
        Section("reductions", "Reductions", reductions_section(simulation)),
        Section("decisions", "Decisions", decisions_section(planned, decisions)),
        helping,
        Section("search", "Search", progress_section(planned)),
    )


GRAPH = (
    "Operators in the order in which they run; layers that repeat are folded, click to unfold. "
    "Operators that share a layout are one unit, with what it computes and moves in a step."
)
TIMELINE = (
    "One step: a row for each device that does something of its own, and for each link. A device "
    "stands for all that do the same. Drag or scroll sideways to move, pinch or Ctrl-scroll to "
    "zoom, point at something to see what it is; with the keyboard: arrows, + and -, 0 for all."
)
MEMORY = "What a device holds during the step, by kind, and the limit."


def _drawn_by_script(name: str, lead: str) -> Markup:
    return joined([element("p", lead), element("div", id=name)])


def _header(title: str, sections: Sequence[Section]) -> Markup:
    links = [element("a", section.title, href=f"#{section.name}") for section in sections]
    theme = element("button", "Theme: system", id="theme", type="button")
    return element(
        "header",
        element("p", "Meshwright report", theme, class_="kicker"),
        element("h1", title),
        element("nav", *links, aria_label="Sections"),
    )


def _section(section: Section) -> Markup:
    heading = element("h2", section.title, id=f"{section.name}-title")
    return element(
        "section", heading, section.body, id=section.name, aria_labelledby=f"{section.name}-title"
    )


def _data(planned: PlanResult, simulation: Simulation) -> Markup:
    data = {
        "graph": graph_document(simulation),
        "timeline": timeline_document(simulation),
        "memory": memory_document(simulation, planned.question.memory),
        "search": progress_document(planned),
    }
    text = msgspec.json.encode(data).decode().replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", id="data")


def _scripts() -> Markup:
    whole = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    return Markup(f'(() => {{\n"use strict";\n{whole}\n}})();')


def _file(name: str) -> Markup:
    """A file of this folder, as it is."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))
