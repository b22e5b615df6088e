"""Memory timeline of devices for the HTML report. Enters: a simulated plan. Leaves: for each device
that holds something of its own a few moments with bytes by kind; the fullest moment is always among
them.
"""

from __future__ import annotations

import numpy as np

from meshwright.base.quantities import Bytes
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
    by_content: dict[bytes, tuple[MemoryCurve, int]] = {}
    for curve in curves(problem, problem.roles, timeline):
        key = curve.bytes.tobytes() + curve.nanoseconds.tobytes()
        first, count = by_content.get(key, (curve, 0))
        by_content[key] = first, count + 1
    ranked = sorted(by_content.values(), key=lambda pair: -int(pair[0].bytes.max()))
    return {
        "step": timeline.makespan,
        "limit": limit,
        "device": problem.cluster.device.memory,
        "leftOut": max(0, len(ranked) - MOST_DEVICES),
        "devices": [
            _document(*pair, timeline.makespan)
            | {"framework": simulation.prediction.memory.framework}
            for pair in ranked[:MOST_DEVICES]
        ],
    }


def _document(curve: MemoryCurve, alike: int, makespan: int) -> Document:
    at, standing = kept(curve, makespan), curve.standing
    activations = curve.kept[at] + round(standing.inputs)
    workspace = curve.passing[at] + round(standing.libraries)
    return {
        "name": curve.device if alike == 1 else f"{curve.device} (+{alike - 1} alike)",
        "ns": curve.nanoseconds[at].tolist(),
        "parameters": round(standing.parameters),
        "optimizer": round(standing.optimizer),
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
