"""The simulation engines by name: reference, full, delta. Enters: a task graph. Leaves: its
timeline, the same from each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from meshwright.simulate import full, reference
from meshwright.simulate.delta.engine import Delta
from meshwright.simulate.tasks import TaskGraph, Timeline


def simulate_by_delta(graph: TaskGraph) -> Timeline:
    """The timeline by the delta engine, as a change of every task from one that takes 1 ns."""
    before = graph._replace(
        duration=np.ones_like(graph.duration), hold=np.minimum(graph.hold, 1).copy()
    )
    delta = Delta(before, patience=len(graph.live))
    before.duration[:], before.hold[:] = graph.duration, graph.hold
    delta.propose(np.flatnonzero(graph.live).astype(np.int32), np.zeros(0, np.int32))
    delta.commit()
    return delta.timeline


ENGINES: Mapping[str, Callable[[TaskGraph], Timeline]] = {
    "full": full.simulate,
    "reference": reference.simulate,
    "delta": simulate_by_delta,
}
