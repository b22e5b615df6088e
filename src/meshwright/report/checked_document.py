"""A checked configuration, for scripts. Enters: `Checked`. Leaves: what `check --json` prints."""

from __future__ import annotations

import msgspec

from meshwright.configs.better import ConfigTrial
from meshwright.configs.judge import Checked
from meshwright.explain.step_parts import step_parts
from meshwright.report.documents import Document
from meshwright.report.outline import outline_document, short_description
from meshwright.report.predictions import machine_document, prediction_document
from meshwright.report.throughput import parts_document
from meshwright.search.joint.question import PlanResult


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
        "problems": [{"problem": own.problem, "remedy": own.remedy} for own in checked.problems],
        "matrix": checked.rows,
        "notes": list(checked.written.notes),
        "ignored": list(checked.written.ignored),
    }
    if simulation is not None:
        document |= prediction_document(simulation.plan, simulation.prediction, checked.missing)
        document |= parts_document(step_parts(simulation))
        document["loads"] = [own._asdict() for own in checked.loads]
    document["fixes"] = [_trial(checked, own) for own in checked.fixes]
    document["best"] = None if checked.best is None else _trial(checked, checked.best)
    document["tried"] = checked.tried
    document["plan"] = None if checked.planned is None else _planned(checked, checked.planned)
    return document


def _trial(checked: Checked, own: ConfigTrial) -> Document:
    over = max(0, own.prediction.memory.total - checked.memory)
    return {
        "config": msgspec.to_builtins(own.config),
        "changes": list(checked.changes(own)),
        **prediction_document(own.plan, own.prediction, over),
    }


def _planned(checked: Checked, planned: PlanResult) -> Document:
    own = planned.best
    over = max(0, own.prediction.memory.total - checked.memory)
    return {
        **outline_document(short_description(own.plan, planned.rewrites)),
        **prediction_document(own.plan, own.prediction, over),
        "bound_s": planned.bound,
    }
