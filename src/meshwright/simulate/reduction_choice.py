"""Selection of reduction programs for the collectives of a plan. Enters: a plan, laid out as a
problem. Leaves: the plan with programs for its sums over several devices, with the steps of what
several collectives carry out, and with the library that they were chosen for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from meshwright.collectives import dsl
from meshwright.plan.plan import Plan, PlannedChain, PlannedReduction
from meshwright.sharding.reshard import ALL_REDUCE, NAMES
from meshwright.simulate.listed_collectives import EdgeCollective, moves
from meshwright.simulate.problem import StepModel


def with_programs(plan: Plan, problem: StepModel) -> Plan:
    """The plan with a program, or steps, for each different collective, the largest first."""
    every = [move for collectives in moves(problem).values() for move in collectives]
    every.sort(key=lambda move: -move.held)
    return msgspec.structs.replace(
        plan,
        programs=tuple(dict.fromkeys(_programs(every))),
        chains=tuple(dict.fromkeys(_chains(every))),
        backend=problem.prices.pricer.backend.name,
    )


def _programs(every: Iterable[EdgeCollective]) -> Iterator[PlannedReduction]:
    for move in every:
        if move.operation == NAMES[ALL_REDUCE]:
            text = str(move.way.program or dsl.ALL_REDUCE)
            yield PlannedReduction(
                over=move.over, beside=move.beside, bytes=move.held, program=text
            )


def _chains(every: Iterable[EdgeCollective]) -> Iterator[PlannedChain]:
    """Those of which some have steps; of these all, as sizes decide which have."""
    collectives = list(every)
    in_steps = {(move.operation, move.over) for move in collectives if move.way.steps}
    for move in collectives:
        if (move.operation, move.over) in in_steps:
            yield PlannedChain(
                collective=move.operation,
                over=move.over,
                bytes=move.held,
                steps=move.steps,
            )
