"""Synthesis hierarchies. Enters: a placement and the axes to reduce over. Leaves: the levels that
instructions may slice, and for each instruction the digits of the machine that it varies.

For a matrix x reduced over some rows (P² sections 2.5 and 3.4):
    (a) system      the levels of the hardware                       h_0 | h_1 | ...
    (b) column      every factor, level by level                     x_00 x_10 | x_01 x_11 | ...
    (c) row         every factor, axis by axis                       x_00 x_01 | x_10 x_11 | ...
    (d) reduction   the factors of the reduction axes only           x_r0 x_r1 ...
and (d) with the factors of one hardware level collapsed into one, either in hardware order (the
default) or in axis order, as the paper's experiments did: there the levels have the sizes of the
collapsed hardware levels but count devices axis by axis, and so do not line up with the hardware.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from meshwright.base.errors import InputError, nearest
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import ROOT, Form, InsideGroup, Master, Parallel
from meshwright.cost.pattern import Digit, Pattern, PatternUse
from meshwright.sharding.axes import IDLE, axis_indices
from meshwright.sharding.placement import Placement

HierarchyKind = Literal["hardware", "axis", "reduction", "row", "column", "system"]
HIERARCHY_KINDS: tuple[HierarchyKind, ...] = get_args(HierarchyKind)


class HierarchyFactor(NamedTuple):
    """A digit of the position inside a hardware level, and the axis it belongs to."""

    level: int
    axis: int
    radix: int
    stride: int


class SynthesisLevel(NamedTuple):
    """A level that instructions may slice: the factors that tell its members apart."""

    name: str
    factors: tuple[HierarchyFactor, ...]
    reduced: bool
    """Whether all its factors belong to reduction axes (or are 1)."""

    @property
    def size(self) -> int:
        """How many members it has under one instance of the level above."""
        return math.prod(factor.radix for factor in self.factors)


class Hierarchy:
    """The levels of a synthesis, outermost first, for one placement and its reduction axes."""

    def __init__(
        self,
        placement: Placement,
        level_names: Sequence[str],
        reduce: Sequence[str],
        kind: HierarchyKind = "hardware",
    ) -> None:
        if kind not in HIERARCHY_KINDS:
            raise InputError(f"there is no hierarchy {kind!r}", nearest(kind, HIERARCHY_KINDS))
        self.placement, self.kind = placement, kind
        self.reduce = axis_indices(placement.axes, reduce)
        self._factors = tuple(_factors(placement))
        self._reduction = tuple(f for f in self._factors if f.axis in self.reduce and f.radix > 1)
        self.hardware_names = tuple(level_names)
        self.levels = tuple(self._levels())
        self._digits = tuple(self._refined())

    @property
    def group_size(self) -> int:
        """How many devices reduce together."""
        return math.prod(self.placement.axes[i].size for i in self.reduce)

    def pattern(
        self, varied: Sequence[HierarchyFactor], first: Sequence[HierarchyFactor]
    ) -> Pattern:
        """The groups that vary some factors, with others held at zero.

        Idle devices stay out of every group.
        """
        digits: list[list[Digit]] = [[] for _ in self.hardware_names]
        for factor in self._digits:
            idle = self.placement.axes[factor.axis].name == IDLE
            use = PatternUse.MEMBER if factor in varied else PatternUse.EVERY
            if factor in first or idle:
                use = PatternUse.FIRST
            digits[factor.level].append(Digit(factor.radix, use))
        return tuple(tuple(level) for level in digits)

    def span(self, slice_: str, form: Form) -> tuple[range, range]:
        """The levels that an instruction varies, and those it holds at zero, as index ranges."""
        names = [ROOT, *(level.name for level in self.levels)]
        bottom = self._index(names, slice_)
        match form:
            case InsideGroup():
                return range(bottom, len(self.levels)), range(0)
            case Parallel(under) | Master(under):
                top = self._index(names, under)
                if top >= bottom:
                    raise InputError(
                        f"{under!r} is not above {slice_!r}",
                        f"name a level above it: {names[:bottom]}",
                    )
                tail = range(bottom, len(self.levels)) if isinstance(form, Master) else range(0)
                return range(top, bottom), tail

    def instructions(self) -> Iterator[tuple[str, Form, range, range]]:
        """Every slice and form that makes groups of two or more, each set of groups once."""
        names = [ROOT, *(level.name for level in self.levels)]
        count = len(self.levels)
        seen = set()
        for top in range(count):
            for bottom in range(top + 1, count + 1):
                whole: Form = InsideGroup() if bottom == count else Parallel(names[top])
                slice_ = names[top] if bottom == count else names[bottom]
                choices = [(slice_, whole, range(top, bottom), range(0))]
                if bottom < count:
                    tail = range(bottom, count)
                    choices.append((slice_, Master(names[top]), range(top, bottom), tail))
                for choice in choices:
                    key = tuple(self._above_one(levels) for levels in choice[2:])
                    if self.allows(choice[2], choice[3]) and key not in seen:
                        seen.add(key)
                        yield choice

    def allows(self, varied: range, first: range) -> bool:
        """Whether groups that vary some levels and hold others at zero can be valid.

        Parallel and InsideGroup may vary reduction factors only, and Master may hold only those
        at zero (P² lemmas B.3 to B.6); groups of one device do nothing.
        """
        reduced = all(self.levels[i].reduced for i in (*varied, *first))
        return reduced and bool(self._above_one(varied))

    def _above_one(self, levels: range) -> frozenset[int]:
        return frozenset(i for i in levels if self.levels[i].size > 1)

    def _index(self, names: Sequence[str], name: str) -> int:
        if name not in names:
            raise InputError(f"the hierarchy has no level {name!r}", nearest(name, names))
        return names.index(name)

    def _levels(self) -> Iterator[SynthesisLevel]:
        axes = self.placement.axes
        match self.kind:
            case "system":
                for level, name in enumerate(self.hardware_names):
                    factors = tuple(f for f in self._factors if f.level == level)
                    reduced = all(f.axis in self.reduce or f.radix == 1 for f in factors)
                    yield SynthesisLevel(name, tuple(f for f in factors if f.radix > 1), reduced)
            case "column" | "row":
                order = sorted(
                    self._factors, key=lambda f: f[:2] if self.kind == "column" else f[1::-1]
                )
                for f in order:
                    name = f"{axes[f.axis].name}/{self.hardware_names[f.level]}"
                    yield SynthesisLevel(name, (f,), f.axis in self.reduce or f.radix == 1)
            case "reduction":
                for f in sorted(self._reduction, key=lambda f: f[1::-1]):
                    name = f"{axes[f.axis].name}/{self.hardware_names[f.level]}"
                    yield SynthesisLevel(name, (f,), True)
            case "hardware":
                for level, name in enumerate(self.hardware_names):
                    factors = tuple(f for f in self._reduction if f.level == level)
                    if factors:
                        yield SynthesisLevel(name, factors, True)
            case "axis":
                yield from self._axis_order()

    def _axis_order(self) -> Iterator[SynthesisLevel]:
        """Levels with the sizes of the hardware levels, filled with factors axis by axis."""
        waiting = sorted(self._reduction, key=lambda f: f[1::-1])
        for level, name in enumerate(self.hardware_names):
            size = math.prod(f.radix for f in self._reduction if f.level == level)
            taken: list[HierarchyFactor] = []
            while size > 1:
                factor = waiting.pop(0)
                if size % factor.radix == 0:
                    taken.append(factor)
                    size //= factor.radix
                elif factor.radix % size == 0:
                    rest = factor.radix // size
                    taken.append(factor._replace(radix=size, stride=factor.stride * rest))
                    waiting.insert(0, factor._replace(radix=rest))
                    size = 1
                else:
                    raise InputError(
                        f"{self.placement} cannot be collapsed in axis order: {size} and "
                        f"{factor.radix} do not divide each other",
                        "collapse it in hardware order, the default",
                    )
            if taken:
                yield SynthesisLevel(name, tuple(taken), True)

    def _refined(self) -> Iterator[HierarchyFactor]:
        """All factors in the order of the digits, in the parts into which the levels split them."""
        parts = [f for level in self.levels for f in level.factors]
        for factor in self._factors:
            finer = [p for p in parts if p[:2] == factor[:2] and p.radix < factor.radix]
            yield from sorted(finer, key=lambda p: -p.stride) if finer else (factor,)


def _factors(placement: Placement) -> Iterator[HierarchyFactor]:
    for level, column in enumerate(zip(*placement.matrix, strict=True)):
        stride = math.prod(column)
        for axis, radix in enumerate(column):
            stride //= radix
            yield HierarchyFactor(level, axis, radix, stride)


def reduction_hierarchy(
    cluster: Cluster,
    placement: Placement,
    reduce: Sequence[str],
    kind: HierarchyKind = "hardware",
) -> Hierarchy:
    """The synthesis hierarchy of a placement on a cluster, for the named reduction axes."""
    return Hierarchy(placement, cluster.level_names, reduce, kind)
