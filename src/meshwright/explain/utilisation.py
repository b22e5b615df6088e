"""Resource utilisation of a simulated step: compute streams, links, op groups and edges. Enters: a
`Simulation`. Leaves: who holds which resource when, what each unit and each bundle of tensors
costs, and how busy every kind of resource is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from meshwright.base.quantities import Bytes, Seconds
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.host import LAUNCH
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import Simulation
from meshwright.simulate.tasks import NOWHERE, TaskGraph, Timeline, loads


class LinkUse(NamedTuple):
    """A task on one of its resources, in nanoseconds."""

    task: int
    resource: int
    start: int
    hold: int


class Cost(NamedTuple):
    """What one unit or bundle costs in one direction, over all micro-batches."""

    kind: str
    subject: str
    times: int
    """How many micro-batches."""
    seconds: Seconds
    share: float
    """Of the step; shares add up to more than 1 where tasks overlap."""


class TimeSpent(NamedTuple):
    """What a unit takes of a step, over all micro-batches; the two may overlap."""

    computing: Seconds
    """Both passes, and updating the parameters that it reads first."""
    moving: Seconds
    """What it makes and what it reads first of parameters, and their gradients."""


class Occupancy(NamedTuple):
    """How long the resources of one kind are held."""

    kind: str
    resources: int
    """How many there are; one stands for all that are interchangeable."""
    busiest: Seconds
    busiest_share: float
    mean_share: float


def uses(graph: TaskGraph, timeline: Timeline) -> Iterator[LinkUse]:
    """Every task on every resource that it holds, in the order of taking them (see `tasks`)."""
    free = [0] * len(graph.resource_kind)
    for task in timeline.order.tolist():
        held = {
            r: int(graph.hold[task, graph.resource_kind[r]])
            for place in graph.places[task].tolist()
            if place != NOWHERE
            for r in graph.set_resource[
                graph.set_start[place] : graph.set_start[place + 1]
            ].tolist()
        }
        for resource, hold in held.items():
            if hold:
                together = graph.joint[task]
                alone = max(int(timeline.ready[task]), free[resource])
                start = int(timeline.start[task]) if together else alone
                free[resource] = start + hold
                yield LinkUse(task, resource, start, hold)


def costliest(simulation: Simulation, most: int) -> list[Cost]:
    """The units and bundles that take the longest, each way by itself."""
    problem, timeline = simulation.problem, simulation.timeline
    labels, durations = problem.labels, problem.tasks.duration
    total: dict[tuple[str, int], list[int]] = {}
    for task in sorted(timeline.order.tolist()):
        total.setdefault((labels.kind[task], labels.subject[task]), []).append(int(durations[task]))
    ranked = sorted(total.items(), key=lambda item: -sum(item[1]))[:most]
    return [
        Cost(
            kind,
            subject_of(problem, kind, subject),
            len(times),
            Seconds(sum(times) / NANO),
            sum(times) / timeline.makespan,
        )
        for (kind, subject), times in ranked
    ]


def time_by_op_group(simulation: Simulation) -> tuple[TimeSpent, ...]:
    """What every unit takes, in the order of the plan's units."""
    problem, labels = simulation.problem, simulation.problem.labels
    computing, moving = ([0] * len(problem.units) for _ in range(2))
    durations = problem.tasks.duration.tolist()
    for task in simulation.timeline.order.tolist():
        kind, subject = labels.kind[task], labels.subject[task]
        if kind == LAUNCH:
            continue
        unit = subject if is_op_group_pass(kind) else problem.bundles[subject].maker
        total = computing if is_op_group_pass(kind) or kind == "update" else moving
        total[unit] += durations[task]
    pairs = zip(computing, moving, strict=True)
    return tuple(
        TimeSpent(Seconds(computed / NANO), Seconds(sent / NANO)) for computed, sent in pairs
    )


def occupancies(simulation: Simulation) -> list[Occupancy]:
    """How busy the compute streams and every kind of link are."""
    problem, timeline = simulation.problem, simulation.timeline
    busy = loads(problem.tasks)
    per_kind = []
    for number, name in enumerate(problem.prices.kinds):
        times = busy[problem.places.kind == number].tolist()
        if times:
            whole = max(1, timeline.makespan)
            share = max(times) / whole
            mean = sum(times) / len(times) / whole
            per_kind.append(Occupancy(name, len(times), Seconds(max(times) / NANO), share, mean))
    return per_kind


def is_op_group_pass(kind: str) -> bool:
    """Whether tasks of a kind (`Labels.kind`) run a unit; the others are about bundles."""
    return kind in ("forward", "backward")


def subject_of(problem: StepModel, kind: str, subject: int) -> str:
    """The unit or the tensors that tasks are about, in words."""
    if is_op_group_pass(kind) or kind == LAUNCH:
        unit = problem.units[subject]
        others = len(unit.members) - 1
        return f"{unit.name} (+{others})" if others else unit.name
    first, *rest = (source.name for source in problem.bundles[subject].sources)
    return f"{first} (+{len(rest)})" if rest else first


def edge_tensor_bytes(problem: StepModel, bundle: int) -> Bytes:
    """The size of a bundle's tensors, whole, as one micro-batch carries them."""
    return Bytes(sum(source.bytes for source in problem.bundles[bundle].sources))


def resources_of_devices(problem: StepModel) -> list[tuple[int, list[int]]]:
    """For each device that stands for its class its compute stream, and the links that no device
    before it uses.
    """
    places, seen = problem.places, set[int]()
    by_stream: dict[int, list[int]] = {}
    for first, last in zip(places.set_start[:-1], places.set_start[1:], strict=True):
        resources = places.set_resource[first:last].tolist()
        streams = [r for r in resources if places.kind[r] == 0]
        if len(streams) == 1:
            by_stream[streams[0]] = [r for r in resources if r != streams[0]]
    devices = []
    for stream, links in sorted(by_stream.items()):
        devices.append((stream, [link for link in links if link not in seen]))
        seen.update(links)
    assert set(chain(by_stream, seen)) == set(range(len(places.kind)))
    return devices
