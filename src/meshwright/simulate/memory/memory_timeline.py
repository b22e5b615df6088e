"""The memory timeline and its peak. Enters: a laid-out problem and its timeline. Leaves: what each
device holds over time, and the fullest moment.

    standing   all the time: its part of the parameters and of the optimizer's state, buffers, its
               part of the inputs, libraries' buffers
    gradients  of parameters: whole from the backward task of the unit that makes them, added up
               over micro-batches if devices sum them once a step, until they are summed; then a
               device's part
    kept       from the start of a unit's forward task to the end of its backward task: what its
               members keep, as pieces; in a layer that runs again only what comes from outside, and
               the rest from the layer's first backward task on
    passing    what nobody keeps: a tensor from its making to its last reading, the gradient of one
               from its first reader's backward task to its maker's, what members of a unit hand
               each other and what they need on their way; gradients of a later micro-batch until
               they are added, and a row of those that are being summed over devices; sharded
               parameters (ZeRO 3) from their fetching to the end of their use, twice while they
               arrive; at the end of the step the update's
    tied       a parameter that another stage reads: its copy there from its arrival to the end of
               the last use, and its gradient, added up there too, until it has been returned
    framework  what is no tensor (`framework`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.quantities import Bytes, Seconds
from meshwright.lower.script import WHOLLY_SHARDED
from meshwright.plan.plan import Held
from meshwright.sharding.reshard import Codes
from meshwright.simulate import full
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.memory.shard_bytes import (
    ResidentBytes,
    ShardBytes,
    devices,
    framework,
    parameter_bytes_by_source,
    parameters_of,
    ways,
)
from meshwright.simulate.problem import StepModel
from meshwright.simulate.task_template import Floats
from meshwright.simulate.tasks import Flags, Indices, Ints, Timeline

GRADIENTS, KEPT, PASSING = range(3)


class MemorySpan(NamedTuple):
    """Bytes that are there for a while, once for each micro-batch."""

    begin: Ints
    """[spans, micro-batches] in nanoseconds."""
    end: Ints
    """Not there at all if not later."""
    size: Floats
    """[spans]"""
    what: int


class MemoryCurve(NamedTuple):
    """What one device holds besides what stands: from each moment on, so many bytes."""

    device: str
    nanoseconds: Ints
    gradients: Ints
    """Of parameters."""
    kept: Ints
    """For the backward pass."""
    passing: Ints
    standing: ResidentBytes

    @property
    def bytes(self) -> Ints:
        """All of it."""
        return self.gradients + self.kept + self.passing + round(sum(self.standing))


def fullest(problem: StepModel, roles: Codes, timeline: Timeline) -> Held:
    """The fullest moment of the fullest device."""
    curve = max(curves(problem, roles, timeline), key=lambda candidate: int(candidate.bytes.max()))
    moment, standing = int(curve.bytes.argmax()), curve.standing
    return Held(
        framework=framework(problem.cluster.device, roles, int(curve.bytes.max())),
        parameters=Bytes(round(standing.parameters)),
        gradients=Bytes(int(curve.gradients[moment])),
        optimizer=Bytes(round(standing.optimizer)),
        activations=Bytes(int(curve.kept[moment]) + round(standing.inputs)),
        workspace=Bytes(int(curve.passing[moment]) + round(standing.libraries)),
        device=curve.device,
        seconds=Seconds(int(curve.nanoseconds[moment]) / NANO),
    )


def together(problem: StepModel, roles: Codes, timeline: Timeline) -> Bytes:
    """What all devices hold, each at its fullest moment; classes of devices are equally large."""
    each = [int(curve.bytes.max()) for curve in curves(problem, roles, timeline)]
    each = [peak + framework(problem.cluster.device, roles, peak) for peak in each]
    return Bytes(sum(each) * problem.cluster.devices // len(each))


def within(problem: StepModel, memory: Bytes) -> Callable[[Codes], bool]:
    """Whether no device ever holds more than so much, for roles of a problem.

    The problem is left laid out with the roles that were asked about.
    """

    def fits(roles: Codes) -> bool:
        problem.lay(roles)
        return fullest(problem, roles, full.simulate(problem.tasks)).total <= memory

    return fits


def curves(problem: StepModel, roles: Codes, timeline: Timeline) -> Iterator[MemoryCurve]:
    """What every device holds over time; one device stands for all that do the same."""
    parts, clock = ShardBytes(problem, roles), _Clock(problem, timeline)
    passing = _Passing(parts, clock)
    gradients, tied = _Gradients(parts, clock, timeline), _Tied(parts, clock, timeline)
    fetched = _Fetched(parts, timeline) if problem.options.zero == WHOLLY_SHARDED else None
    known: dict[bytes, MemoryCurve] = {}
    for device, working in devices(problem, roles):
        # Devices for the same units hold the same.
        if working.tobytes() not in known:
            spans = [
                *_of_units(parts, clock, working),
                *passing.spans(working),
                *gradients.spans(working),
            ]
            spans += fetched.spans(clock, working) if fetched else ()
            spans += tied.spans(working)
            events = _events(spans, *gradients.steps(working))
            known[working.tobytes()] = _curve(parts, working, events, timeline.makespan)
        yield known[working.tobytes()]._replace(device=device)


def _curve(parts: ShardBytes, working: Flags, events: _Events, makespan: int) -> MemoryCurve:
    """What a device holds on which some units work, given what comes and goes."""
    moments, change, what = events
    last = sum(parts.lying.update[working].tolist())
    changes = np.concatenate(([0.0], change, [last]))
    kinds = np.concatenate(([PASSING], what, [PASSING]))

    def summed(kind: int) -> Ints:
        return np.round(np.cumsum(np.where(kinds == kind, changes, 0.0))).astype(np.int64)

    return MemoryCurve(
        device="",
        nanoseconds=np.concatenate(([0], moments, [makespan])),
        gradients=summed(GRADIENTS),
        kept=summed(KEPT),
        passing=summed(PASSING),
        standing=parts.standing(working),
    )


_Events = tuple[Ints, Floats, Indices]


def _events(spans: Sequence[MemorySpan], moments: Ints, gradients: Floats) -> _Events:
    """Moments, so many bytes more or fewer, and of what; at one moment what goes goes first.

    Rows of (bytes, what) are sorted before moments are, which are many more.
    """
    begin, end = (np.concatenate([span[i] for span in spans]) for i in (0, 1))
    size = np.concatenate([span.size for span in spans])
    what = np.repeat([span.what for span in spans], [len(span.size) for span in spans])
    present = (size != 0)[:, None] & (end > begin)
    first = np.zeros((len(moments), begin.shape[1]), np.bool_)
    first[:, 0] = True
    when = np.concatenate((begin, end, np.repeat(moments[:, None], begin.shape[1], axis=1)))
    counts = np.concatenate((present, present, first))
    change = np.concatenate((size, -size, gradients))
    kind = np.concatenate((what, what, np.full(len(moments), GRADIENTS)))
    rows = np.lexsort((kind, change))
    flat = when[rows][counts[rows]]
    row = np.repeat(rows, counts[rows].sum(axis=1))
    order = np.argsort(flat, kind="stable")
    row = row[order]
    return flat[order], change[row], kind[row]


class _Clock:
    """When units run, by micro-batch."""

    def __init__(self, problem: StepModel, timeline: Timeline) -> None:
        begin = timeline.end - problem.tasks.duration
        forward, backward = problem.template.forward, problem.template.backward
        self.flows = problem.template.flows
        self.reads, self.read = begin[forward], timeline.end[forward]
        """[units, micro-batches] the start and the end of forward tasks."""
        self.returns, self.returned = begin[backward], timeline.end[backward]
        """The same of backward tasks."""

    def later(self, units: Indices) -> tuple[Ints, Ints]:
        """Backward tasks of all micro-batches but the first."""
        begin, end = self.returns[units], self.returned[units]
        begin[:, 0] = end[:, 0]
        return begin, end

    def each(self, times: Ints) -> Ints:
        """[rows, micro-batches] of times for the first micro-batches only; 0 for the others."""
        return np.pad(times, ((0, 0), (0, self.reads.shape[1] - times.shape[1])))


def _of_units(parts: ShardBytes, clock: _Clock, working: Flags) -> Iterator[MemorySpan]:
    """What units' members keep, hand each other and need."""
    backward = np.flatnonzero(working & clock.flows)
    reads, returns, returned = (
        clock.reads[backward],
        clock.returns[backward],
        clock.returned[backward],
    )
    yield MemorySpan(
        clock.reads[working], clock.read[working], np.array(parts.forward)[working], PASSING
    )
    yield MemorySpan(reads, returned, np.array(parts.kept)[backward], KEPT)
    yield MemorySpan(returns, returned, np.array(parts.backward)[backward], PASSING)
    rerun = np.array(parts.rerun)[backward]
    if rerun.any():
        layer = parts.inventory.layer[backward]
        again = np.full((layer.max() + 1, returns.shape[1]), np.iinfo(np.int64).max)
        np.minimum.at(again, layer, returns)
        yield MemorySpan(again[layer], returned, rerun, KEPT)


class _Gradients:
    """Gradients of parameters: added up over micro-batches, then summed over devices."""

    def __init__(self, parts: ShardBytes, clock: _Clock, timeline: Timeline) -> None:
        problem, template, self._clock = parts.problem, parts.problem.template, clock
        source = parameters_of(problem)
        self._unit = template.source_maker[source]
        lying = parameter_bytes_by_source(parts, source)
        self._whole, self._summed = lying.gradients, lying.summed
        bundle = np.repeat(np.arange(len(template.maker)), np.diff(template.source_start))[source]
        task = template.carry_back[bundle, : problem.options.sums]
        self._travels = problem.tasks.live[task[:, 0]] & (self._whole > 0)
        self._end = timeline.end[task]
        self._begin = self._end - problem.tasks.duration[task]
        self._adds = problem.options.sums == 1

    def steps(self, working: Flags) -> tuple[Ints, Floats]:
        """Moments, and by how many bytes the gradients on a device on which some units work grow:
        by what stays until the end of the step.
        """
        on_device = (working & self._clock.flows)[self._unit]
        summed, stay = on_device & self._travels, on_device & ~self._travels
        first = self._clock.returns[self._unit, 0]
        moments = first[stay], np.maximum(first, self._end[:, 0])[summed]
        return np.concatenate(moments), np.concatenate((self._whole[stay], self._summed[summed]))

    def spans(self, working: Flags) -> Iterator[MemorySpan]:
        """Whole ones until they are summed, the row that is, and the next one until it is added."""
        on_device = (working & self._clock.flows)[self._unit]
        added = on_device & (~self._travels | self._adds)
        yield MemorySpan(*self._clock.later(self._unit[added]), self._whole[added], PASSING)
        summed = on_device & self._travels
        arrives = self._clock.returns[self._unit[summed], : self._end.shape[1]]
        end = self._clock.each(self._end[summed])
        yield MemorySpan(self._clock.each(arrives), end, self._whole[summed], GRADIENTS)
        yield MemorySpan(self._clock.each(self._begin[summed]), end, self._whole[summed], PASSING)


class _Tied:
    """Parameters on devices that only read them: tied weights of another pipeline stage."""

    def __init__(self, parts: ShardBytes, clock: _Clock, timeline: Timeline) -> None:
        problem, template, self._clock = parts.problem, parts.problem.template, clock
        source = template.leg_source
        bundle = np.repeat(np.arange(len(template.maker)), np.diff(template.leg_start))
        consumers = np.flatnonzero(
            template.parameters[bundle] & (template.leg_unit != template.source_maker[source])
        )
        self._maker, self._unit = (
            template.source_maker[source[consumers]],
            template.leg_unit[consumers],
        )
        split_ways = ways(template.leg_there[consumers], parts.degrees[self._unit])
        self._copy = template.source_bytes[source[consumers]] / split_ways
        wide = np.maximum(1.0, 4 / problem.joined.width[source[consumers]])
        held = self._copy * (wide if problem.cluster.device.running.wide else 1.0)
        learns = template.trained[source[consumers]] & template.leg_flows[consumers]
        self._gradient = np.where(learns, held, 0.0)
        begin = timeline.end - problem.tasks.duration
        self._arrives = begin[template.carry[bundle[consumers], 0]]
        sums = problem.options.sums
        self._returned = timeline.end[template.carry_back[bundle[consumers], :sums]]
        self._each_use = problem.options.zero == WHOLLY_SHARDED

    def spans(self, working: Flags) -> Iterator[MemorySpan]:
        """Copies and gradients on a device on which some units work."""
        on_device = working[self._unit] & ~working[self._maker]
        if not on_device.any():
            return
        clock, unit = self._clock, self._unit[on_device]
        reads, returns, returned = clock.reads[unit], clock.returns[unit], clock.returned[unit]
        copy, gradient = self._copy[on_device], self._gradient[on_device]
        if self._each_use:
            yield MemorySpan(reads, clock.read[unit], copy, PASSING)
            yield MemorySpan(returns, returned, np.where(clock.flows[unit], copy, 0.0), PASSING)
        else:
            last = np.where(clock.flows[unit, None], returned, clock.read[unit]).max(axis=1)
            arrives = clock.each(self._arrives[on_device, None])
            yield MemorySpan(arrives, clock.each(last[:, None]), copy, PASSING)
        sums = self._returned.shape[1]
        begin, end = clock.each(returns[:, :sums]), clock.each(self._returned[on_device])
        yield MemorySpan(begin, end, gradient, GRADIENTS)
        if sums == 1:
            yield MemorySpan(*clock.later(unit), gradient, PASSING)


class _Fetched:
    """Sharded parameters, put together for each use."""

    def __init__(self, parts: ShardBytes, timeline: Timeline) -> None:
        problem, template = parts.problem, parts.problem.template
        source = parameters_of(problem)
        self.unit = template.source_maker[source]
        self.size = parameter_bytes_by_source(parts, source).fetched
        bundle = np.repeat(np.arange(len(template.maker)), np.diff(template.source_start))[source]
        begin = timeline.end - problem.tasks.duration
        self.forward, self.backward = begin[template.carry[bundle]], begin[template.again[bundle]]
        """[parameters, micro-batches] when fetching begins, in either pass."""
        self._came = timeline.end[template.carry[bundle]], timeline.end[template.again[bundle]]
        """When it ends."""

    def spans(self, clock: _Clock, working: Flags) -> Iterator[MemorySpan]:
        """Those on a device on which some units work."""
        forward, backward = working[self.unit], (working & clock.flows)[self.unit]
        yield MemorySpan(
            self.forward[forward], clock.read[self.unit[forward]], self.size[forward], PASSING
        )
        yield MemorySpan(
            self.backward[backward],
            clock.returned[self.unit[backward]],
            self.size[backward],
            PASSING,
        )
        arrived, again = self._came
        yield MemorySpan(self.forward[forward], arrived[forward], self.size[forward], PASSING)
        yield MemorySpan(self.backward[backward], again[backward], self.size[backward], PASSING)


class _Passing:
    """Tensors between units while nobody keeps them, and their gradients."""

    def __init__(self, parts: ShardBytes, clock: _Clock) -> None:
        template = parts.problem.template
        self.clock, self.view = clock, parts.inventory.passed_view
        passed = len(self.view)
        consumers = slice(0, template.leg_start[passed])
        self.maker, self.kept = template.maker[:passed], parts.passed_kept
        self.start, self.unit = template.leg_start[: passed + 1], template.leg_unit[consumers]
        self.tensor = np.repeat(np.arange(passed), np.diff(self.start))
        size = template.source_bytes[:passed]
        self.made = size / ways(template.source_there[:passed], parts.degrees[self.maker])
        self.read = size[self.tensor] / ways(
            template.leg_there[consumers], parts.degrees[self.unit]
        )
        self.backward = parts.inventory.passed_back & clock.flows[self.maker]
        self.leg_back = template.leg_flows[consumers]

    def spans(self, working: Flags) -> Iterator[MemorySpan]:
        """Those on a device on which some units work."""
        clock = self.clock
        on_device = working[self.maker]
        passing = on_device & ~self.kept & ~self.view
        last = self._over(working, passing, clock.read, np.maximum)
        yield MemorySpan(clock.reads[self.maker[passing]], last, self.made[passing], PASSING)
        backward = on_device & self.backward
        first = self._over(working & clock.flows, backward, clock.returns, np.minimum)
        # The gradient of a view becomes that of what it is a view of.
        until = np.where(
            self.view[backward, None],
            clock.returns[self.maker[backward]],
            clock.returned[self.maker[backward]],
        )
        yield MemorySpan(first, until, self.made[backward], PASSING)
        came = working[self.unit] & ~on_device[self.tensor]
        read, returned = came & ~self.kept[self.tensor], came & self.leg_back
        unit = self.unit[read]
        yield MemorySpan(clock.reads[unit], clock.read[unit], self.read[read], PASSING)
        unit = self.unit[returned]
        yield MemorySpan(clock.returns[unit], clock.returned[unit], self.read[returned], PASSING)

    def _over(self, working: Flags, which: Flags, times: Ints, extreme: np.ufunc) -> Ints:
        """The first or the last time at some tensors' makers and those readers that are meant."""
        moments = times[self.maker]
        consumers = np.flatnonzero(which[self.tensor] & working[self.unit])
        extreme.at(moments, self.tensor[consumers], times[self.unit[consumers]])
        return moments[which]
