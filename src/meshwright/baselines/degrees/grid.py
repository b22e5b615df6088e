"""Grid search with hill climbing over degrees of DP, TP, CP, PP and EP and their settings. Enters:
a graph, a machine, what may be chosen, a judge. Leaves: what the judge was asked; the best is the
judge's to keep.

    screened   for every product of degrees (DP, TP, CP, PP, EP) one configuration as its users
               would write it, without regard to memory
    fitting    the fewest micro-batches that fit, without recomputation if any do so
    climbed    from there one or two settings changed at a time, as long as it gets better

A grid has some thousands of configurations; these are some hundred, the likeliest first, so that a
search which is ended early has seen what matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import product
from typing import Literal, NamedTuple

from msgspec.structs import replace

from meshwright.base.integers import divisors, factorizations
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    ParallelConfig,
)
from meshwright.baselines.degrees.refusals import refusals
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SHARDS_GRADIENTS

SLOTS = 4
"""Micro-batches of a pipeline where degrees are compared, as a multiple of its stages."""

FEW = 16
"""Numbers of micro-batches that are all tried; more of them are thinned."""

VIRTUAL = (1, 2, 3, 4, 6, 8)
"""Virtual stages on a device."""

LARGEST = 2_500_000
"""Operators times micro-batches that are simulated, at most."""

FAR = 1.1
"""Degrees that are so much slower than the best that fits, memory aside, are not looked into."""

TRIES = 32
"""Configurations that are judged from one start, at most."""


class ConfigOutcome(NamedTuple):
    """What a judge says; the smaller the better."""

    over: bool
    """Whether it holds more than it may."""
    value: float
    """What counts: seconds of a step if it fits, bytes if not."""
    step: float


Degree = Literal["data", "tensor", "context", "pipeline", "expert"]
"""A degree of a configuration, by its name there."""

Judge = Callable[[ParallelConfig], ConfigOutcome | None]
"""None if it cannot run or may not be chosen."""


class ConfigChoices(NamedTuple):
    """What configurations may say."""

    base: ParallelConfig
    """What is not chosen: the optimizer, precision."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    sync_each: tuple[bool, ...] = (False,)
    within: tuple[int, ...] = (0,)
    """As `Options.shard_within`, the usual one first."""
    recompute: tuple[bool, ...] = (False, True)
    micro_batches: int | None = None
    held: tuple[tuple[Degree, int], ...] = ()
    """Degrees that are not chosen."""


class Grid:
    """The configurations of one graph on one machine."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, choices: ConfigChoices) -> None:
        self._graph, self._cluster, self._choices = graph, cluster, choices
        self.facts: Facts = transformer_facts(graph)

    def allows(self, config: ParallelConfig) -> bool:
        """Whether it runs, and says only what it may."""
        return not refusals(self._graph, self._cluster, config)

    @cached_property
    def screened(self) -> list[ParallelConfig]:
        """One configuration for all degrees, the likeliest first."""
        configs = [config for config in self._degrees() if self.allows(config)]
        inner = self._cluster.hierarchy[-1]

        def likelihood(config: ParallelConfig) -> tuple[bool, bool, int, int]:
            split = config.tensor * config.pipeline * config.context
            return config.tensor > inner, config.context > 1, split, config.tensor

        return sorted(configs, key=likelihood)

    def _degrees(self) -> Iterator[ParallelConfig]:
        devices, facts, choices = self._cluster.devices, self.facts, self._choices
        for tensor, context, pipeline, data in factorizations(devices, (devices,) * 4):
            if facts.samples % data or facts.heads % tensor or pipeline > facts.layers:
                continue
            experts = divisors(facts.experts) if facts.experts else (1,)
            for expert in experts:
                base = replace(
                    choices.base, data=data, tensor=tensor, context=context, pipeline=pipeline,
                    expert=expert, chunks=1, stages=(), micro_batches=1, recompute_layers=0,
                    sequence=tensor > 1 and facts.positions % (tensor * context) == 0,
                    recompute=choices.recompute[0], uneven=bool(facts.layers % pipeline),
                )  # fmt: skip
                config = self._sharded(base, self.zeros(data * context)[0], choices.within[0])
                counts = self.counts(config)
                if not counts or any(getattr(config, axis) != n for axis, n in choices.held):
                    continue
                if pipeline > 1:
                    config = self._filled(config, counts)
                yield config if pipeline > 1 else replace(config, micro_batches=counts[0])

    def _filled(self, config: ParallelConfig, counts: Sequence[int]) -> ParallelConfig:
        """With enough micro-batches for a pipeline, and virtual stages if it can have any."""
        wished = SLOTS * config.pipeline
        even = [count for count in counts if count % config.pipeline == 0]
        among = even or counts
        config = replace(config, micro_batches=min(among, key=lambda count: abs(count - wished)))
        return max(
            (config, *self._virtual(config)), key=lambda it: it.chunks if it.chunks <= 4 else 0
        )

    def zeros(self, copies: int) -> tuple[int, ...]:
        """Stages of ZeRO that differ where so many devices have the same parameters; the usual one
        first.
        """
        if copies == 1:
            return self._choices.zero[:1]
        return tuple(sorted(self._choices.zero, key=lambda stage: (stage != 1, stage)))

    def _sharded(self, config: ParallelConfig, zero: int, within: int) -> ParallelConfig:
        """With another stage of ZeRO, and gradients summed after each micro-batch if they must."""
        config = config.with_zero(zero, within)
        each = all(self._choices.sync_each) and zero >= SHARDS_GRADIENTS
        return replace(config, sync_each=config.sync_each or each)

    def counts(self, config: ParallelConfig) -> list[int]:
        """Numbers of micro-batches, the fewest first."""
        each, wanted = self.facts.samples // config.data, self._choices.micro_batches
        every = [m for m in divisors(each) if m * len(self._graph.operators) <= LARGEST]
        if wanted is not None:
            return [m for m in every if m == wanted]
        return every if len(every) <= FEW else thinned(every)

    def _virtual(self, config: ParallelConfig) -> list[ParallelConfig]:
        if config.pipeline == 1:
            return []
        every = (replace(config, chunks=chunks) for chunks in VIRTUAL if chunks != config.chunks)
        return [variant for variant in every if self.allows(variant)]

    def smallest(self, config: ParallelConfig) -> Iterator[ParallelConfig]:
        """With as many micro-batches and as much ZeRO as can be, without recomputation first."""
        zero = max(self.zeros(config.data * config.context))
        last = self.counts(config)[-1]
        for recompute, each in product(self._choices.recompute, self._choices.sync_each):
            variant = replace(config, recompute=recompute, micro_batches=last)
            variant = self._sharded(variant, zero, self._choices.within[0])
            if each and zero >= SHARDS_GRADIENTS:
                variant = replace(variant, sync_each=last > 1)
            yield variant if self.allows(variant) else replace(variant, chunks=1)

    def near(self, config: ParallelConfig) -> Iterator[ParallelConfig]:
        """Configurations that differ in a setting or two."""
        usual = config.shard_within or self._choices.within[0]
        zeros = [
            self._sharded(config, stage, usual)
            for stage in self.zeros(config.data * config.context)
            if stage != config.zero
        ]
        others = [r for r in self._choices.recompute if r != config.recompute]
        fewer, more = self._beside(config)
        yield from (*fewer[:1], *more[:1])
        yield from zeros
        if config.zero:
            others_within = (
                within for within in self._choices.within if within != config.shard_within
            )
            yield from (replace(config, shard_within=within) for within in others_within)
        if config.zero >= SHARDS_GRADIENTS and config.micro_batches > 1:
            others_each = (each for each in self._choices.sync_each if each != config.sync_each)
            yield from (replace(config, sync_each=each) for each in others_each)
        yield from self._virtual(config)
        for recompute in others:
            yield from (
                replace(variant, recompute=recompute) for variant in (*fewer, config, *more)
            )
        yield from (
            replace(zero, micro_batches=variant.micro_batches)
            for zero in zeros
            for variant in (*fewer[:1], *more[:1])
        )
        yield from (*fewer[1:], *more[1:])
        if config.pipeline > 1:
            turned = PIPELINE_INSIDE if config.order == INNERMOST_FIRST else INNERMOST_FIRST
            yield replace(config, order=turned)

    def _beside(self, config: ParallelConfig) -> tuple[list[ParallelConfig], list[ParallelConfig]]:
        """With fewer, and with more micro-batches, the nearest first."""
        every = self.counts(config)
        if config.chunks > 1:
            every = [count for count in every if count % config.pipeline == 0]
        fewer = [count for count in reversed(every) if count < config.micro_batches][:2]
        more = [count for count in every if count > config.micro_batches][:2]
        return tuple(  # type: ignore[return-value]
            [replace(config, micro_batches=count) for count in counts] for counts in (fewer, more)
        )


def search_grid(
    grid: Grid, judge: Judge, enough: Callable[[], bool], screening: Callable[[], bool]
) -> None:
    """Let the best of a grid be judged: all degrees, unless `screening` says that it took enough,
    and then the settings of the best of them.
    """
    fastest: list[tuple[float, int, ParallelConfig]] = []
    for number, config in enumerate(grid.screened):
        if enough() or screening():
            break
        outcome = judge(config) if grid.allows(config) else None
        if outcome is not None:
            fastest.append((outcome.step, number, config))
    best: ConfigOutcome | None = None
    for step, _, config in sorted(fastest):
        if enough() or (best is not None and not best.over and step > FAR * best.step):
            return
        start = fitting(grid, judge, config)
        outcome = None if start is None else climbed(grid, judge, start, enough)
        if outcome is not None and (best is None or outcome < best):
            best = outcome


def fitting(grid: Grid, judge: Judge, config: ParallelConfig) -> ParallelConfig | None:
    """A configuration with the same degrees that fits: with the fewest micro-batches if it is one
    without a pipeline; None if none does.
    """
    judged = judge(config)
    if judged is not None and not judged.over:
        return config
    for smallest in grid.smallest(config):
        outcome = judge(smallest)
        if outcome is None or outcome.over:
            continue
        counts = grid.counts(smallest)
        low, high = 0, len(counts) - 1
        while low < high:
            middle = (low + high) // 2
            tried = judge(replace(smallest, micro_batches=counts[middle]))
            low, high = (low, middle) if tried and not tried.over else (middle + 1, high)
        return replace(smallest, micro_batches=counts[high])
    return None


def climbed(
    grid: Grid, judge: Judge, start: ParallelConfig, enough: Callable[[], bool]
) -> ConfigOutcome | None:
    """The best that single changes lead to from a start."""
    best, now, tried = judge(start), start, 0
    improved = best is not None
    while improved and best is not None:
        improved = False
        for other in grid.near(now):
            if enough() or tried >= TRIES:
                return best
            outcome = judge(other)
            tried += outcome is not None
            if outcome is not None and outcome < best:
                best, now, improved = outcome, other, True
                break
    return best


def thinned(numbers: Sequence[int]) -> list[int]:
    """Of ascending numbers the least of each half octave, and the last of all.

    >>> thinned([1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 30, 40, 60, 120])
    [1, 2, 3, 4, 6, 8, 12, 20, 24, 40, 60, 120]
    """
    by_octave: dict[int, int] = {}
    for number in numbers:
        by_octave.setdefault((number * number).bit_length(), number)
    return sorted({*by_octave.values(), *numbers[-1:]})
