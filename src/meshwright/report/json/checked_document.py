"""JSON document of `check`: an evaluated hand-written configuration. Enters: `Checked`. Leaves:
what `check --json` prints.
"""

from __future__ import annotations

import msgspec

from meshwright.configs.better import ConfigTrial
from meshwright.configs.judge import Checked
from meshwright.explain.step_parts import step_parts
from meshwright.report.documents import Document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.predictions import machine_document, prediction_document
from meshwright.report.throughput_text import step_parts_document
from meshwright.search.joint.request.question import PlanResult


def checked_document(checked: Checked, model: str) -> Document:
    """`check --json`."""
    facts, simulation = checked.facts, checked.simulation
    document: Document = {
        "model": model,
        "form": checked.written.form,
        **machine_document(checked.cluster),
        "memory_limit_bytes": checked.memory,
        "facts": facts._asdict(),
        "config": msgspec.to_builtins(checked.config),
        "runs": not checked.problems,
        "problems": [
            {"problem": problem.problem, "remedy": problem.remedy} for problem in checked.problems
        ],
        "matrix": checked.rows,
        "notes": list(checked.written.notes),
        "ignored": list(checked.written.ignored),
    }
    if simulation is not None:
        document |= prediction_document(simulation.plan, simulation.prediction, checked.missing)
        document |= step_parts_document(step_parts(simulation))
        document["loads"] = [load._asdict() for load in checked.loads]
    document["fixes"] = [_trial(checked, fix) for fix in checked.fixes]
    document["best"] = None if checked.best is None else _trial(checked, checked.best)
    document["tried"] = checked.tried
    document["plan"] = None if checked.planned is None else _planned(checked, checked.planned)
    return document


def _trial(checked: Checked, trial: ConfigTrial) -> Document:
    over = max(0, trial.prediction.memory.total - checked.memory)
    return {
        "config": msgspec.to_builtins(trial.config),
        "changes": list(checked.changes(trial)),
        **prediction_document(trial.plan, trial.prediction, over),
    }


def _planned(checked: Checked, planned: PlanResult) -> Document:
    best = planned.best
    over = max(0, best.prediction.memory.total - checked.memory)
    return {
        **outline_document(short_description(best.plan, planned.rewrites)),
        **prediction_document(best.plan, best.prediction, over),
        "bound_s": planned.bound,
    }
