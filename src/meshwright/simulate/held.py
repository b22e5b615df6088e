"""Bytes on every device while a plan runs. Enters: a laid-out problem and its timeline.
Leaves: what each device holds over time, and the fullest moment.

All the time a device holds its part of the parameters and of the optimizer's state, buffers, its
part of the inputs, what its largest operator reads and makes, and libraries' buffers. Gradients of
parameters appear with the backward pass of the unit that makes them; at the end of the step the
update has its own numbers on the way, but no activations are left. From the start of a unit's
forward task to the end of its backward task a device holds what the unit's members keep, as
pieces; a tensor that several keep in the same layout counts once. In a layer that runs again only
what comes from outside is kept; what its units would have kept is there while it runs again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.foundation.units import Bytes, Seconds
from meshwright.graph.counts import view_roots
from meshwright.graph.families import family_of
from meshwright.graph.layers import layers
from meshwright.graph.model import ITEM_BYTES, OperatorGraph
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import PARTIAL, State
from meshwright.parallelize.units import SAMPLE, Unit
from meshwright.plan.model import Held
from meshwright.price.memory import LIBRARY, STATES, UPDATE
from meshwright.simulate.places import subcube
from meshwright.simulate.prices import COMPUTE, NANO
from meshwright.simulate.problem import Problem
from meshwright.simulate.tasks import Ints, Timeline


class Curve(NamedTuple):
    """What one device holds: from each moment on, so many bytes."""

    device: str
    nanoseconds: Ints
    bytes: Ints
    gradients: Ints
    """How many of them are gradients of parameters."""
    standing: Standing


class Standing(NamedTuple):
    """Bytes that a device holds all the time."""

    parameters: float
    optimizer: float
    inputs: float
    workspace: float


def fullest(problem: Problem, roles: Codes, timeline: Timeline) -> Held:
    """The fullest moment of the fullest device."""
    curve = max(curves(problem, roles, timeline), key=lambda own: int(own.bytes.max()))
    moment, own = int(curve.bytes.argmax()), curve.standing
    return Held(
        parameters=Bytes(round(own.parameters)),
        gradients=Bytes(int(curve.gradients[moment])),
        optimizer=Bytes(round(own.optimizer)),
        activations=Bytes(
            int(curve.bytes[moment] - curve.gradients[moment]) - round(sum(own) - own.inputs)
        ),
        workspace=Bytes(round(own.workspace)),
        device=curve.device,
        seconds=Seconds(int(curve.nanoseconds[moment]) / NANO),
    )


def curves(problem: Problem, roles: Codes, timeline: Timeline) -> Iterator[Curve]:
    """What every device holds over time; one device stands for all that do the same."""
    parts = _Parts(problem, roles)
    forward, backward = problem.bones.forward, problem.bones.backward
    for device, units in parts.devices():
        events: list[tuple[int, float, float]] = []
        for unit in units:
            for there, back in zip(forward[unit], backward[unit], strict=True):
                if problem.tasks.live[back]:
                    begin = int(timeline.end[there] - problem.tasks.duration[there])
                    events.append((begin, parts.kept[unit], 0.0))
                    events.append((int(timeline.end[back]), -parts.kept[unit], 0.0))
            first = int(backward[unit, 0])
            if problem.tasks.live[first]:
                appears = int(timeline.end[first] - problem.tasks.duration[first])
                events.append((appears, parts.gradients[unit], parts.gradients[unit]))
        events.sort()
        standing = parts.standing(units)
        updating = max(0.0, sum(parts.update[unit] for unit in units) - parts.passing(units))
        events.append((timeline.makespan, updating, 0.0))
        held = np.cumsum([sum(standing), *(change for _, change, _ in events)])
        gradients = np.cumsum([0.0, *(own for _, _, own in events)])
        yield Curve(
            device,
            np.array([0, *(moment for moment, _, _ in events)], np.int64),
            np.round(held).astype(np.int64),
            np.round(gradients).astype(np.int64),
            standing,
        )


class _Parts:
    """What devices hold of a problem's tensors under given roles."""

    def __init__(self, problem: Problem, roles: Codes) -> None:
        self.problem, self.roles = problem, roles
        self.kept = [0.0] * len(problem.units)
        """For each unit what it keeps from its forward to its backward pass."""
        self.rerun: dict[object, float] = defaultdict(float)
        """For each layer that runs again what it then holds."""
        self.largest = [0.0] * len(problem.units)
        """For each unit what its largest member reads and makes."""
        self.parameters = [0.0] * len(problem.units)
        """For each unit its part of the parameters that lie with it."""
        self.gradients = [0.0] * len(problem.units)
        self.optimizer = [0.0] * len(problem.units)
        self.update = [0.0] * len(problem.units)
        """For each unit what the optimizer holds on the way."""
        self._layer = _layers(problem.graph, problem.units) if problem.options.recompute else {}
        self._maker = {t: n for n, unit in enumerate(problem.units) for t in _made(problem, unit)}
        self._weigh()
        self._weigh_parameters()

    def devices(self) -> Iterator[tuple[str, list[int]]]:
        """Every device that stands for its class, with the units that work on it."""
        places = self.problem.places
        cubes = [int(subcube(own, places.radix)) for own in self.roles]
        inside = [
            set(places.set_resource[places.set_start[cube] : places.set_start[cube + 1]].tolist())
            for cube in cubes
        ]
        for resource, kind in enumerate(places.kind):
            if kind == COMPUTE:
                yield (
                    places.names[resource],
                    [unit for unit, own in enumerate(inside) if resource in own],
                )

    def standing(self, units: list[int]) -> Standing:
        """What a device holds all the time."""
        return Standing(
            parameters=sum(self.parameters[unit] for unit in units),
            optimizer=sum(self.optimizer[unit] for unit in units),
            inputs=self._inputs,
            workspace=self.passing(units) + LIBRARY,
        )

    def passing(self, units: list[int]) -> float:
        """What operators hold on the way, and what a layer that runs again does."""
        largest = max((self.largest[unit] for unit in units), default=0.0)
        again = (self.rerun.get(self._layer.get(unit), 0.0) for unit in units)
        return largest + max(again, default=0.0)

    def _weigh_parameters(self) -> None:
        options = self.problem.options
        for bundle in self.problem.bundles:
            if not bundle.parameters:
                continue
            for number, source in enumerate(bundle.sources):
                unit = source.maker
                leg = next(leg for leg in bundle.legs if leg.tensor == number)
                own = source.bytes / self._ways(unit, source.port.there)
                copies = self._copies(unit, leg.port.back)
                dtype = self.problem.graph.specs[source.name].dtype
                wide = own * max(1.0, 4 / ITEM_BYTES[dtype])
                numbers, copy = (wide, wide) if options.mixed else (own, 0.0)
                self.parameters[unit] += own / (copies if options.zero == 3 else 1)
                if source.trained:
                    self.gradients[unit] += own / (copies if options.zero >= 2 else 1)
                    state = STATES[options.optimizer] * numbers + copy
                    self.optimizer[unit] += state / (copies if options.zero >= 1 else 1)
                    self.update[unit] += UPDATE[options.optimizer] * numbers

    @cached_property
    def _inputs(self) -> float:
        """Buffers, and the share of the inputs that the samples of a device take."""
        graph, micro = self.problem.graph, self.problem.options.micro_batches
        ways = max(
            (self._sample_ways(number, unit) for number, unit in enumerate(self.problem.units)),
            default=1,
        )
        fed = sum(tensor.spec.bytes for tensor in graph.inputs)
        return sum(tensor.spec.bytes for tensor in graph.buffers) + fed / ways / micro

    def _sample_ways(self, number: int, unit: Unit) -> int:
        samples = [s for s, own in enumerate(unit.splits) if own.name == SAMPLE]
        return self._degree(number, samples[0]) if samples else 1

    def _weigh(self) -> None:
        problem, micro = self.problem, self.problem.options.micro_batches
        operators = {operator.name: operator for operator in problem.graph.operators}
        roots, whole = view_roots(problem.graph), problem.graph.specs
        seen: set[object] = set()
        for number, unit in enumerate(problem.units):
            degrees = {split: self._degree(number, split) for split in range(len(unit.splits))}
            for member in unit.members:
                piece, own = member.piece(degrees), operators[member.operator]
                self.largest[number] = max(self.largest[number], piece.bytes / micro)
                if not any(member.wanted):
                    continue
                saved = family_of(piece.kind).saved(piece, member.wanted)
                specs = [(own.inputs[i], piece.inputs[i]) for i in saved.inputs]
                specs += [(own.outputs[i].name, piece.outputs[i]) for i in saved.outputs]
                self._keep(number, unit.name, saved.extra / micro)
                for name, spec in specs:
                    root = roots[name] if name is not None else None
                    key = (root, self.roles[number].tobytes())
                    if root is None or name is None or spec is None or key in seen:
                        continue
                    if root in self._maker:
                        seen.add(key)
                        share = spec.elements / max(1, whole[name].elements) / micro
                        self._keep(number, root, whole[root].bytes * share)

    def _keep(self, number: int, name: str | None, size: float) -> None:
        """Count what a unit keeps: as kept, or as there again when its layer runs again."""
        layer = self._layer.get(number)
        maker = self._maker.get(name or "", number)
        if layer is not None and self._layer.get(maker) == layer:
            self.rerun[layer] += size
        else:
            self.kept[number] += size

    def _degree(self, number: int, split: int) -> int:
        return math.prod(
            factor.size
            for factor, role in zip(self.problem.factors, self.roles[number], strict=True)
            if role == split
        )

    def _ways(self, number: int, states: tuple[State, ...]) -> int:
        """Into how many parts a tensor is cut, given its state under each split of a unit."""
        return math.prod(self._degree(number, s) for s, state in enumerate(states) if state >= 0)

    def _copies(self, number: int, back: tuple[State, ...] | None) -> int:
        """How many devices make parts of the same gradient."""
        states = enumerate(back or ())
        return math.prod(self._degree(number, s) for s, state in states if state == PARTIAL)


def _made(problem: Problem, unit: Unit) -> Iterator[str]:
    producers = {operator.name: operator for operator in problem.graph.operators}
    for member in unit.members:
        yield from (tensor.name for tensor in producers[member.operator].outputs)


def _layers(graph: OperatorGraph, units: tuple[Unit, ...]) -> dict[int, object]:
    """The repeated layer that each unit lies in, if any."""
    layer = {
        graph.operators[position].name: (repeat.start, index)
        for repeat in layers(graph)
        for index in range(repeat.count)
        for position in repeat.layer(index)
    }
    return {n: layer[unit.name] for n, unit in enumerate(units) if unit.name in layer}
