"""Ranking of P² placements: each parallelism matrix with its best reduction programs. Enters: a
cluster, axes, and the reductions of one training step with their sizes. Leaves: all placements,
each with the best program for every reduction, by total predicted time.

    time(placement) = Σ over reductions r of count_r · min over programs of time(program, bytes_r)
Placements whose reductions lie on the machine in the same way share one synthesis.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from meshwright.base.errors import InputError, shown
from meshwright.base.integers import parse_whole
from meshwright.base.quantities import (
    Bytes,
    Seconds,
    counted,
    format_bytes,
    format_seconds,
    parse_bytes,
)
from meshwright.base.sheet import Sheet, printed
from meshwright.collectives.dsl import ALL_REDUCE, Program
from meshwright.collectives.hierarchy import Hierarchy, HierarchyKind
from meshwright.collectives.predict import (
    NoProgramError,
    PricedProgram,
    cheapest,
    predict,
    predict_all,
)
from meshwright.collectives.synthesize import SIZE_LIMIT, Rules, count_programs
from meshwright.collectives.verify import verified
from meshwright.cost.alpha_beta import Pricer
from meshwright.sharding.axes import Axis, axis_indices, checked_axes
from meshwright.sharding.placement import Placement, interchangeable, placements

MOST_STEPS = 20
"""The longest programs that may be asked for: their number grows exponentially."""


class Reduction(msgspec.Struct, frozen=True):
    """Data to be summed over some axes, so many times a step.

    >>> Reduction.parse("data+pipe=64MiB*24")
    Reduction(axes=('data', 'pipe'), bytes=67108864, count=24)
    """

    axes: tuple[str, ...]
    bytes: Bytes
    count: int = 1

    def __post_init__(self) -> None:
        if self.bytes <= 0:
            raise InputError(
                f"a reduction over {'+'.join(self.axes)} of {self.bytes} bytes",
                "give 1 byte or more",
            )
        if self.count < 1:
            raise InputError(f"a reduction {self.count} times a step", "give 1 or more")

    def __str__(self) -> str:
        times = f" x {self.count}" if self.count > 1 else ""
        return f"{'+'.join(self.axes)} {format_bytes(self.bytes)}{times}"

    @staticmethod
    def parse(text: str, default: Bytes | None = None) -> Reduction:
        """A reduction from AXIS[+AXIS...][=BYTES[*COUNT]], with a default for the bytes."""
        match = re.fullmatch(r"([^=*]*)(?:=([^*]+))?(?:\*(\d+))?", text.strip())
        if match is None:
            raise InputError(
                f"{text!r} is not a reduction", "write AXIS+AXIS=BYTES*COUNT, as 'data=8GiB'"
            )
        names, size, times = match.groups()
        axes = tuple(name.strip() for name in names.split("+") if name.strip())
        if not axes:
            raise InputError(f"{text!r} names no axis to reduce over", "name one, as 'data'")
        payload = parse_bytes(size) if size else default
        if payload is None:
            raise InputError(
                f"the reduction {text!r} has no size", "add one, as 'data=8GiB', or --bytes"
            )
        return Reduction(axes, payload, parse_whole(times or "1"))


class ReductionPrice(msgspec.Struct, frozen=True):
    """One reduction under one placement: a single AllReduce against the best program."""

    reduction: Reduction
    all_reduce: PricedProgram
    best: PricedProgram

    @property
    def all_reduce_seconds(self) -> Seconds:
        """The predicted time a step with AllReduce alone."""
        return Seconds(self.all_reduce.seconds * self.reduction.count)

    @property
    def best_seconds(self) -> Seconds:
        """The predicted time a step with the best program."""
        return Seconds(self.best.seconds * self.reduction.count)


class RankedPlacement(msgspec.Struct, frozen=True):
    """A placement with the best program for each reduction."""

    placement: Placement
    reductions: tuple[ReductionPrice, ...]

    @property
    def all_reduce_seconds(self) -> Seconds:
        """The predicted time of all reductions with AllReduce alone."""
        return Seconds(sum(r.all_reduce_seconds for r in self.reductions))

    @property
    def best_seconds(self) -> Seconds:
        """The predicted time of all reductions with their best programs."""
        return Seconds(sum(r.best_seconds for r in self.reductions))

    @property
    def speedup(self) -> float:
        """AllReduce time over best time."""
        return self.all_reduce_seconds / self.best_seconds if self.best_seconds else 1.0


class Ranker:
    """Ranks placements on one cluster; remembers what it has synthesized and priced."""

    def __init__(
        self,
        pricer: Pricer,
        *,
        limit: int = SIZE_LIMIT,
        rules: Rules = "literal",
        kind: HierarchyKind = "hardware",
    ) -> None:
        if not 1 <= limit <= MOST_STEPS:
            raise InputError(
                f"programs of at most {shown(limit)} steps", f"allow 1 to {MOST_STEPS} steps"
            )
        self.pricer, self.limit, self.rules, self.kind = pricer, limit, rules, kind
        self._best: dict[object, tuple[PricedProgram, PricedProgram]] = {}

    def hierarchy(self, placement: Placement, axes: Sequence[str]) -> Hierarchy:
        """The synthesis hierarchy of a reduction."""
        return Hierarchy(placement, self.pricer.cluster.level_names, axes, self.kind)

    def price(self, placement: Placement, reduction: Reduction) -> ReductionPrice:
        """AllReduce and the best program for one reduction under one placement."""
        hierarchy = self.hierarchy(placement, reduction.axes)
        key = (self._signature(hierarchy), reduction.bytes)
        if key not in self._best:
            self._best[key] = self._search(hierarchy, reduction.bytes)
        return ReductionPrice(reduction, *self._best[key])

    def priced_programs(self, placement: Placement, reduction: Reduction) -> list[PricedProgram]:
        """Every program for one reduction under one placement, by predicted time."""
        hierarchy = self.hierarchy(placement, reduction.axes)
        priced = predict_all(
            hierarchy, self.pricer, reduction.bytes, limit=self.limit, rules=self.rules
        )
        return sorted(priced, key=lambda it: it.seconds)

    def programs(self, placement: Placement, reduction: Reduction) -> int:
        """How many programs there are for one reduction under one placement."""
        hierarchy = self.hierarchy(placement, reduction.axes)
        return count_programs(hierarchy, limit=self.limit, rules=self.rules)

    def _search(self, hierarchy: Hierarchy, payload: Bytes) -> tuple[PricedProgram, PricedProgram]:
        best = cheapest(hierarchy, self.pricer, payload, limit=self.limit, rules=self.rules)
        verified(hierarchy, best.program)
        # One AllReduce over the whole group is no instruction of hierarchies (a) to (c).
        reduce = [hierarchy.placement.axes[i].name for i in hierarchy.reduce]
        hardware = Hierarchy(hierarchy.placement, hierarchy.hardware_names, reduce)
        alone = ALL_REDUCE if hierarchy.group_size > 1 else Program(())
        return predict(hardware, alone, self.pricer, payload), best

    def _signature(self, hierarchy: Hierarchy) -> object:
        if self.kind != "hardware":
            return hierarchy.placement, hierarchy.reduce
        varied = [factor for level in hierarchy.levels for factor in level.factors]
        return self.pricer.signature(hierarchy.pattern(varied, ()))


@printed
class Ranking(msgspec.Struct, frozen=True):
    """Placements by predicted time, the fastest first, and why the search stopped."""

    placements: tuple[RankedPlacement, ...]
    stopped: Literal["complete", "interrupted"] = "complete"
    without_program: int = 0
    """Placements left out because the hierarchy has no program for a reduction."""

    def sheet(self) -> Sheet:
        """A line for each placement."""
        return Sheet(
            f"{counted(len(self.placements), 'placement')}, the fastest first; times are predicted",
            (),
            ("placement", "AllReduce", "best program", "speed-up"),
            tuple(
                (
                    str(ranked.placement),
                    format_seconds(ranked.all_reduce_seconds),
                    format_seconds(ranked.best_seconds),
                    f"{ranked.speedup:.2f}x",
                )
                for ranked in self.placements
            ),
        )

    @property
    def best(self) -> RankedPlacement:
        """The fastest placement."""
        return self.placements[0]


def rank(
    ranker: Ranker,
    axes: Mapping[str, int] | Sequence[Axis],
    reductions: Sequence[Reduction],
    *,
    idle: bool = False,
    unique: bool = False,
    progress: Callable[[], None] = lambda: None,
) -> Ranking:
    """All placements by predicted time; equally fast ones in the order of `placements`.

    With `unique`, placements that differ only by exchanging axes of equal size and equal use are
    given once; only in hardware order do such exchanges change nothing, so only there. `progress`
    is called after each placement; a KeyboardInterrupt ends the search with what it has.

    >>> from meshwright import Cluster, Pricer, Ranker, Reduction, rank
    >>> ranker = Ranker(Pricer(Cluster.named("gcp-a100", node=4)))
    >>> ranking = rank(ranker, {"data": 4, "tensor": 16}, [Reduction.parse("data=8GiB")])
    >>> print(ranking.best.placement, ranking.best.reductions[0].best.program)
    [[1 4] [4 4]] root.InsideGroup.AllReduce
    """
    named = checked_axes(axes) if isinstance(axes, Mapping) else tuple(axes)
    if not reductions:
        raise InputError("no reduction was given", "say what is reduced, as 'data=8GiB'")
    for reduction in reductions:
        axis_indices(named, reduction.axes)
    roles = {
        axis.name: tuple(i for i, r in enumerate(reductions) if axis.name in r.axes)
        for axis in named
    }
    exchangeable = unique and ranker.kind == "hardware"
    alike = interchangeable(ranker.pricer.cluster, named, roles) if exchangeable else ()
    priced: list[RankedPlacement] = []
    refused: list[NoProgramError] = []
    stopped: Literal["complete", "interrupted"] = "complete"
    try:
        for placement in placements(ranker.pricer.cluster, named, idle=idle, alike=alike):
            try:
                prices = tuple(ranker.price(placement, reduction) for reduction in reductions)
            except NoProgramError as error:
                refused.append(error)
            else:
                priced.append(RankedPlacement(placement, prices))
            progress()
    except KeyboardInterrupt:
        if not priced:
            raise
        stopped = "interrupted"
    if not priced:
        raise refused[0]
    by_time = sorted(priced, key=lambda ranked: ranked.best_seconds)
    return Ranking(tuple(by_time), stopped, len(refused))


def rank_pairs(
    ranker: Ranker, placements: Iterable[Placement], reduction: Reduction
) -> list[tuple[Placement, PricedProgram]]:
    """Every program of every placement, ranked together by predicted time."""
    pairs = [(p, priced) for p in placements for priced in ranker.priced_programs(p, reduction)]
    return sorted(pairs, key=lambda pair: pair[1].seconds)


def sweep(
    ranker: Ranker, placements: Sequence[Placement], reduction: Reduction, sizes: Iterable[int]
) -> list[tuple[Reduction, RankedPlacement]]:
    """The best placement and program for each payload."""
    results = []
    for size in sizes:
        sized = msgspec.structs.replace(reduction, bytes=Bytes(size))
        ranked = [RankedPlacement(p, (ranker.price(p, sized),)) for p in placements]
        results.append((sized, min(ranked, key=lambda it: it.best_seconds)))
    return results
