"""Sharding degrees of an op group: durations and shares of the machine for every way to cut it.
Enters: a unit, an operator pricer, a number of devices. Leaves: the ways to cut it, as arrays.

With N devices let t be the degrees of a unit's splits, P(t) their product and d(t) the duration of
a pass. A unit that is cut so works on a share s >= P(t) / N of the devices: along the other factors
it is copied, or idle. Every legal t is a way, with d(t) and P(t) / N.                      `every`
If prices are rooflines, less is enough (`few`):
- Cutting samples is no slower than cutting an attribute as many ways, where it comes out even:
  as many rows, no halos. Only ways that cannot be changed so are kept.              `_replaced`
  Windows that leave out rows are an exception.                                          `_read`
- P pieces do all of the work at no better a rate than the best one, each with all launches:
      d(t) >= launches + k (d(1) - launches) / P(t)                                      `_thin`
  where k is what is left of the time if no extent that can be cut down to 1, and no odd one, slows
  a product down, and if rows between windows are left out. It stands for d(t) where only a few
  devices work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.integers import divisors, prime_factors
from meshwright.cost.extents import convolution_window, extents_of
from meshwright.cost.operator import (
    EVEN,
    OperatorPricer,
    PassPrice,
    alignment,
    half_rate_extent,
)
from meshwright.graph.families import family_of
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import Call
from meshwright.sharding.unit import SAMPLE, OpGroup
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.operator_table import OperatorDurations

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Degrees = tuple[int, ...]

SMALL = 8
"""Ways that use at most one of so many devices are not priced by themselves."""


MANY = 250
"""Ways of a unit without products, up to which all of them are kept."""


class ShardingDegrees(NamedTuple):
    """The ways to cut a unit; times in nanoseconds."""

    degrees: Whole
    """[ways, splits]"""
    forward: Floats
    backward: Floats
    share: Floats
    """Of the devices, at least."""
    loose: tuple[int, ...] = ()
    """Splits of which one stands for the others: what is cut along it may be along any of them."""


class DegreeEnumerator:
    """Prices the ways of one number of devices and one of micro-batches."""

    def __init__(self, pricer: OperatorPricer, devices: int, micro_batches: int = 1) -> None:
        self._pricer, self._devices, self._micro = pricer, devices, micro_batches

    def ways(self, unit: OpGroup) -> ShardingDegrees:
        """The ways that matter for a bound."""
        return self.few(unit) if self._pricer.estimates else self.every(unit)

    def every(self, unit: OpGroup) -> ShardingDegrees:
        """Every way to cut a unit."""
        legal = list(self._legal(unit, few=False))
        exact = self._exact(unit)
        return self._ways(unit, legal, [exact(degrees) for degrees in legal])

    def few(self, unit: OpGroup) -> ShardingDegrees:
        """Ways of which one is at least as good as any of `every`, if prices are rooflines."""
        samples, alike = self._replaceable(unit)
        loose = (samples, *alike) if samples is not None and alike else ()
        kept = list(islice(self._legal(unit, few=False), MANY + 1))
        if len(kept) > MANY or any(family_of(member.call).products for member in unit.members):
            kept = list(self._legal(unit, few=True))
        else:
            loose = ()
        thin = lru_cache(maxsize=None)(lambda product: self._thin(unit, product))
        exact = self._exact(unit)
        rows = [
            thin(product)
            if (product := math.prod(degrees)) * SMALL <= self._devices
            and self._goes_further(unit, degrees)
            else exact(degrees)
            for degrees in kept
        ]
        return self._ways(unit, kept, rows)._replace(loose=loose)

    def _ways(
        self, unit: OpGroup, degrees: list[Degrees], rows: list[tuple[float, float]]
    ) -> ShardingDegrees:
        forward, backward = np.array(rows, np.float64).T
        degree_array = np.array(degrees, np.int64).reshape(len(degrees), len(unit.splits))
        return ShardingDegrees(
            degree_array, forward, backward, degree_array.prod(axis=1) / self._devices
        )

    def _exact(self, unit: OpGroup) -> Callable[[Degrees], tuple[float, float]]:
        durations = OperatorDurations(unit, self._pricer)
        micro = [unit.micro_ways(s, self._micro) for s in range(len(unit.splits))]

        def exact(degrees: Degrees) -> tuple[float, float]:
            forward, backward = durations(tuple(d * m for d, m in zip(degrees, micro, strict=True)))
            return forward, backward if unit.flows else 0.0

        return exact

    def _legal(self, unit: OpGroup, *, few: bool) -> Iterator[Degrees]:
        """The degrees that a plan may have, or those of them that are kept."""
        samples, alike = self._replaceable(unit)
        order = sorted(range(len(unit.splits)), key=lambda n: n != samples)
        chosen = [1] * len(order)

        def extend(at: int, left: int) -> Iterator[Degrees]:
            if at == len(order):
                yield tuple(chosen)
                return
            number = order[at]
            for degree in divisors(left):
                if self._allowed(unit, number, degree) and not (
                    few and number in alike and self._replaced(unit, number, degree, chosen)
                ):
                    chosen[number] = degree
                    yield from extend(at + 1, left // degree)
            chosen[number] = 1

        return extend(0, self._devices)

    def _replaceable(self, unit: OpGroup) -> tuple[int | None, list[int]]:
        """The split of samples, and those of attributes that it may be cut along instead."""
        samples = next((n for n, s in enumerate(unit.splits) if s.name == SAMPLE), None)
        if samples is None:
            return None, []
        others = [n for n in range(len(unit.splits)) if n != samples]
        return samples, [n for n in others if _acts_alike(unit, n, samples)]

    def _replaced(self, unit: OpGroup, number: int, degree: int, chosen: list[int]) -> bool:
        """Whether samples can be cut instead of an attribute, at least as well."""
        samples = next(n for n, s in enumerate(unit.splits) if s.name == SAMPLE)
        ways = chosen[samples] * unit.micro_ways(samples, self._micro)
        return any(
            all(extent % (ways * prime) == 0 for extent in unit.extents[SAMPLE])
            and self._allowed(unit, number, degree // prime)
            for prime in set(prime_factors(degree))
        )

    def _goes_further(self, unit: OpGroup, degrees: Degrees) -> bool:
        left = self._devices // math.prod(degrees)
        return any(
            self._allowed(unit, number, degree * prime)
            for prime in set(prime_factors(left))
            for number, degree in enumerate(degrees)
        )

    def _allowed(self, unit: OpGroup, number: int, degree: int) -> bool:
        return degree == 1 or unit.cuttable(number, degree * unit.micro_ways(number, self._micro))

    def _thin(self, unit: OpGroup, product: int) -> tuple[float, float]:
        """No way with this product is faster."""
        forward = backward = 0.0
        micro = tuple(unit.micro_ways(s, self._micro) for s in range(len(unit.splits)))
        for member in unit.members:
            call = member.piece(dict(enumerate(micro)))
            price = self._pricer.price(call, member.wanted)
            gain = self._gain(call, product) * math.prod(map(_read, member.splits))
            forward += self._share(price.forward, 1, gain / product)
            backward += self._share(price.backward, max(1, sum(member.wanted)), gain / product)
        # Rounding to whole nanoseconds takes away half of one at most.
        least = max(1.0, forward * NANO - 0.5), max(1.0, backward * NANO - 0.5)
        return least[0], least[1] if unit.flows else 0.0

    def _share(self, price: PassPrice, kernels: int, part: float) -> float:
        launches = min(self._pricer.rates.launch * kernels, price.seconds)
        return launches + (price.seconds - launches) * part

    def _gain(self, call: Call, product: int) -> float:
        """What is left of the time of a product if small or odd extents do not slow it down."""
        if not family_of(call).products:
            return 1.0
        rates = self._pricer.rates
        half = half_rate_extent(call, rates)
        left = {1: rates.odd, EVEN: min(rates.unaligned, rates.ragged), 8: 1.0}[alignment(call)]
        for name, extent in extents_of(call).items():
            # An extent of 1 does not slow a product down, so cutting down to it may gain; of a
            # convolution's input channels the window is left.
            cut = name == "parameter" or convolution_window(call) == 1
            if name != "rows" and cut and product % extent == 0:
                left *= extent / (extent + half)
        return left


def _acts_alike(unit: OpGroup, attribute: int, samples: int) -> bool:
    """Whether a split of an attribute does to every port what that of samples does."""
    if unit.splits[attribute].role != "attribute":
        return False
    if any(_read(member.splits[attribute]) < 1 for member in unit.members):
        return False
    states = [
        state
        for boundary in (*unit.inputs, *unit.outputs)
        for state in (boundary.forward, boundary.backward)
    ]
    return all(
        state is None
        or state[attribute] == state[samples]
        or min(state[attribute], state[samples]) >= 0
        for state in states
    )


def _read(split: Split | None) -> float:
    """The share of rows that windows read: pieces leave out what lies between their windows."""
    if split is None or split.halo is None or split.halo.transposed:
        return 1.0
    window = (split.halo.kernel - 1) * split.halo.dilation + 1
    return min(1.0, window / split.halo.stride)
