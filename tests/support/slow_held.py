"""Bytes on every device while a plan runs, event by event: a slow twin of
`simulate.memory.memory_timeline`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.lower.bundles import TensorEdge
from meshwright.sharding.reshard import Codes
from meshwright.simulate.memory.memory_timeline import GRADIENTS, KEPT, PASSING, MemoryCurve
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Ints, Timeline
from support.slow_parts import Parts

Event = tuple[int, float, int]
"""A moment in nanoseconds, so many bytes more or fewer, and of what."""


def curves(problem: StepModel, roles: Codes, timeline: Timeline) -> Iterator[MemoryCurve]:
    """What every device holds over time; one device stands for all that do the same."""
    parts, clock = Parts(problem, roles), _Clock(problem, timeline)
    for device, units in parts.devices():
        local_units = set(units)
        events = [event for unit in units for event in _of_unit(parts, clock, unit, local_units)]
        for bundle in problem.bundles:
            if not bundle.parameters:
                events += _of_bundle(parts, clock, bundle, local_units)
        for number, bundle in enumerate(problem.bundles):
            if bundle.parameters:
                events += _gradients(problem, parts, timeline, number, local_units)
                events += _tied(problem, parts, timeline, number, local_units)
                if problem.options.zero == 3:
                    events += _fetched(problem, parts, timeline, number, local_units)
        # At one moment what goes goes first.
        events.sort()
        events.append((timeline.makespan, sum(parts.update[unit] for unit in units), PASSING))
        yield MemoryCurve(
            device=device,
            nanoseconds=np.array([0, *(moment for moment, _, _ in events)], np.int64),
            gradients=_summed(events, GRADIENTS),
            kept=_summed(events, KEPT),
            passing=_summed(events, PASSING),
            standing=parts.standing(units),
        )


def _summed(events: list[Event], kind: int) -> Ints:
    changes = [0.0, *(change if what == kind else 0.0 for _, change, what in events)]
    return np.round(np.cumsum(changes)).astype(np.int64)


class _Clock:
    """When units run, by micro-batch."""

    def __init__(self, problem: StepModel, timeline: Timeline) -> None:
        begin = timeline.end - problem.tasks.duration
        forward, backward = problem.template.forward, problem.template.backward
        self.micro_batches = range(forward.shape[1])
        self.flows = problem.template.flows
        self.reads, self.read = begin[forward].tolist(), timeline.end[forward].tolist()
        """[units, micro-batches] the start and the end of forward tasks."""
        self.returns, self.returned = begin[backward].tolist(), timeline.end[backward].tolist()
        """The same of backward tasks."""


def _during(begin: int, end: int, size: float, what: int) -> Iterator[Event]:
    if size and end > begin:
        yield begin, size, what
        yield end, -size, what


def _of_unit(parts: Parts, clock: _Clock, unit: int, local_units: set[int]) -> Iterator[Event]:
    """What a unit's members keep, hand each other and need."""
    together = [
        other for other in parts.layer_of(unit) if other in local_units and clock.flows[other]
    ]
    for m in clock.micro_batches:
        yield from _during(clock.reads[unit][m], clock.read[unit][m], parts.forward[unit], PASSING)
        if clock.flows[unit]:
            begin, end = clock.returns[unit][m], clock.returned[unit][m]
            yield from _during(clock.reads[unit][m], end, parts.kept[unit], KEPT)
            yield from _during(begin, end, parts.backward[unit], PASSING)
            again = min((clock.returns[other][m] for other in together), default=begin)
            yield from _during(again, end, parts.rerun[unit], KEPT)


def _gradients(
    problem: StepModel, parts: Parts, timeline: Timeline, number: int, local_units: set[int]
) -> Iterator[Event]:
    """Of parameters: whole until devices have summed them, for all micro-batches or for each."""
    clock, each = _Clock(problem, timeline), problem.options.sync_each
    tasks = [int(task) for task in problem.template.carry_back[number] if task >= 0]
    for source in problem.bundles[number].sources:
        unit, size = source.maker, parts.gradients[source.name]
        if unit not in local_units or not clock.flows[unit]:
            continue
        summed = bool(problem.tasks.live[tasks[0]]) and size > 0
        if not summed:
            yield clock.returns[unit][0], size, GRADIENTS
        else:
            moment = max(clock.returns[unit][0], int(timeline.end[tasks[0]]))
            yield moment, parts.summed[source.name], GRADIENTS
        for m in clock.micro_batches[1:] if not (summed and each) else ():
            yield from _during(clock.returns[unit][m], clock.returned[unit][m], size, PASSING)
        for m, task in enumerate(tasks if summed else ()):
            end = int(timeline.end[task])
            yield from _during(clock.returns[unit][m], end, size, GRADIENTS)
            yield from _during(end - int(problem.tasks.duration[task]), end, size, PASSING)


def _tied(
    problem: StepModel, parts: Parts, timeline: Timeline, number: int, local_units: set[int]
) -> Iterator[Event]:
    """A parameter on a device that only reads it: a copy, and a gradient until it is returned."""
    template, clock, bundle = problem.template, _Clock(problem, timeline), problem.bundles[number]
    arrival = int(template.carry[number, 0])
    returns = [int(task) for task in template.carry_back[number] if task >= 0]
    arrives = int(timeline.end[arrival] - problem.tasks.duration[arrival])
    for consumer in bundle.consumers:
        source, unit = bundle.sources[consumer.tensor], consumer.unit
        if unit not in local_units or source.maker in local_units:
            continue
        copy = source.bytes / parts.ways(unit, consumer.boundary.forward)
        uses = [*zip(clock.reads[unit], clock.read[unit], strict=True)]
        if clock.flows[unit]:
            uses += [*zip(clock.returns[unit], clock.returned[unit], strict=True)]
        if problem.options.zero == 3:
            for begin, end in uses:
                yield from _during(begin, end, copy, PASSING)
        else:
            yield from _during(arrives, max(end for _, end in uses), copy, PASSING)
        if (
            clock.flows[unit]
            and consumer.boundary.backward is not None
            and parts.gradients[source.name]
        ):
            for m, task in enumerate(returns):
                end = int(timeline.end[task])
                yield from _during(clock.returns[unit][m], end, copy, GRADIENTS)
            for m in clock.micro_batches[1:] if len(returns) == 1 else ():
                yield from _during(clock.returns[unit][m], clock.returned[unit][m], copy, PASSING)


def _fetched(
    problem: StepModel, parts: Parts, timeline: Timeline, number: int, local_units: set[int]
) -> Iterator[Event]:
    """Sharded parameters, from their fetching to the end of each use."""
    template, clock = problem.template, _Clock(problem, timeline)
    begin, ends = (timeline.end - problem.tasks.duration).tolist(), timeline.end.tolist()
    for source in problem.bundles[number].sources:
        unit = source.maker
        size = parts.fetched[source.name]
        for m in clock.micro_batches if unit in local_units else ():
            start, came = begin[template.carry[number, m]], ends[template.carry[number, m]]
            yield from _during(start, clock.read[unit][m], size, PASSING)
            yield from _during(start, came, size, PASSING)
            if clock.flows[unit]:
                start, came = begin[template.again[number, m]], ends[template.again[number, m]]
                yield from _during(start, clock.returned[unit][m], size, PASSING)
                yield from _during(start, came, size, PASSING)


def _of_bundle(
    parts: Parts, clock: _Clock, bundle: TensorEdge, local_units: set[int]
) -> Iterator[Event]:
    """A tensor between units while nobody keeps it, and its gradient."""
    (source,) = bundle.sources
    readers = sorted(
        {consumer.unit for consumer in bundle.consumers if consumer.unit in local_units}
    )
    kept, moved = parts.is_kept(source.name), parts.is_view_of_another(source.name)
    if bundle.maker in local_units:
        size = parts.share(bundle.maker, source)
        backs = [r for r in readers if clock.flows[r]]
        for m in clock.micro_batches:
            if not kept and not moved:
                last = max(clock.read[u][m] for u in (bundle.maker, *readers))
                yield from _during(clock.reads[bundle.maker][m], last, size, PASSING)
            if clock.flows[bundle.maker] and source.boundary.backward is not None:
                first = min(clock.returns[u][m] for u in (bundle.maker, *backs))
                # The gradient of a view becomes that of what it is a view of.
                until = clock.returns if moved else clock.returned
                yield from _during(first, until[bundle.maker][m], size, PASSING)
        return
    for consumer in bundle.consumers:
        if consumer.unit in local_units:
            size = source.bytes / parts.ways(consumer.unit, consumer.boundary.forward)
            for m in clock.micro_batches:
                if not kept:
                    begin, end = clock.reads[consumer.unit][m], clock.read[consumer.unit][m]
                    yield from _during(begin, end, size, PASSING)
                if clock.flows[consumer.unit] and consumer.boundary.backward is not None:
                    begin, end = clock.returns[consumer.unit][m], clock.returned[consumer.unit][m]
                    yield from _during(begin, end, size, PASSING)
