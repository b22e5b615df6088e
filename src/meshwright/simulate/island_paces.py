"""The pace of a pipeline stage on an island. Enters: the plan of a part. Leaves: its prediction
and what one more micro-batch takes: the difference of two simulations, with two and with one.
"""

from __future__ import annotations

import msgspec

from meshwright.base.units import Seconds
from meshwright.graph.batch import samples_of, with_samples
from meshwright.plan.model import Plan
from meshwright.simulate.islands import PartFigures, simulated_part


def with_micro_batches(plan: Plan, samples: int, count: int) -> Plan:
    """The plan for so many micro-batches of so many samples each."""
    options = msgspec.structs.replace(plan.options, micro_batches=count)
    return plan.changed(graph=with_samples(plan.graph, samples * count), options=options)


def paced(plan: Plan, count: int) -> PartFigures:
    """The figures of a part that is a stage, or a share of one, with so many micro-batches."""
    samples = (samples_of(plan.graph) or count) // count
    one = simulated_part(with_micro_batches(plan, samples, 1))
    two = simulated_part(with_micro_batches(plan, samples, 2))
    return PartFigures(prediction=one, pace=Seconds(max(0.0, two.step - one.step)))
