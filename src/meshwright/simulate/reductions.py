"""The reductions of a plan, each with its program. Enters: a plan, laid out as a problem.
Leaves: the plan with the programs by which its sums over several devices are carried out, and the
library that they were chosen for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from meshwright.foundation.integers import set_bits
from meshwright.parallel.reshard import ALL_REDUCE, MOST, Codes, resharding
from meshwright.parallel.states import State
from meshwright.plan.model import Plan, PlannedReduction
from meshwright.reduce import dsl
from meshwright.simulate.problem import Problem


def with_programs(plan: Plan, problem: Problem) -> Plan:
    """The plan with a program for each different reduction, the largest first."""
    way = problem.prices.way
    found = {own: str(way(ALL_REDUCE, *own).program or dsl.ALL_REDUCE) for own in _sums(problem)}
    programs = tuple(
        PlannedReduction(over=set_bits(over), beside=set_bits(beside), bytes=held, program=text)
        for (over, beside, held), text in sorted(found.items(), key=lambda it: -it[0][2])
    )
    library = problem.prices.pricer.backend.name
    return msgspec.structs.replace(plan, programs=programs, backend=library)


def _sums(problem: Problem) -> Iterator[tuple[int, int, float]]:
    """Every sum that all its members get: the factors summed over, those beside, bytes held."""
    sizes = problem.prices.table.sizes
    scratch = np.zeros(len(sizes), np.int8)
    operation, held = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
    for bundle in problem.bundles:
        for leg in bundle.legs:
            source, reader = bundle.sources[leg.tensor], problem.roles[leg.unit]
            maker = problem.roles[source.maker]
            ways = [(_states(maker, source.port.there), _states(reader, leg.port.there))]
            if leg.port.back is not None and source.port.back is not None:
                ways.append((_states(reader, leg.port.back), _states(maker, source.port.back)))
            for made, needed in ways:
                count = resharding(
                    made, needed, sizes, float(source.bytes), scratch, operation, held
                )
                for (kind, over, beside), size in zip(operation[:count], held, strict=False):
                    if kind == ALL_REDUCE:
                        yield int(over), int(beside), float(size)


def _states(roles: Codes, by_split: tuple[State, ...]) -> Codes:
    return np.array([by_split[role] if role >= 0 else role for role in map(int, roles)], np.int8)
