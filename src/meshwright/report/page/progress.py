"""Search progress charts: best step over time, and step time against memory. Enters: `PlanResult`.
Leaves: words, and data for two charts: the best step over time, and time against memory.
"""

from __future__ import annotations

from meshwright.base.quantities import counted, format_seconds
from meshwright.report.documents import Document
from meshwright.report.page.markup import Markup, element, joined
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanResult


def progress_section(planned: PlanResult) -> Markup:
    """How the search went, and the plans that none beats in both time and memory."""
    if planned.history:
        how = (
            f"{counted(planned.simulated, 'plan')} simulated and "
            f"{counted(planned.graphs, 'graph')} looked at in {format_seconds(planned.seconds)}."
        )
        if planned.question.minimize != "memory":
            how += " A plan that fits is better than a faster one that does not."
        first = element("div", id="progress-chart", class_="chart", role="img", aria_label=how)
        head: list[str] = [element("p", how), first]
    else:
        head = [element("p", "There was no search: the plan was read from a file.")]
    return joined(
        [
            *head,
            element("h3", "Time against memory"),
            element("p", "Plans that were simulated, predicted; none is left of and below a ring."),
            element("div", id="front-chart", class_="chart"),
        ]
    )


def progress_document(planned: PlanResult) -> Document:
    """What progress.js draws."""
    return {
        "history": [[point.seconds, point.step] for point in planned.history],
        "seconds": planned.seconds,
        "bound": planned.bound,
        "step": planned.best.prediction.step,
        "memory": planned.best.prediction.memory.total,
        "limit": planned.question.memory,
        "baselines": [_point(name, candidate) for name, candidate in planned.baselines],
        "front": [_point(candidate.plan.origin, candidate) for candidate in planned.front],
    }


def _point(name: str, candidate: Candidate) -> list[str | float | int]:
    return [name, candidate.prediction.step, candidate.prediction.memory.total]
