"""Pipelines of a uniform chain: their time by hand, and how many micro-batches wait."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.base.errors import InputError
from meshwright.plan.options import Options, Schedule
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.simulate.memory.memory_timeline import curves
from meshwright.simulate.simulation import Simulation, simulate
from support.uniform_chain import BACKWARD, FORWARD, chain, free, pipeline

ROUNDING = 4
"""Nanoseconds that a free transfer between stages may take: a task lasts 1 at least."""


def options(schedule: Schedule, micro_batches: int) -> Options:
    return Options(schedule=schedule, micro_batches=micro_batches, optimizer="sgd")


def last_backward(simulation: Simulation) -> int:
    return int(simulation.timeline.end[simulation.problem.template.backward].max())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "layers"), [(1, 2), (2, 2), (2, 4), (4, 4), (4, 8)])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8, 16])
def test_a_uniform_pipeline(
    schedule: Schedule, stages: int, layers: int, micro_batches: int
) -> None:
    end = last_backward(pipeline(stages, layers, options(schedule, micro_batches)))
    each = (FORWARD + BACKWARD) * layers // stages
    expected = (micro_batches + stages - 1) * each
    assert expected <= end <= expected + ROUNDING * (micro_batches + stages)


@pytest.mark.parametrize(("stages", "layers", "micro_batches"), [(2, 4, 4), (2, 8, 8), (4, 8, 8)])
def test_interleaved_stages_wait_less(stages: int, layers: int, micro_batches: int) -> None:
    graph, cluster = chain(layers), free(stages)
    plain = last_backward(pipeline(stages, layers, options("1f1b", micro_batches)))
    several = pipeline(stages, layers, options("1f1b", micro_batches))
    rows = [
        several.plan.layouts[(layer % stages) * (layers // stages)][1] for layer in range(layers)
    ]
    plan = Plan.of(
        "interleaved",
        graph,
        cluster,
        list(map(Layout.parse, rows)),
        options("interleaved", micro_batches),
    )
    prices, operators = several.problem.prices, several.problem.operators
    simulation = simulate(plan, prices, operators)
    end = last_backward(simulation)
    # The parameters of a stage's last chunk are updated before its first chunk is done.
    tasks, update = simulation.problem.tasks, simulation.problem.template.update
    updates = int(tasks.duration[update[update >= 0]].sum())
    each, chunks = (FORWARD + BACKWARD) * layers // stages, layers // stages
    expected = micro_batches * each + (stages - 1) * each // chunks
    assert expected <= end < plain
    if micro_batches > stages:
        assert end <= expected + ROUNDING * (micro_batches + stages) * chunks + updates


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
def test_activations_that_wait(schedule: Schedule, stages: int, micro_batches: int) -> None:
    simulation = pipeline(stages, stages, options(schedule, micro_batches))
    problem = simulation.problem
    device_curves = list(curves(problem, problem.roles, simulation.timeline))
    assert len(device_curves) == stages
    sample = 8 * 4
    for stage, curve in enumerate(device_curves):
        assert curve.device == f"device {stage}"
        waiting = curve.kept
        most = micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
        # The first stage reads the graph's input, which is there all the time.
        kept = 0 if stage == 0 else 16 // micro_batches * sample
        assert int(waiting.max()) == most * kept
        assert int(waiting.min()) == 0
        assert int(waiting[-1]) == 0


def test_one_stage_accumulates_gradients() -> None:
    simulation = pipeline(1, 2, options("1f1b", 4))
    ends = simulation.timeline.end
    forward, backward = simulation.problem.template.forward, simulation.problem.template.backward
    assert np.all(ends[forward[0, 1:]] - FORWARD >= ends[backward[0, :-1]])


def test_stages_must_be_next_to_each_other() -> None:
    rows = ["@0", "@1", "@0", "@1"]
    plan = Plan.of("t", chain(4), free(2), list(map(Layout.parse, rows)), options("1f1b", 2))
    with pytest.raises(InputError, match="the plan goes through its stages 2 times"):
        simulate(plan)
    rows = ["@0", "@1", "@0", "@0"]
    uneven = options("interleaved", 2)
    plan = Plan.of("t", chain(4), free(2), list(map(Layout.parse, rows)), uneven)
    with pytest.raises(InputError, match="the plan goes through its stages 2 times"):
        simulate(plan)
