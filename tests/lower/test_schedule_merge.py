"""The order in which a machine works through a pipeline: complete, possible, each stage's own."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.lower.schedule import order
from meshwright.lower.schedule_merge import ScheduleSlot, parts_of, turns
from meshwright.plan.options import SCHEDULES, Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from support.machines import machine
from support.uniform_chain import chain


@st.composite
def pipelines(draw: st.DrawFn) -> Plan:
    """A chain on 1 to 5 stages, gone through once, or as often as the schedule allows."""
    schedule = draw(st.sampled_from(SCHEDULES))
    stages = draw(st.sampled_from((1, 2, 3, 5)))
    chunks = draw(st.integers(1, 3)) if schedule == "interleaved" and stages > 1 else 1
    micro = draw(st.integers(1, 4)) * (stages if chunks > 1 else 1)
    assume(micro > 1)
    lengths = [draw(st.integers(1, 2)) for _ in range(stages * chunks)]
    layouts = [
        Layout((f"@{part % stages}",) if stages > 1 else ())
        for part, length in enumerate(lengths)
        for _ in range(length)
    ]
    graph = chain(len(layouts), batch=micro * 2)
    options = Options(schedule=schedule, micro_batches=micro)
    return Plan.of("drawn", graph, machine(stages), layouts, options)


@given(pipelines())
def test_every_part_has_every_turn_once(plan: Plan) -> None:
    expected = {
        ScheduleSlot(pass_, part, micro)
        for pass_ in ("forward", "backward")
        for part in range(len(parts_of(plan)))
        for micro in range(plan.options.micro_batches)
    }
    slots = turns(plan)
    assert len(slots) == len(expected)
    assert set(slots) == expected


@given(pipelines())
def test_nothing_comes_before_what_it_waits_for(plan: Plan) -> None:
    place = {turn: number for number, turn in enumerate(turns(plan))}
    last = len(parts_of(plan)) - 1
    for turn, number in place.items():
        if turn.pass_ == "forward":
            before = [turn._replace(part=turn.part - 1)] if turn.part else []
        else:
            before = [turn._replace(pass_="forward")]
            before += [turn._replace(part=turn.part + 1)] if turn.part < last else []
        assert all(place[earlier] < number for earlier in before)


@given(pipelines())
def test_each_stage_keeps_the_order_of_its_schedule(plan: Plan) -> None:
    stages = plan.cluster.devices
    chunks = len(parts_of(plan)) // stages
    for stage in range(stages):
        stage_turns = [turn for turn in turns(plan) if turn.part % stages == stage]
        slots = order(plan.options.schedule, stages, stage, plan.options.micro_batches, chunks)
        assert stage_turns == [
            ScheduleSlot(slot.pass_, slot.chunk * stages + stage, slot.micro_batch)
            for slot in slots
        ]


@given(pipelines())
def test_parts_are_runs_of_units_on_the_same_devices(plan: Plan) -> None:
    where = [plan.layout[unit.name] for unit in plan.units]
    runs = [len(list(run)) for _, run in groupby(where)]
    assert [len(part) for part in parts_of(plan)] == runs
    assert [unit for part in parts_of(plan) for unit in part] == list(range(len(plan.units)))


def test_a_stage_that_is_come_back_to_needs_interleaving() -> None:
    layouts = [Layout((f"@{stage}",)) for stage in (0, 1, 0)]
    plan = Plan.of("by hand", chain(3), machine(2), layouts, Options(micro_batches=2))
    with pytest.raises(InputError, match="goes through its stages 2 times with schedule '1f1b'"):
        turns(plan)
