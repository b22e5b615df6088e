"""The memory timeline and its peak. Enters: a laid-out problem and its timeline. Leaves: what each
device holds over time, and the fullest moment.

    standing   all the time: its part of the parameters and of the optimizer's state, buffers, its
               part of the inputs, libraries' buffers
    gradients  of parameters: whole from the first backward task of the unit that makes them, added
               up over micro-batches, until they are summed over devices; then a device's part
    kept       from the start of a unit's forward task to the end of its backward task: what its
               members keep, as pieces; in a layer that runs again only what comes from outside, and
               the rest from the layer's first backward task on
    passing    what nobody keeps: a tensor from its making to its last reading, the gradient of one
               from its first reader's backward task to its maker's, what members of a unit hand
               each other and what they need on their way; gradients of a later micro-batch until
               they are added, and a row of those that are being summed over devices; sharded
               parameters (ZeRO 3) from their fetching to the end of their use, twice while they
               arrive; at the end of the step the update's
    framework  what is no tensor, where the device's description has an `Overhead`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.units import Bytes, Seconds
from meshwright.cluster.overhead import Overhead
from meshwright.lower.script import WHOLLY_SHARDED
from meshwright.plan.model import Held
from meshwright.sharding.reshard import Codes
from meshwright.simulate import full
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.memory.shard_bytes import (
    Parts,
    Standing,
    communicators,
    devices,
    lying_each,
    parameters_of,
    ways,
)
from meshwright.simulate.problem import Problem
from meshwright.simulate.task_template import Floats
from meshwright.simulate.tasks import Flags, Indices, Ints, Timeline

GRADIENTS, KEPT, PASSING = range(3)


class Span(NamedTuple):
    """Bytes that are there for a while, once for each micro-batch."""

    begin: Ints
    """[spans, micro-batches] in nanoseconds."""
    end: Ints
    """Not there at all if not later."""
    size: Floats
    """[spans]"""
    what: int


class Curve(NamedTuple):
    """What one device holds besides what stands: from each moment on, so many bytes."""

    device: str
    nanoseconds: Ints
    gradients: Ints
    """Of parameters."""
    kept: Ints
    """For the backward pass."""
    passing: Ints
    standing: Standing

    @property
    def bytes(self) -> Ints:
        """All of it."""
        return self.gradients + self.kept + self.passing + round(sum(self.standing))


def fullest(problem: Problem, roles: Codes, timeline: Timeline) -> Held:
    """The fullest moment of the fullest device."""
    curve = max(curves(problem, roles, timeline), key=lambda own: int(own.bytes.max()))
    moment, own = int(curve.bytes.argmax()), curve.standing
    return Held(
        framework=_framework(problem, roles, int(curve.bytes.max())),
        parameters=Bytes(round(own.parameters)),
        gradients=Bytes(int(curve.gradients[moment])),
        optimizer=Bytes(round(own.optimizer)),
        activations=Bytes(int(curve.kept[moment]) + round(own.inputs)),
        workspace=Bytes(int(curve.passing[moment]) + round(own.libraries)),
        device=curve.device,
        seconds=Seconds(int(curve.nanoseconds[moment]) / NANO),
    )


def together(problem: Problem, roles: Codes, timeline: Timeline) -> Bytes:
    """What all devices hold, each at its fullest moment; classes of devices are equally large."""
    each = [int(curve.bytes.max()) for curve in curves(problem, roles, timeline)]
    each = [own + _framework(problem, roles, own) for own in each]
    return Bytes(sum(each) * problem.cluster.devices // len(each))


def _framework(problem: Problem, roles: Codes, tensors: int) -> Bytes:
    """What a device holds beside so many bytes of tensors."""
    overhead = problem.cluster.device.overhead
    if not isinstance(overhead, Overhead):
        return Bytes(0)
    return overhead.held(tensors, communicators(roles))


def within(problem: Problem, memory: Bytes) -> Callable[[Codes], bool]:
    """Whether no device ever holds more than so much, for roles of a problem.

    The problem is left laid out with the roles that were asked about.
    """

    def fits(roles: Codes) -> bool:
        problem.lay(roles)
        return fullest(problem, roles, full.simulate(problem.tasks)).total <= memory

    return fits


def curves(problem: Problem, roles: Codes, timeline: Timeline) -> Iterator[Curve]:
    """What every device holds over time; one device stands for all that do the same."""
    parts, clock = Parts(problem, roles), _Clock(problem, timeline)
    passing = _Passing(parts, clock)
    gradients = _Gradients(parts, clock, timeline)
    fetched = _Fetched(parts, timeline) if problem.options.zero == WHOLLY_SHARDED else None
    known: dict[bytes, Curve] = {}
    for device, own in devices(problem, roles):
        # Devices for the same units hold the same.
        if own.tobytes() not in known:
            spans = [*_of_units(parts, clock, own), *passing.spans(own), *gradients.spans(own)]
            spans += fetched.spans(clock, own) if fetched else ()
            events = _events(spans, *gradients.steps(own))
            known[own.tobytes()] = _curve(parts, own, events, timeline.makespan)
        yield known[own.tobytes()]._replace(device=device)


def _curve(parts: Parts, own: Flags, events: _Events, makespan: int) -> Curve:
    """What a device holds on which some units work, given what comes and goes."""
    moments, change, what = events
    last = sum(parts.lying.update[own].tolist())
    changes = np.concatenate(([0.0], change, [last]))
    kinds = np.concatenate(([PASSING], what, [PASSING]))

    def summed(kind: int) -> Ints:
        return np.round(np.cumsum(np.where(kinds == kind, changes, 0.0))).astype(np.int64)

    return Curve(
        device="",
        nanoseconds=np.concatenate(([0], moments, [makespan])),
        gradients=summed(GRADIENTS),
        kept=summed(KEPT),
        passing=summed(PASSING),
        standing=parts.standing(own),
    )


_Events = tuple[Ints, Floats, Indices]


def _events(spans: Sequence[Span], moments: Ints, gradients: Floats) -> _Events:
    """Moments, so many bytes more or fewer, and of what; at one moment what goes goes first.

    Rows of (bytes, what) are sorted before moments are, which are many more.
    """
    begin, end = (np.concatenate([own[i] for own in spans]) for i in (0, 1))
    size = np.concatenate([own.size for own in spans])
    what = np.repeat([own.what for own in spans], [len(own.size) for own in spans])
    there = (size != 0)[:, None] & (end > begin)
    first = np.zeros((len(moments), begin.shape[1]), np.bool_)
    first[:, 0] = True
    when = np.concatenate((begin, end, np.repeat(moments[:, None], begin.shape[1], axis=1)))
    counts = np.concatenate((there, there, first))
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

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        begin = timeline.end - problem.tasks.duration
        forward, backward = problem.bones.forward, problem.bones.backward
        self.flows = problem.bones.flows
        self.reads, self.read = begin[forward], timeline.end[forward]
        """[units, micro-batches] the start and the end of forward tasks."""
        self.returns, self.returned = begin[backward], timeline.end[backward]
        """The same of backward tasks."""


def _of_units(parts: Parts, clock: _Clock, own: Flags) -> Iterator[Span]:
    """What units' members keep, hand each other and need."""
    back = np.flatnonzero(own & clock.flows)
    reads, returns, returned = clock.reads[back], clock.returns[back], clock.returned[back]
    yield Span(clock.reads[own], clock.read[own], np.array(parts.forward)[own], PASSING)
    yield Span(reads, returned, np.array(parts.kept)[back], KEPT)
    yield Span(returns, returned, np.array(parts.backward)[back], PASSING)
    rerun = np.array(parts.rerun)[back]
    if rerun.any():
        layer = parts.inventory.layer[back]
        again = np.full((layer.max() + 1, returns.shape[1]), np.iinfo(np.int64).max)
        np.minimum.at(again, layer, returns)
        yield Span(again[layer], returned, rerun, KEPT)


class _Gradients:
    """Gradients of parameters: added up over micro-batches, then summed over devices."""

    def __init__(self, parts: Parts, clock: _Clock, timeline: Timeline) -> None:
        problem, bones, self._clock = parts.problem, parts.problem.bones, clock
        source = parameters_of(problem)
        self._unit = bones.source_maker[source]
        lying = lying_each(problem, source, parts.degrees[self._unit])
        self._whole, self._summed = lying.gradients, lying.summed
        bundle = np.repeat(np.arange(len(bones.maker)), np.diff(bones.source_start))[source]
        task = bones.back[bundle, 0]
        self._travels = problem.tasks.live[task] & (self._whole > 0)
        self._end = timeline.end[task]
        self._begin = self._end - problem.tasks.duration[task]

    def steps(self, own: Flags) -> tuple[Ints, Floats]:
        """Moments, and by how many bytes the gradients on a device on which some units work grow;
        they shrink when each device is left with its part of a sum.
        """
        here = (own & self._clock.flows)[self._unit]
        summed = here & self._travels
        moments = np.concatenate((self._clock.returns[self._unit[here], 0], self._end[summed]))
        return moments, np.concatenate((self._whole[here], (self._summed - self._whole)[summed]))

    def spans(self, own: Flags) -> Iterator[Span]:
        """What they take besides: the next one until it is added, and the row that is summed."""
        here = (own & self._clock.flows)[self._unit]
        unit = self._unit[here]
        begin, end = self._clock.returns[unit].copy(), self._clock.returned[unit]
        begin[:, 0] = end[:, 0]
        yield Span(begin, end, self._whole[here], PASSING)
        summed = here & self._travels
        begin, end = np.zeros((2, int(summed.sum()), begin.shape[1]), np.int64)
        begin[:, 0], end[:, 0] = self._begin[summed], self._end[summed]
        yield Span(begin, end, self._whole[summed], PASSING)


class _Fetched:
    """Sharded parameters, put together for each use."""

    def __init__(self, parts: Parts, timeline: Timeline) -> None:
        problem, bones = parts.problem, parts.problem.bones
        source = parameters_of(problem)
        self.unit = bones.source_maker[source]
        self.size = lying_each(problem, source, parts.degrees[self.unit]).fetched
        bundle = np.repeat(np.arange(len(bones.maker)), np.diff(bones.source_start))[source]
        begin = timeline.end - problem.tasks.duration
        self.there, self.back = begin[bones.carry[bundle]], begin[bones.again[bundle]]
        """[parameters, micro-batches] when fetching begins, in either pass."""
        self._came = timeline.end[bones.carry[bundle]], timeline.end[bones.again[bundle]]
        """When it ends."""

    def spans(self, clock: _Clock, own: Flags) -> Iterator[Span]:
        """Those on a device on which some units work."""
        here, back = own[self.unit], (own & clock.flows)[self.unit]
        yield Span(self.there[here], clock.read[self.unit[here]], self.size[here], PASSING)
        yield Span(self.back[back], clock.returned[self.unit[back]], self.size[back], PASSING)
        there, again = self._came
        yield Span(self.there[here], there[here], self.size[here], PASSING)
        yield Span(self.back[back], again[back], self.size[back], PASSING)


class _Passing:
    """Tensors between units while nobody keeps them, and their gradients."""

    def __init__(self, parts: Parts, clock: _Clock) -> None:
        bones = parts.problem.bones
        self.clock, self.view = clock, parts.inventory.passed_view
        passed = len(self.view)
        legs = slice(0, bones.leg_start[passed])
        self.maker, self.kept = bones.maker[:passed], parts.passed_kept
        self.start, self.unit = bones.leg_start[: passed + 1], bones.leg_unit[legs]
        self.tensor = np.repeat(np.arange(passed), np.diff(self.start))
        size = bones.source_bytes[:passed]
        self.made = size / ways(bones.source_there[:passed], parts.degrees[self.maker])
        self.read = size[self.tensor] / ways(bones.leg_there[legs], parts.degrees[self.unit])
        self.back = parts.inventory.passed_back & clock.flows[self.maker]
        self.leg_back = bones.leg_flows[legs]

    def spans(self, own: Flags) -> Iterator[Span]:
        """Those on a device on which some units work."""
        clock = self.clock
        here = own[self.maker]
        made = here & ~self.kept & ~self.view
        last = self._over(own, made, clock.read, np.maximum)
        yield Span(clock.reads[self.maker[made]], last, self.made[made], PASSING)
        back = here & self.back
        first = self._over(own & clock.flows, back, clock.returns, np.minimum)
        # The gradient of a view becomes that of what it is a view of.
        until = np.where(
            self.view[back, None], clock.returns[self.maker[back]], clock.returned[self.maker[back]]
        )
        yield Span(first, until, self.made[back], PASSING)
        came = own[self.unit] & ~here[self.tensor]
        read, returned = came & ~self.kept[self.tensor], came & self.leg_back
        unit = self.unit[read]
        yield Span(clock.reads[unit], clock.read[unit], self.read[read], PASSING)
        unit = self.unit[returned]
        yield Span(clock.returns[unit], clock.returned[unit], self.read[returned], PASSING)

    def _over(self, own: Flags, which: Flags, times: Ints, extreme: np.ufunc) -> Ints:
        """The first or the last time at some tensors' makers and those readers that are meant."""
        found = times[self.maker]
        legs = np.flatnonzero(which[self.tensor] & own[self.unit])
        extreme.at(found, self.tensor[legs], times[self.unit[legs]])
        return found[which]
