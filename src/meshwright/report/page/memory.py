"""What devices hold over time. Enters: a simulated plan. Leaves: for each device that holds
something of its own a few moments with bytes by kind; the fullest moment is always among them.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.units import Bytes
from meshwright.report.documents import Document
from meshwright.simulate.memory.memory_timeline import MemoryCurve, curves
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.tasks import Indices

BUCKETS = 500
"""Of these many equal parts of a step the fullest moment and the last are kept."""

MOST_DEVICES = 24


def memory_document(simulation: Simulation, limit: Bytes) -> Document:
    """What memory.js draws, the fullest device first."""
    problem, timeline = simulation.problem, simulation.timeline
    found: dict[bytes, tuple[MemoryCurve, int]] = {}
    for curve in curves(problem, problem.roles, timeline):
        key = curve.bytes.tobytes() + curve.nanoseconds.tobytes()
        first, count = found.get(key, (curve, 0))
        found[key] = first, count + 1
    ranked = sorted(found.values(), key=lambda own: -int(own[0].bytes.max()))
    return {
        "step": timeline.makespan,
        "limit": limit,
        "device": problem.cluster.device.memory,
        "leftOut": max(0, len(ranked) - MOST_DEVICES),
        "devices": [
            _document(*own, timeline.makespan)
            | {"framework": simulation.prediction.memory.framework}
            for own in ranked[:MOST_DEVICES]
        ],
    }


def _document(curve: MemoryCurve, alike: int, makespan: int) -> Document:
    at, own = kept(curve, makespan), curve.standing
    activations = curve.kept[at] + round(own.inputs)
    workspace = curve.passing[at] + round(own.libraries)
    return {
        "name": curve.device if alike == 1 else f"{curve.device} (+{alike - 1} alike)",
        "ns": curve.nanoseconds[at].tolist(),
        "parameters": round(own.parameters),
        "optimizer": round(own.optimizer),
        "gradients": curve.gradients[at].tolist(),
        "activations": activations.tolist(),
        "workspace": workspace.tolist(),
    }


def kept(curve: MemoryCurve, makespan: int) -> Indices:
    """The moments of a curve that are drawn: of each bucket the fullest and the last."""
    bucket = curve.nanoseconds * BUCKETS // max(1, makespan + 1)
    last = np.flatnonzero(np.diff(bucket, append=BUCKETS + 1))
    order = np.lexsort((curve.bytes, bucket))
    fullest = order[np.flatnonzero(np.diff(bucket[order], append=BUCKETS + 1))]
    return np.unique(np.concatenate((last, fullest))).astype(np.int32)
