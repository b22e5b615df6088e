"""Bytes on every device while a plan runs. Enters: a laid-out problem and its timeline.
Leaves: what each device holds over time, and the fullest moment.

    standing   all the time: its part of the parameters and of the optimizer's state, buffers, its
               part of the inputs, libraries' buffers
    gradients  of parameters: from the first backward task of the unit that makes them
    kept       from the start of a unit's forward task to the end of its backward task: what its
               members keep, as pieces; in a layer that runs again only what comes from outside, and
               the rest from the layer's first backward task on
    passing    what nobody keeps: a tensor from its making to its last reading, the gradient of one
               from its first reader's backward task to its maker's, what members of a unit hand
               each other and what they need on their way; at the end of the step the update's
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from meshwright.foundation.units import Bytes, Seconds
from meshwright.parallelize.reshard import Codes
from meshwright.plan.model import Held
from meshwright.simulate import full
from meshwright.simulate.bundles import Bundle
from meshwright.simulate.parts import Parts, Standing
from meshwright.simulate.prices import NANO
from meshwright.simulate.problem import Problem
from meshwright.simulate.tasks import Ints, Timeline

GRADIENTS, KEPT, PASSING = range(3)

Event = tuple[int, float, int]
"""A moment in nanoseconds, so many bytes more or fewer, and of what."""


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
        parameters=Bytes(round(own.parameters)),
        gradients=Bytes(int(curve.gradients[moment])),
        optimizer=Bytes(round(own.optimizer)),
        activations=Bytes(int(curve.kept[moment]) + round(own.inputs)),
        workspace=Bytes(int(curve.passing[moment]) + round(own.libraries)),
        device=curve.device,
        seconds=Seconds(int(curve.nanoseconds[moment]) / NANO),
    )


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
    for device, units in parts.devices():
        own = set(units)
        events = [event for unit in units for event in _of_unit(parts, clock, unit, own)]
        for bundle in problem.bundles:
            if not bundle.parameters:
                events += _of_bundle(parts, clock, bundle, own)
        # At one moment what goes goes first.
        events.sort()
        events.append((timeline.makespan, sum(parts.update[unit] for unit in units), PASSING))
        yield Curve(
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

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        begin = timeline.end - problem.tasks.duration
        forward, backward = problem.bones.forward, problem.bones.backward
        self.micro_batches = range(forward.shape[1])
        self.flows = problem.bones.flows
        self.reads, self.read = begin[forward].tolist(), timeline.end[forward].tolist()
        """[units, micro-batches] the start and the end of forward tasks."""
        self.returns, self.returned = begin[backward].tolist(), timeline.end[backward].tolist()
        """The same of backward tasks."""


def _during(begin: int, end: int, size: float, what: int) -> Iterator[Event]:
    if size and end > begin:
        yield begin, size, what
        yield end, -size, what


def _of_unit(parts: Parts, clock: _Clock, unit: int, own: set[int]) -> Iterator[Event]:
    """What a unit's members keep, hand each other and need."""
    together = [other for other in parts.layer_of(unit) if other in own and clock.flows[other]]
    for m in clock.micro_batches:
        yield from _during(clock.reads[unit][m], clock.read[unit][m], parts.forward[unit], PASSING)
        if clock.flows[unit]:
            begin, end = clock.returns[unit][m], clock.returned[unit][m]
            yield from _during(clock.reads[unit][m], end, parts.kept[unit], KEPT)
            yield from _during(begin, end, parts.backward[unit], PASSING)
            again = min((clock.returns[other][m] for other in together), default=begin)
            yield from _during(again, end, parts.rerun[unit], KEPT)
    if clock.flows[unit]:
        yield clock.returns[unit][0], parts.gradients[unit], GRADIENTS


def _of_bundle(parts: Parts, clock: _Clock, bundle: Bundle, own: set[int]) -> Iterator[Event]:
    """A tensor between units while nobody keeps it, and its gradient."""
    (source,) = bundle.sources
    readers = sorted({leg.unit for leg in bundle.legs if leg.unit in own})
    kept, moved = parts.is_kept(source.name), parts.is_view_of_another(source.name)
    if bundle.maker in own:
        size = parts.share(bundle.maker, source)
        backs = [r for r in readers if clock.flows[r]]
        for m in clock.micro_batches:
            if not kept and not moved:
                last = max(clock.read[u][m] for u in (bundle.maker, *readers))
                yield from _during(clock.reads[bundle.maker][m], last, size, PASSING)
            if clock.flows[bundle.maker] and source.port.back is not None:
                first = min(clock.returns[u][m] for u in (bundle.maker, *backs))
                # The gradient of a view becomes that of what it is a view of.
                until = clock.returns if moved else clock.returned
                yield from _during(first, until[bundle.maker][m], size, PASSING)
        return
    for leg in bundle.legs:
        if leg.unit in own:
            size = source.bytes / parts.ways(leg.unit, leg.port.there)
            for m in clock.micro_batches:
                if not kept:
                    begin, end = clock.reads[leg.unit][m], clock.read[leg.unit][m]
                    yield from _during(begin, end, size, PASSING)
                if clock.flows[leg.unit] and leg.port.back is not None:
                    begin, end = clock.returns[leg.unit][m], clock.returned[leg.unit][m]
                    yield from _during(begin, end, size, PASSING)
