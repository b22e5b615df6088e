"""`plan --json`. Enters: what a search answered. Leaves: one document; docs/json.md tells what each
field is. Times end in `_s` and are seconds, predicted but for those of the search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from meshwright.explain.decisions import Decision
from meshwright.report.documents import Document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.planned import missing, speedup
from meshwright.report.predictions import machine_document, prediction_document, refused_document
from meshwright.search.candidate import Candidate
from meshwright.search.joint.question import PlanResult


def planned_document(planned: PlanResult, decisions: Sequence[Decision]) -> Document:
    """The plan, what it was chosen among, and why."""
    question, best = planned.question, planned.best
    return {
        "graph": question.graph.name,
        "units": len(best.plan.layouts),
        **machine_document(question.cluster),
        "memory_limit_bytes": question.memory,
        "minimize": question.minimize,
        "constraints": msgspec.to_builtins(question.constraints),
        **prediction_document(*best, missing(planned, best)),
        "speedup": speedup(planned, best),
        "bound_s": planned.bound,
        "gap": planned.gap,
        "baselines": {name: own.prediction.step for name, own in planned.baselines},
        "strategies": [_strategy(planned, name, own) for name, own in planned.baselines],
        "refused": refused_document(planned.refused),
        "plan": outline_document(short_description(best.plan, planned.rewrites)),
        "decisions": [decision_document(own) for own in decisions],
        **_search(planned),
    }


def front_document(planned: PlanResult) -> Document:
    """With `--pareto`: plans that no other beats in both time and memory, the fastest first."""
    return {"front": [_candidate(planned, own) for own in planned.front]}


def machines_document(found: Sequence[PlanResult]) -> Document:
    """With `--devices`: the best plans on machines of several sizes, in the order given."""
    return {
        "machines": [
            machine_document(own.question.cluster)
            | {"device_s": own.best.prediction.step * own.question.cluster.devices}
            | {"bound_s": own.bound, "gap": own.gap}
            | _candidate(own, own.best)
            for own in found
        ]
    }


def _search(planned: PlanResult) -> Document:
    return {
        "search_s": planned.seconds,
        "simulated": planned.simulated,
        "graphs": planned.graphs,
        "stopped": planned.stopped,
        "history": [
            {"seconds": own.seconds, "step_s": own.step, "phase": own.phase}
            for own in planned.history
        ],
    }


def _strategy(planned: PlanResult, name: str, own: Candidate) -> Document:
    return {
        "name": name,
        "speedup": speedup(planned, own),
        **msgspec.to_builtins(own.plan.options),
        **prediction_document(*own, missing(planned, own)),
    }


def _candidate(planned: PlanResult, own: Candidate) -> Document:
    return {
        "step_s": own.prediction.step,
        "memory_bytes": own.prediction.memory.total,
        "fits": own.fits(planned.question.memory),
        "plan": outline_document(short_description(own.plan)),
    }


def decision_document(own: Decision) -> Document:
    """A decision and its runner-up."""
    return {
        "subject": own.subject,
        "chosen": own.chosen,
        "runner_up": own.runner_up,
        "step_s": own.step,
        "searched_s": own.searched,
        "fix": own.fix,
        "fits": own.fits,
        "note": own.note,
    }
