"""Pipeline pace of an island stage: seconds for one more micro-batch. Enters: the plan of a part.
Leaves: its prediction and what one more micro-batch takes: the difference of two simulations, with
two and with one.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from meshwright.base.quantities import Seconds
from meshwright.graph.batch import with_batch
from meshwright.plan.plan import Plan
from meshwright.simulate.island_step import PartFigures, simulated_part


def with_micro_batches(plan: Plan, times: int | Fraction, count: int) -> Plan:
    """The plan for so many times the samples, in so many micro-batches."""
    options = msgspec.structs.replace(plan.options, micro_batches=count)
    return plan.changed(graph=with_batch(plan.graph, times), options=options)


def simulate_stage_pace(plan: Plan, count: int) -> PartFigures:
    """The figures of a part that is a stage, or a share of one, with so many micro-batches."""
    one = simulated_part(with_micro_batches(plan, Fraction(1, count), 1))
    two = simulated_part(with_micro_batches(plan, Fraction(2, count), 2))
    return PartFigures(prediction=one, pace=Seconds(max(0.0, two.step - one.step)))
