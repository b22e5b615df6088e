"""JSON documents of `plan`, `plan --pareto` and `plan --devices`. Enters: what a search answered.
Leaves: one document; docs/json.md tells what each field is. Times end in `_s` and are seconds,
predicted but for those of the search.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from meshwright.explain.decisions import Decision
from meshwright.report.documents import Document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.predictions import machine_document, prediction_document, refused_document
from meshwright.report.text.planned import missing, speedup
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.question import PlanResult


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
        "baselines": {name: candidate.prediction.step for name, candidate in planned.baselines},
        "strategies": [
            _strategy(planned, name, candidate) for name, candidate in planned.baselines
        ],
        "refused": refused_document(planned.refused),
        "plan": outline_document(short_description(best.plan, planned.rewrites)),
        "decisions": [decision_document(decision) for decision in decisions],
        **_search(planned),
    }


def front_document(planned: PlanResult) -> Document:
    """With `--pareto`: plans that no other beats in both time and memory, the fastest first."""
    return {"front": [_candidate(planned, candidate) for candidate in planned.front]}


def machines_document(plans: Sequence[PlanResult]) -> Document:
    """With `--devices`: the best plans on machines of several sizes, in the order given."""
    return {
        "machines": [
            machine_document(planned.question.cluster)
            | {"device_s": planned.best.prediction.step * planned.question.cluster.devices}
            | {"bound_s": planned.bound, "gap": planned.gap}
            | _candidate(planned, planned.best)
            for planned in plans
        ]
    }


def _search(planned: PlanResult) -> Document:
    return {
        "search_s": planned.seconds,
        "simulated": planned.simulated,
        "graphs": planned.graphs,
        "stopped": planned.stopped,
        "history": [
            {"seconds": point.seconds, "step_s": point.step, "phase": point.phase}
            for point in planned.history
        ],
    }


def _strategy(planned: PlanResult, name: str, candidate: Candidate) -> Document:
    return {
        "name": name,
        "speedup": speedup(planned, candidate),
        **msgspec.to_builtins(candidate.plan.options),
        **prediction_document(*candidate, missing(planned, candidate)),
    }


def _candidate(planned: PlanResult, candidate: Candidate) -> Document:
    return {
        "step_s": candidate.prediction.step,
        "memory_bytes": candidate.prediction.memory.total,
        "fits": candidate.fits(planned.question.memory),
        "plan": outline_document(short_description(candidate.plan)),
    }


def decision_document(decision: Decision) -> Document:
    """A decision and its runner-up."""
    return {
        "subject": decision.subject,
        "chosen": decision.chosen,
        "runner_up": decision.runner_up,
        "step_s": decision.step,
        "searched_s": decision.searched,
        "fix": decision.fix,
        "fits": decision.fits,
        "note": decision.note,
    }
