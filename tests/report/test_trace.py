"""Traces tell the timeline, and costs are what the timeline holds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.baselines import applicable
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.explain.utilisation import costliest, occupancies, resources_of_devices, uses
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.report.json.trace import trace_document
from meshwright.simulate.engines import ENGINES
from meshwright.simulate.memory.memory_timeline import curves
from meshwright.simulate.simulation import Simulation, simulate
from support.baseline_graphs import convolutional, transformer
from support.plan_strategies import plans

Event = dict[str, Any]

OPTIONS = st.builds(
    Options,
    zero=st.integers(0, 3),
    recompute=st.booleans(),
    bucket=st.sampled_from([0, 1000]),
)


def traced(simulation: Simulation) -> list[Event]:
    """The events, through the bytes that are written."""
    document = json.loads(msgspec.json.encode(trace_document(simulation)))
    events: list[Event] = document["traceEvents"]
    return events


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def confirm(simulation: Simulation) -> None:
    tasks, timeline = simulation.problem.tasks, simulation.timeline
    events = traced(simulation)
    whole = [event for event in events if event["ph"] == "X"]
    by_thread: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in whole:
        start = nanoseconds(event["ts"])
        by_thread[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
        task = event["args"]["task"]
        assert timeline.ready[task] <= start <= timeline.start[task]
        if tasks.joint[task]:
            assert start == timeline.start[task]
        if not event["pid"]:
            assert nanoseconds(event["dur"]) == tasks.duration[task]
    for spans in by_thread.values():
        spans.sort()
        assert all(end <= after for (_, end), (after, _) in pairwise(spans))
    live = set(timeline.order.tolist())
    assert {event["args"]["task"] for event in whole} == live
    for task in live:
        ends = [
            nanoseconds(event["ts"]) + nanoseconds(event["dur"])
            for event in whole
            if event["args"]["task"] == task and (not event["pid"] or not tasks.joint[task])
        ]
        assert max(ends) == timeline.end[task]


def confirm_names(simulation: Simulation) -> None:
    events = traced(simulation)
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    named = Counter(
        (event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"
    )
    assert used <= named.keys()
    assert set(named.values()) <= {1}
    processes = [event["pid"] for event in events if event["name"] == "process_name"]
    devices = len(resources_of_devices(simulation.problem))
    hosts = len(simulation.problem.template.launch) > 0
    assert processes == list(range(devices + 1 + hosts))


def confirm_memory(simulation: Simulation) -> None:
    counters: dict[int, list[Event]] = defaultdict(list)
    for event in traced(simulation):
        if event["ph"] == "C":
            counters[event["pid"]].append(event)
    memory_curves = list(curves(simulation.problem, simulation.problem.roles, simulation.timeline))
    assert len(counters) == len(memory_curves)
    for events in counters.values():
        moments = [event["ts"] for event in events]
        assert moments == sorted(set(moments))
    peak = max(sum(event["args"].values()) for series in counters.values() for event in series)
    assert peak <= simulation.prediction.memory.total
    last = [(int(c.nanoseconds[-1]), int(c.bytes[-1])) for c in memory_curves]
    assert sorted(last) == sorted(
        (nanoseconds(series[-1]["ts"]), sum(series[-1]["args"].values()))
        for series in counters.values()
    )


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_a_trace_is_its_timeline(plan: Plan) -> None:
    simulation = simulate(plan)
    confirm(simulation)
    confirm_names(simulation)
    confirm_memory(simulation)


@pytest.mark.parametrize("name", ["data parallel", "model parallel", "zero 3", "expert-designed"])
def test_traces_of_baselines(name: str) -> None:
    plan = applicable(transformer(), Cluster.named("dgx-h100", node=2, gpu=2))[name]
    confirm(simulate(plan))


def test_trace_of_layers_that_run_again() -> None:
    plan = data_parallel(transformer(), Cluster.named("laptop"))
    confirm(simulate(msgspec.structs.replace(plan, options=Options(recompute=True))))


def test_one_device_stands_for_its_class() -> None:
    plan = data_parallel(convolutional(batch=64), Cluster.named("dgx-h100", node=2))
    events = traced(simulate(plan))
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["between devices", "device 0 (stands for 16)"]
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert threads[:3] == ["compute", "nic of gpu 0", "nvswitch of gpu 0"]
    first = next(event for event in events if event["name"] == "forward conv")
    assert first["args"] == {
        "task": first["args"]["task"],
        "micro_batch": 0,
        "members": ["conv"],
        "layout": "sample sample sample sample",
    }
    gradient = next(event for event in events if event["name"] == "return k")
    assert gradient["args"]["bytes"] == 4 * 6 * 3 * 3 * 3


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_uses_follow_from_the_definition(plan: Plan) -> None:
    """Each resource is held by one task at a time, and the latest start is the timeline's."""
    simulation = simulate(plan)
    tasks, timeline = simulation.problem.tasks, simulation.timeline
    free: dict[int, int] = {}
    latest: dict[int, int] = {}
    for use in uses(tasks, timeline):
        assert use.start >= free.get(use.resource, 0)
        free[use.resource] = use.start + use.hold
        latest[use.task] = max(latest.get(use.task, 0), use.start)
    assert all(timeline.start[task] == start for task, start in latest.items())


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_costs_are_shares_of_the_step(plan: Plan) -> None:
    simulation = simulate(plan)
    step = simulation.prediction.step
    everything = costliest(simulation, 10**6)
    assert everything[:10] == costliest(simulation, 10)
    total = sum(simulation.problem.tasks.duration[simulation.timeline.order].tolist())
    assert sum(round(cost.seconds * 1e9) for cost in everything) == total
    assert all(cost.share == pytest.approx(cost.seconds / step) for cost in everything)
    busy = occupancies(simulation)
    assert busy[0].kind == "compute"
    # Where talking takes a toll, it holds compute streams too.
    assert busy[0].busiest >= simulation.prediction.compute
    if plan.cluster.device.toll is None:
        assert busy[0].busiest == simulation.prediction.compute
    assert all(0 <= occupancy.mean_share <= occupancy.busiest_share <= 1 for occupancy in busy)


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_every_engine_predicts_the_same(plan: Plan) -> None:
    predictions = {str(simulate(plan, engine=engine).prediction) for engine in ENGINES.values()}
    assert len(predictions) == 1


def test_micro_batches_are_told() -> None:
    plan = data_parallel(convolutional(batch=24), Cluster.named("laptop"))
    both = msgspec.structs.replace(plan, options=Options(micro_batches=2))
    simulation = simulate(both)
    confirm(simulation)
    seen = {
        event["args"]["micro_batch"]
        for event in traced(simulation)
        if event["name"] == "forward conv"
    }
    assert seen == {0, 1}
    assert next(c for c in costliest(simulation, 99) if c.kind == "forward").times == 2


def test_a_schedule_that_a_plan_cannot_follow_is_said() -> None:
    plan = applicable(transformer(), Cluster.named("laptop"))["operator placement"]
    text = dict(plan.layouts)
    names = list(text)
    swapped = {name: "@0 @0" if i % 2 else "@1 @0" for i, name in enumerate(names)}
    wrong = msgspec.structs.replace(
        plan, layouts=tuple(swapped.items()), options=Options(micro_batches=2)
    )
    with pytest.raises(InputError, match="goes through its stages"):
        simulate(wrong)
