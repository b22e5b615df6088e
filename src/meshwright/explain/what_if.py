"""What-if analysis: the same layouts simulated on a changed machine, batch or option. Enters: a
plan and what a device may hold. Leaves: for each change of the machine, of the batch or of an
option what a step would take, predicted, the most useful first.

Nothing is searched: layouts stay what they are and are simulated again.
    links      of one level with twice the rates, as a second card for each would give
    devices    with twice the peak rates and memory bandwidth
    memory     twice as much on each device: of less recomputation, less sharding and fewer
               micro-batches, alone and together, what is fastest of all that fits then and does not
               fit now; the plan as it is where that is faster
    batch      twice as large, in as many micro-batches or in twice as many: whichever is faster
    options    half as many micro-batches
Reduction programs follow from the prices of the changed machine. A search there may find better
layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import (
    Bytes,
    BytesPerSecond,
    OpsPerSecond,
    Seconds,
    format_bytes,
    plural,
)
from meshwright.cluster.cluster import Cluster, Device, Level
from meshwright.graph.batch import with_batch
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan, Prediction
from meshwright.simulate.simulation import simulate

MORE = 2
"""How many times as much of something each change gives."""


class Improvement(NamedTuple):
    """A change, and what is predicted with it."""

    change: str
    step: Seconds | None
    """With the change; None if it cannot be applied."""
    samples: int
    """How many times as many samples a step has."""
    gain: float
    """How much more samples a second, as a share; 0 if it cannot be applied."""
    note: str
    """What else changes, whether it fits, or why it cannot be applied."""
    plan: Plan | None = None
    """The plan with the change; None if it cannot be applied."""


def helps(
    plan: Plan, memory: Bytes, late: Callable[[], bool] = lambda: False
) -> tuple[Improvement, ...]:
    """Every change that is not too late to be tried, the largest gain first.

    A device may hold so much memory.
    """
    before = _predicted(plan).step
    improvements = []
    for change, tried in _changes(plan, memory):
        if late():
            break
        outcome = _outcome(tried)
        if isinstance(outcome, str):
            improvements.append(Improvement(change, None, 1, 0.0, f"cannot be applied: {outcome}"))
        else:
            gain = before * outcome.samples / outcome.prediction.step - 1
            note = "; ".join(filter(None, (outcome.note, _lacking(outcome, memory))))
            step = outcome.prediction.step
            improvements.append(
                Improvement(change, step, outcome.samples, gain, note, outcome.plan)
            )
    return tuple(
        sorted(improvements, key=lambda improvement: (improvement.step is None, -improvement.gain))
    )


class _Tried(NamedTuple):
    """A plan after a change."""

    plan: Plan
    prediction: Prediction
    note: str
    samples: int = 1
    memory: int = 1
    """How many times as much a device may hold."""


_Outcome = _Tried | str
"""What came of a change, or why it cannot be applied."""


def _outcome(tried: Callable[[], _Outcome]) -> _Outcome:
    """What came of a change; what cannot be planned says why."""
    try:
        return tried()
    except InputError as error:
        return error.problem


def _changes(plan: Plan, memory: Bytes) -> Iterator[tuple[str, Callable[[], _Outcome]]]:
    for number, level in enumerate(plan.cluster.levels):
        if level.cardinality > 1:
            card = " (two network cards)" if not number else ""
            change = f"links between {plural(level.name)} twice as fast{card}"
            yield change, partial(_on, plan, _faster_links(plan.cluster, number))
    yield "devices twice as fast", partial(_faster, plan)
    yield "twice the memory on each device", partial(_roomier, plan, memory)
    yield "twice the batch", partial(_larger_batch, plan, memory)
    yield "half as many micro-batches", partial(_fewer, plan)


def _predicted(plan: Plan) -> Prediction:
    """What a plan costs on its own machine."""
    return simulate(plan).prediction


def _tried(plan: Plan, note: str, samples: int = 1) -> _Tried:
    return _Tried(plan, _predicted(plan), note, samples=samples)


def _on(plan: Plan, cluster: Cluster) -> _Tried:
    return _tried(plan.changed(cluster=cluster), "")


def _faster_links(cluster: Cluster, number: int) -> Cluster:
    level = cluster.levels[number]
    links = tuple(
        replace(link, out=BytesPerSecond(link.out * MORE), into=BytesPerSecond(link.into * MORE))
        for link in level.links
    )
    return _with_level(cluster, number, replace(level, links=links))


def _with_level(cluster: Cluster, number: int, level: Level) -> Cluster:
    levels = (*cluster.levels[:number], level, *cluster.levels[number + 1 :])
    return replace(cluster, levels=levels)


def _faster(plan: Plan) -> _Outcome:
    current = plan.cluster.device
    if current.prices:
        return f"what operators take on {current.name} is measured"
    device: Device = replace(
        current,
        memory_bandwidth=BytesPerSecond(current.memory_bandwidth * MORE),
        peak=tuple((dtype, OpsPerSecond(rate * MORE)) for dtype, rate in current.peak),
    )
    return _on(plan, replace(plan.cluster, device=device))


def _roomier(plan: Plan, memory: Bytes) -> _Outcome:
    current = plan.options
    if current.micro_batches == 1 and not current.zero and not current.recompute:
        return "the plan saves no memory: one micro-batch, no ZeRO, nothing run again"
    counts = [current.micro_batches >> n for n in range(current.micro_batches.bit_length())]
    tried: list[_Tried] = []
    for count, zero, again in product(counts, range(current.zero + 1), {current.recompute, False}):
        options = replace(current.with_zero(zero), micro_batches=count, recompute=again)
        if options == current:
            continue
        try:
            trial = _tried(plan.changed(options=options), f"with {_difference(current, options)}")
        except InputError:  # So many micro-batches leave a stage's schedule or a layout no room.
            continue
        if memory < trial.prediction.memory.total <= MORE * memory:
            tried.append(trial)
    if not tried:
        return "of fewer micro-batches, less ZeRO and recomputation nothing needs and fits into it"
    tried.append(_tried(plan, "as it is: nothing that needs it is faster"))
    best = min(tried, key=lambda it: (it.prediction.step, it.note))
    return best._replace(memory=MORE)


def _difference(before: Options, after: Options) -> str:
    """What one set of options has that another has not, in words."""
    words = []
    if after.micro_batches != before.micro_batches:
        words.append(f"{after.micro_batches} micro-batches")
    if after.zero != before.zero:
        words.append(f"ZeRO {after.zero}" if after.zero else "no ZeRO")
    if after.recompute != before.recompute:
        words.append("nothing run again")
    return ", ".join(words)


def _larger_batch(plan: Plan, memory: Bytes) -> _Outcome:
    graph = with_batch(plan.graph, MORE)
    micro, tried = plan.options.micro_batches, []
    for count in (micro, micro * MORE):
        options = replace(plan.options, micro_batches=count)
        changed = plan.changed(graph=graph, options=options)
        note = f"in {count} micro-batches" if count > 1 else ""
        tried.append(_tried(changed, note, samples=MORE))
    return min(tried, key=lambda it: (it.prediction.memory.total > memory, it.prediction.step))


def _fewer(plan: Plan) -> _Outcome:
    micro = plan.options.micro_batches
    if micro == 1:
        return "the plan has one micro-batch"
    options = replace(plan.options, micro_batches=micro // 2)
    return _tried(plan.changed(options=options), f"{micro // 2} instead of {micro}")


def _lacking(trial: _Tried, memory: Bytes) -> str:
    missing = trial.prediction.memory.total - trial.memory * memory
    return f"does NOT fit, by {format_bytes(missing)}" if missing > 0 else ""
