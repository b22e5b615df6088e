"""JSON documents of `explain`: critical path, utilisation and what-if gains. Enters: an
`Explained`. Leaves: what `explain --json` prints, all of it predicted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from meshwright.explain.explanation import Explained, Spending
from meshwright.explain.path_breakdown import by_category
from meshwright.explain.what_if import Improvement
from meshwright.report.documents import Document
from meshwright.report.json.planned_documents import decision_document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.predictions import machine_document, prediction_document
from meshwright.report.text.planned import missing
from meshwright.report.text.what_ifs import what_ifs_document
from meshwright.report.throughput_text import step_parts_document


def explained_document(explained: Explained) -> Document:
    """All of it."""
    planned = explained.planned
    plan = planned.best.plan
    return {
        "origin": plan.origin,
        "graph": plan.graph.name,
        "units": len(plan.layouts),
        **machine_document(plan.cluster),
        "memory_limit_bytes": planned.question.memory,
        **prediction_document(*planned.best, missing(planned, planned.best)),
        **step_parts_document(explained.parts),
        "bound_s": planned.bound,
        "gap": planned.gap,
        "plan": outline_document(short_description(plan, planned.rewrites)),
        **bottlenecks_document(explained.spending),
        "decisions": [decision_document(each) for each in explained.decisions],
        "helps": improvements_document(explained.helps),
        "what_ifs": what_ifs_document(explained),
        "stopped": explained.stopped,
    }


def bottlenecks_document(spending: Spending) -> Document:
    """Where the time of a step goes."""
    return {
        "waits": by_category(spending.stretches),
        "critical_path": msgspec.to_builtins(spending.stretches),
        "links": msgspec.to_builtins(spending.links),
        "operators": msgspec.to_builtins(spending.kinds),
        "collectives": msgspec.to_builtins(spending.collectives),
    }


def improvements_document(improvements: Sequence[Improvement]) -> list[Document]:
    """What would help, the most useful first."""
    return [
        {
            "change": improvement.change,
            "step_s": improvement.step,
            "samples": improvement.samples,
            "gain": improvement.gain if improvement.step is not None else None,
            "note": improvement.note,
        }
        for improvement in improvements
    ]
