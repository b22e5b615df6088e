"""Loops that would train wrongly: right by every plan, or told in a sentence on every rank."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.load import load_graph
from meshwright.capture.source.example import Example
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support import guard_bodies as bodies
from support.module_bodies import errors_of

pytestmark = pytest.mark.ranks


def graph_of(**settings: Any) -> OperatorGraph:
    tokens, scale, targets = bodies.batch_of()
    example = Example(
        model=bodies.model_of(**settings),
        inputs=(tokens,),
        named={"scale": scale},
        loss=functional.cross_entropy,
        targets=(targets,),
    )
    return load_graph(example).graph


def plan_of(graph: OperatorGraph, *roles: str, options: Options | None = None) -> Plan:
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [
        Layout(tuple(role if role in unit.extents else "replica" for role in roles))
        for unit in units(graph)
    ]
    return Plan.of("by hand", graph, cluster, layouts, options)


GRAPH = graph_of()
COPIES = plan_of(GRAPH, "sample")
SHARDED = plan_of(GRAPH, "sample", options=Options(zero=3))


@pytest.mark.parametrize(
    ("settings", "change", "sentence"),
    [
        ({}, "", "^$"),
        ({"layers": 3}, "", r"module 'layers\.2' \(Linear\) is in the model and not in the plan"),
        ({"heads": 3}, "", r"heads of the model \(Tied\) is 3, and in the plan 2"),
        ({"rate": 0.1}, "", r"p of module 'drop' \(Dropout\) is 0\.1, and in the plan 0\.0"),
        ({"tied": False}, "", r"'head\.weight' is a parameter of its own, .* tied to 'words\."),
        ({}, "frozen", r"requires_grad of 'words\.weight' is False, and in the plan True"),
        ({}, "hooked", r"module 'layers\.0' \(Linear\) has a backward hook at .*guard_bodies"),
    ],
)
def test_another_model_is_refused(settings: dict[str, Any], change: str, sentence: str) -> None:
    for said in run_ranks(bodies.given_model, COPIES, settings, change, ranks=2):
        assert isinstance(said, str)
        assert re.search(sentence, said), said


def test_another_model_on_one_rank_is_refused_on_all() -> None:
    first, second = run_ranks(bodies.given_model, COPIES, {}, "on one", ranks=2)
    assert "rank 1 runs with a model that is not the plan's" in str(first)
    assert "not the plan's" in str(second)


def test_inputs_are_bound_by_name() -> None:
    loss = bodies.plain_loss(bodies.model_of()).item()
    for answers in run_ranks(bodies.called, COPIES, ranks=2):
        assert isinstance(answers, list)
        assert answers[:3] == pytest.approx([loss] * 3, rel=1e-9)
        for said, sentence in zip(
            answers[3:],
            [
                "the step got 'target', and the plan's graph has no such input; did you mean",
                "the step got 'tokens' by order and by name",
                "the step got power=2.0, and the plan is for power=None",
                "input 'scale' is of float32, and the plan is for float64",
                "input 'scale' has shape (4,), and the plan is for (8,)",
            ],
            strict=True,
        ):
            assert sentence in str(said)


@pytest.mark.parametrize(
    ("what", "first", "second"),
    [
        ("all", "rank 1 was given another 'tokens' than rank 0", "another 'tokens'"),
        ("targets", "rank 1 was given another 'targets' than rank 0", "another 'targets'"),
        ("shape", "rank 1 was given inputs that the plan is not for", "has shape (4,)"),
    ],
)
def test_different_batches_are_told_on_every_rank(what: str, first: str, second: str) -> None:
    said = run_ranks(bodies.different_batches, COPIES, what, ranks=2)
    assert first in str(said[0])
    assert second in str(said[1])


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("frozen", "is False now, and in the plan True"),
        ("hook", "has a hook on its gradient at "),
        ("later", "has a hook on its gradient at "),
    ],
)
def test_parameters_that_were_changed_are_told(what: str, sentence: str) -> None:
    for said in run_ranks(bodies.changed_parameters, SHARDED, what, ranks=2):
        assert sentence in str(said)


@pytest.mark.parametrize(
    "plan",
    [
        COPIES,
        plan_of(GRAPH, "channel"),
        plan_of(GRAPH, "sample", options=Options(zero=1)),
        plan_of(GRAPH, "sample", options=Options(zero=2)),
        SHARDED,
        plan_of(GRAPH, "sample", "channel", options=Options(zero=1)),
    ],
    ids=["copies", "tensor", "zero 1", "zero 2", "zero 3", "both"],
)
def test_clipping_is_that_of_one_device(plan: Plan) -> None:
    *norms, losses, state = bodies.clipped_alone()
    results = run_ranks(bodies.clipped, plan, ranks=plan.cluster.devices)
    for outcome in results:
        assert isinstance(outcome, tuple)
        assert outcome[:3] == pytest.approx(norms, rel=1e-9)
        assert outcome[3] == pytest.approx(losses, rel=1e-9)
        assert outcome[5] == ""
    first = results[0]
    assert isinstance(first, tuple)
    assert errors_of(first[4], state) < 1e-9


def test_ranks_skip_a_step_together() -> None:
    assert run_ranks(bodies.scaled, SHARDED, ranks=2) == [[False, True, False]] * 2


def test_a_pause_between_steps_ends_nothing() -> None:
    first, second = run_ranks(bodies.paused, COPIES, 3.0, ranks=2)
    assert first == second


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(bodies.WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y.square().mean() if self.training else y.abs().mean()


@pytest.mark.parametrize("training", [True, False])
def test_a_mode_that_was_not_traced_is_told(training: bool) -> None:
    model = Branching().train(training)
    inputs = (torch.ones(bodies.BATCH, bodies.WIDTH),)
    graph = load_graph(Example(model=model, inputs=inputs)).graph
    mode, other = ("training", "evaluation") if training else ("evaluation", "training")
    for outcome in run_ranks(bodies.in_other_mode, plan_of(graph, "sample"), model, ranks=2):
        assert isinstance(outcome, tuple)
        assert outcome[0] == ""
        assert f"the plan was made in {mode} mode; in {other} mode the model computes" in outcome[1]
        assert "test_guards.py:" in outcome[1]


def test_frozen_parameters_stay_as_they_are() -> None:
    model = bodies.model_of()
    assert all(parameter.trainable for parameter in GRAPH.parameters)
    model.layers[0].requires_grad_(False)
    tokens, scale, targets = bodies.batch_of()
    loss = functional.cross_entropy
    example = Example(model=model, inputs=(tokens, scale), loss=loss, targets=(targets,))
    frozen = [
        parameter.tensor.name
        for parameter in load_graph(example).graph.parameters
        if not parameter.trainable
    ]
    assert frozen == ["layers.0.weight", "layers.0.bias"]


def test_batch_norms_count_their_batches() -> None:
    assert run_ranks(bodies.counted, COPIES, ranks=2) == [(3, 4), (3, 4)]
