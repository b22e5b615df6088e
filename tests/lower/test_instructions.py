"""Instructions of random plans: everything is there before it is read, and happens once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture.export import capture
from meshwright.capture.source.example import Example
from meshwright.lower.script import Instruction, Kind, Script
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout
from meshwright.sharding.units import units
from support.drawn_plans import drawn_plans
from support.machines import machine

MODELS = ("lenet", "alexnet", "rnnlm", "nmt", "mlp", "dlrm", "gpt2-xl", "vit-large", "t5-large")

Event = tuple[Kind, int, int]


@pytest.fixture(scope="module")
def scripts() -> list[Script]:
    drawn = drawn_plans(11, MODELS)
    return [Script(next(drawn).plan) for _ in range(3 * len(MODELS))]


def event(instruction: Instruction) -> Event:
    return instruction.kind, instruction.number, instruction.micro_batch


def reads(script: Script, instruction: Instruction) -> Iterator[Event]:
    """What has to have happened before an instruction."""
    parallel, micro = script.parallel, instruction.micro_batch
    options = script.plan.options
    micros = (micro,) if options.sync_each else range(options.micro_batches)
    match instruction.kind:
        case "Run":
            for unit in script.segments[instruction.number].units:
                yield from entering(script, instruction.number, unit, micro)
        case "Carry":
            origin = parallel.made[parallel.deliveries[instruction.number].tensor]
            if not origin.parameter:
                yield "Run", script.home[origin.unit], micro
        case "Reverse":
            yield "Run", instruction.number, micro
            yield from arriving(script, instruction.number, micro)
        case "Bring":
            for segment in contributing(script, instruction.number):
                yield "Reverse", segment, micro
        case "Settle":
            for unit in script.buckets[instruction.number].units:
                if script.flows[script.home[unit]]:
                    yield from (("Reverse", script.home[unit], m) for m in micros)
        case "Gather" | "Drop":
            pass


def entering(script: Script, segment: int, unit: int, micro: int) -> Iterator[Event]:
    parallel = script.parallel
    for index in range(len(script.plan.units[unit].inputs)):
        number = parallel.readings[unit, index].delivery
        delivery = parallel.deliveries[number]
        origin = parallel.made[delivery.tensor]
        if delivery.steps:
            yield "Carry", number, 0 if origin.parameter else micro
        elif not origin.parameter and script.home[origin.unit] != segment:
            yield "Run", script.home[origin.unit], micro


def arriving(script: Script, segment: int, micro: int) -> Iterator[Event]:
    """The gradients of what a segment makes."""
    parallel = script.parallel
    for number, returned in enumerate(parallel.returns):
        origin = parallel.made[returned.tensor]
        if origin.parameter or script.home[origin.unit] != segment:
            continue
        if returned.steps:
            yield "Bring", number, micro
        else:
            for other in contributing(script, number):
                if other != segment:
                    yield "Reverse", other, micro


def contributing(script: Script, return_: int) -> set[int]:
    readings = script.parallel.readings.items()
    homes = {script.home[unit] for (unit, _), reading in readings if reading.return_ == return_}
    return {home for home in homes if script.flows[home]}


def test_everything_is_there_before_it_is_read(scripts: list[Script]) -> None:
    for script in scripts:
        done: set[Event] = set()
        for instruction in script.instructions:
            missing = set(reads(script, instruction)) - done
            assert not missing, (instruction, missing)
            done.add(event(instruction))


def test_everything_that_runs_again_has_run_before(scripts: list[Script]) -> None:
    again = 0
    for script in scripts:
        done: set[Event] = set()
        for instruction in script.instructions:
            assert not instruction.again or event(instruction) in done
            again += instruction.again
            done.add(event(instruction))
    assert again


def test_everything_happens_once(scripts: list[Script]) -> None:
    for script in scripts:
        counts = Counter(
            event(instruction) for instruction in script.instructions if not instruction.again
        )
        assert all(n == 1 for (kind, _, _), n in counts.items() if kind not in ("Gather", "Drop"))
        micros = range(script.plan.options.micro_batches)
        segments = range(len(script.segments))
        assert {entry for entry in counts if entry[0] == "Run"} == {
            ("Run", segment, micro) for segment in segments for micro in micros
        }
        assert {entry for entry in counts if entry[0] == "Reverse"} == {
            ("Reverse", segment, micro)
            for segment in segments
            if script.flows[segment]
            for micro in micros
        }


def test_every_gradient_is_settled(scripts: list[Script]) -> None:
    for script in scripts:
        settled = {
            instruction.number
            for instruction in script.instructions
            if instruction.kind == "Settle"
        }
        learning = {
            number
            for number, bucket in enumerate(script.buckets)
            if any(kept.returns for kept in bucket.parameters)
        }
        assert settled == learning


class Targets(nn.Module):
    """Its logits are read by a loss and, without gradients, by what makes the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x)
        with torch.no_grad():
            targets = logits.exp().relu().cumsum(0).cumsum(1)
        return -(targets * logits.log_softmax(1)).sum()


def test_gradients_do_not_wait_for_readers_that_have_none() -> None:
    graph = capture(Example(model=Targets(), inputs=(torch.zeros(8, 8),)))
    groups, cluster = units(graph), machine(4)
    # What makes the targets moves between its operators, so that it is no part of the loss.
    cut = {"linear.linear": "channel", "cumsum_2": "sample"}
    layouts = [Layout((cut.get(unit.name, REPLICA),) * 2) for unit in groups]
    script = Script(Plan.of("by hand", graph, cluster, layouts))
    assert not all(script.flows)
    brought = {
        instruction.number for instruction in script.instructions if instruction.kind == "Bring"
    }
    returns = enumerate(script.parallel.returns)
    assert brought == {
        number
        for number, returned in returns
        if returned.steps
        and not script.parallel.made[returned.tensor].parameter
        and contributing(script, number)
    }
    assert brought


def test_sharded_parameters_are_gathered_before_use(scripts: list[Script]) -> None:
    wholly = 0
    for script in scripts:
        sharded = {
            kept.name: number
            for number, bucket in enumerate(script.buckets)
            for kept in bucket.parameters
            if kept.shards
        }
        shown: set[int] = set()
        for instruction in script.instructions:
            if instruction.kind == "Gather":
                assert instruction.number not in shown, "it is there already"
                shown.add(instruction.number)
            elif instruction.kind == "Drop":
                shown.remove(instruction.number)
            used = {
                sharded[name] for name in parameters_read(script, instruction) if name in sharded
            }
            assert used <= shown
            wholly += script.plan.options.zero == 3 and bool(used)
        if script.plan.options.zero == 3:
            assert not shown, "memory is given back"
    assert wholly


def parameters_read(script: Script, instruction: Instruction) -> set[str]:
    parallel = script.parallel
    if instruction.kind == "Carry":
        name = parallel.deliveries[instruction.number].tensor
        return {name} if parallel.made[name].parameter else set()
    if instruction.kind not in ("Run", "Reverse"):
        return set()
    units = script.segments[instruction.number].units
    names = {boundary.tensor for unit in units for boundary in script.plan.units[unit].inputs}
    return {name for name in names if parallel.made[name].parameter}


def test_segments_hold_every_unit_once(scripts: list[Script]) -> None:
    for script in scripts:
        unit_numbers = [unit for segment in script.segments for unit in segment.units]
        assert unit_numbers == list(range(len(script.plan.units)))
        for segment in script.segments:
            places = {script.parallel.tasks[unit].place for unit in segment.units}
            assert len(places) == 1
