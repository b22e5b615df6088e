"""Chrome trace (Perfetto) of a simulated step. Enters: a `Simulation`. Leaves: events in Google's
trace-event format; all times are predicted.

    a process for each device that stands for its class: a thread for its compute stream, one for
    each link that no device before it uses (events last as long as the link is held), and what it
    holds in memory as a counter
    a process for what moves between devices: every transfer and collective from start to end, in
    as few lanes as keep them apart
    a process for hosts that launch kernels, where that takes time
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.explain.utilisation import (
    edge_tensor_bytes,
    is_op_group_pass,
    resources_of_devices,
    subject_of,
    uses,
)
from meshwright.simulate.host import LAUNCH
from meshwright.simulate.memory.memory_timeline import MemoryCurve, curves
from meshwright.simulate.simulation import Simulation

Event = dict[str, object]

MICRO = 1000
"""Nanoseconds of the format's unit of time."""

MOVING = 0
"""The number of the process for what moves; devices follow."""


def trace_document(simulation: Simulation) -> dict[str, object]:
    """The whole trace."""
    plan = simulation.plan
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "origin": plan.origin,
            "graph": plan.graph.name,
            "cluster": plan.cluster.name,
            "times": "predicted",
        },
        "traceEvents": list(_events(simulation)),
    }


def _events(simulation: Simulation) -> Iterator[Event]:
    problem, timeline = simulation.problem, simulation.timeline
    devices = resources_of_devices(problem)
    alike = problem.cluster.devices // len(devices)
    where: dict[int, tuple[int, int]] = {}
    yield from _named("process_name", "between devices", MOVING)
    for process, (stream, links) in enumerate(devices, start=1):
        name = problem.places.names[stream]
        title = f"{name} (stands for {alike})" if alike > 1 else name
        yield from _named("process_name", title, process)
        for thread, resource in enumerate((stream, *links)):
            where[resource] = process, thread
            label = problem.places.names[resource] if thread else "compute"
            yield from _named("thread_name", label, process, thread)
    for use in uses(problem.tasks, timeline):
        yield _event(simulation, use.task, *where[use.resource], use.start, use.hold)
    joint = [task for task in timeline.order.tolist() if problem.tasks.joint[task]]
    yield from _in_lanes(simulation, joint, MOVING)
    launches = problem.template.launch.tolist()
    if launches:
        yield from _named("process_name", "hosts", len(devices) + 1)
        yield from _in_lanes(simulation, launches, len(devices) + 1)
    process_of = {problem.places.names[stream]: where[stream][0] for stream, _ in devices}
    for curve in curves(problem, problem.roles, timeline):
        yield from _memory(curve, process_of[curve.device])


def _in_lanes(simulation: Simulation, tasks: list[int], process: int) -> Iterator[Event]:
    """Tasks, each from start to end, in the first lane that is free."""
    timeline = simulation.timeline
    free: list[int] = []
    for task in sorted(tasks, key=lambda task: (int(timeline.start[task]), task)):
        start, end = int(timeline.start[task]), int(timeline.end[task])
        lane = next((n for n, until in enumerate(free) if until <= start), len(free))
        if lane == len(free):
            free.append(0)
            yield from _named("thread_name", f"lane {lane}", process, lane)
        free[lane] = end
        yield _event(simulation, task, process, lane, start, end - start)


def _event(
    simulation: Simulation, task: int, process: int, thread: int, start: int, length: int
) -> Event:
    problem = simulation.problem
    kind, subject = problem.labels.kind[task], problem.labels.subject[task]
    return {
        "ph": "X",
        "name": f"{kind} {subject_of(problem, kind, subject)}",
        "cat": kind,
        "pid": process,
        "tid": thread,
        "ts": start / MICRO,
        "dur": length / MICRO,
        "args": {"task": task, "micro_batch": problem.labels.micro_batch[task]}
        | _details(simulation, kind, subject),
    }


def _details(simulation: Simulation, kind: str, subject: int) -> dict[str, object]:
    problem, plan = simulation.problem, simulation.plan
    if is_op_group_pass(kind) or kind == LAUNCH:
        unit = problem.units[subject]
        members = [member.operator for member in unit.members]
        return {"members": members, "layout": str(plan.layout[unit.name])}
    bundle = problem.bundles[subject]
    return {
        "tensors": [source.name for source in bundle.sources],
        "bytes": edge_tensor_bytes(problem, subject),
        "layout": str(plan.layout[problem.units[bundle.maker].name]),
        "layouts_of_readers": sorted(
            {_layout(simulation, consumer.unit) for consumer in bundle.consumers}
        ),
    }


def _layout(simulation: Simulation, unit: int) -> str:
    return str(simulation.plan.layout[simulation.problem.units[unit].name])


def _memory(curve: MemoryCurve, process: int) -> Iterator[Event]:
    """What a device holds from each moment on; of several changes at a moment the last counts."""
    standing = curve.standing
    parameters, optimizer, inputs = map(
        round, (standing.parameters, standing.optimizer, standing.inputs)
    )
    libraries = round(sum(standing)) - parameters - optimizer - inputs
    moments = curve.nanoseconds.tolist()
    for number, moment in enumerate(moments):
        if number + 1 < len(moments) and moments[number + 1] == moment:
            continue
        held = {
            "parameters": parameters,
            "optimizer": optimizer,
            "gradients": int(curve.gradients[number]),
            "activations": int(curve.kept[number]) + inputs,
            "workspace": int(curve.passing[number]) + libraries,
        }
        yield {
            "ph": "C",
            "name": "memory (bytes)",
            "pid": process,
            "ts": moment / MICRO,
            "args": held,
        }


def _named(what: str, name: str, process: int, thread: int = 0) -> Iterator[Event]:
    """A name, and the place among its like."""
    place = {"pid": process, "tid": thread}
    order = what.replace("name", "sort_index")
    number = process if what == "process_name" else thread
    yield {"ph": "M", "name": what, **place, "args": {"name": name}}
    yield {"ph": "M", "name": order, **place, "args": {"sort_index": number}}
