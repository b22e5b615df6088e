"""Reduction programs of a plan, lowered to one device's recipe. Enters: a plan. Leaves: for each
sum one device's recipe.

A plan names programs by the factors that are summed over, those beside, and bytes; for bytes that
it does not name the program of the nearest counts.
"""

from __future__ import annotations

from functools import cache

from meshwright.collectives import dsl
from meshwright.collectives.dsl import Program
from meshwright.collectives.factors import summed_devices, summed_hierarchy
from meshwright.collectives.lowering import LoweredStep, lower_program, reduction_groups
from meshwright.collectives.recipe import Recipe, recipe
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors

Numbers = tuple[int, ...]


class Reductions:
    """What is summed how."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._recipe = cache(self._made)

    def recipe(self, inside: Numbers, beside: Numbers, size: float, device: int) -> Recipe:
        """What a device does to sum so many bytes over the factors `inside`."""
        return self._recipe(inside, beside, self._program(inside, beside, size), device)

    def _program(self, inside: Numbers, beside: Numbers, size: float) -> str:
        known = [p for p in self._plan.programs if (p.over, p.beside) == (inside, beside)]
        if not known:
            return str(dsl.ALL_REDUCE)
        return min(known, key=lambda candidate: abs(candidate.bytes - size)).program

    def _made(self, inside: Numbers, beside: Numbers, program: str, device: int) -> Recipe:
        cluster = self._plan.cluster
        bits, others = (sum(1 << f for f in numbers) for numbers in (inside, beside))
        hierarchy = summed_hierarchy(cluster, bits, others)
        first = summed_devices(cluster, bits, others)
        # Factors that take no part stand at zero in the hierarchy, and where the device is here.
        sizes = [factor.size for factor in factors(cluster)]
        shift = _elsewhere(device, sizes, bits | others)
        steps = [
            LoweredStep(step.collective, _moved(step.groups, first, shift))
            for step in lower_program(hierarchy, Program.parse(program))
        ]
        groups = _moved(reduction_groups(hierarchy), first, shift)
        return recipe(steps, groups, device)


def _elsewhere(device: int, sizes: list[int], taking_part: int) -> int:
    """What a device's coordinates along other factors add to its number."""
    weight, shift = 1, 0
    for f in range(len(sizes) - 1, -1, -1):
        digit = device // weight % sizes[f]
        if not taking_part >> f & 1:
            shift += digit * weight
        weight *= sizes[f]
    return shift


def _moved(
    groups: tuple[tuple[int, ...], ...], first: Numbers, shift: int
) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(first[member] + shift for member in group) for group in groups)
