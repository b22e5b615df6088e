"""Expert parallelism on real ranks: the numbers of one device for any mix of DP, EP and TP, and
the bytes that were predicted where loads are equal.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
import torch

from meshwright.capture.export import capture
from meshwright.capture.recognised.mixtures import with_routed_experts
from meshwright.capture.reference_executor import values_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_of
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import REPLICA, Layout
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support.executed import Array, Model, Training, errors, tiny, trained_each, whole
from support.machines import machine
from support.mixtures import Added, example

pytestmark = pytest.mark.ranks

FOUR = machine(2, 2)


@cache
def mixtral() -> Model:
    model = tiny("mixtral-8x7b", 8)
    return Model(with_routed_experts(model.graph), model.values)


@cache
def added(experts: int, chosen: int, batch: int) -> Model:
    torch.manual_seed(5)
    case = example(Added(experts, chosen).double(), batch)
    graph = capture(case)
    values = {
        name: tensor.detach().numpy().copy() for name, tensor in values_of(case, graph).items()
    }
    return Model(with_routed_experts(graph), values)


def is_routed(unit: OpGroup) -> bool:
    return unit.members[0].call.kind == "routed_experts"


def fitting(unit: OpGroup, roles: str) -> Layout:
    names = {split.name for split in unit.splits} | {"@0", "@1"}
    return Layout(tuple(role if role in names else REPLICA for role in roles.split()))


def plan(graph: OperatorGraph, experts: str, rest: str, **options: Any) -> Plan:
    layouts = [fitting(unit, experts if is_routed(unit) else rest) for unit in units(graph)]
    return Plan.of("by hand", graph, FOUR, layouts, Options(**options))


def equal(model: Model, plans: list[Plan]) -> list[list[int]]:
    """Assert that plans train as one device does; the bytes that all ranks sent, by plan."""
    alone = Plan.of("one", model.graph, machine(1), [Layout(()) for _ in units(model.graph)])
    values: dict[str, dict[str, Array]] = {"model": model.values}
    trained: Any = run_ranks(
        trained_each, [Training(alone, "model", "momentum", 2)], values, ranks=1
    )
    expected = trained[0][0]
    trainings = [Training(candidate, "model", "momentum", 2) for candidate in plans]
    results: Any = run_ranks(trained_each, trainings, values, ranks=4)
    for planned, ranks in zip(plans, zip(*results, strict=True), strict=True):
        worst = max(
            *errors(whole(expected.gradients), [rank.gradients for rank in ranks]).values(),
            *errors(whole(expected.parameters), [rank.parameters for rank in ranks]).values(),
            *(abs(rank.losses[1] / expected.losses[1] - 1) for rank in ranks),
        )
        assert worst <= 1e-9, (planned.layouts, worst)
    return [[rank[number].sent[0] for rank in results] for number in range(len(plans))]


def test_any_mix_of_parallelism_equals_one_device() -> None:
    graph = mixtral().graph
    equal(
        mixtral(),
        [
            plan(graph, "sample sample", "sample sample"),
            plan(graph, "expert expert", "sample sample"),
            plan(graph, "sample expert", "sample sample"),
            plan(graph, "expert sample", "sample sample"),
            plan(graph, "expert inner", "sample sample"),
            plan(graph, "inner expert", "sample replica"),
            plan(graph, "expert replica", "replica channel"),
            plan(graph, "expert @1", "sample sample"),
            plan(graph, "expert expert", "sample sample", micro_batches=2),
            plan(graph, "expert sample", "sample sample", micro_batches=2, zero=3),
            plan(graph, "sample expert", "sample sample", zero=1, recompute=True),
        ],
    )


def test_tokens_that_experts_do_not_divide() -> None:
    """7 experts on 4 devices, 30 tokens: parts of tokens and of experts are unequal."""
    model = added(7, 3, 5)
    equal(
        model,
        [
            plan(model.graph, "expert expert", "replica replica"),
            plan(model.graph, "sample expert", "replica replica"),
            plan(model.graph, "expert sample", "replica replica"),
        ],
    )


def test_bytes_of_equal_loads_are_those_predicted() -> None:
    """Every token chooses all experts, so that each gets as many."""
    model = added(4, 4, 8)
    plans = [
        plan(model.graph, "expert expert", "sample sample"),
        plan(model.graph, "sample expert", "sample sample"),
        plan(model.graph, "expert sample", "sample sample", micro_batches=2),
    ]
    for planned, sent in zip(plans, equal(model, plans), strict=True):
        script = Script(planned)
        assert sent == [sent_bytes_of(script, device) for device in range(4)]


def test_a_device_alone_refuses_tokens_of_other_experts() -> None:
    from meshwright.base.errors import InputError
    from meshwright.capture.execution.shard_kernels import run_call
    from meshwright.graph.pieces import pieces, splits_of

    graph = mixtral().graph
    (operator, _) = (node for node in graph.operators if node.kind == "routed_experts")
    call = graph.call(operator)
    (split,) = (candidate for candidate in splits_of(call) if candidate.name == "expert")
    piece = pieces(call, split, 2)[0].call
    x, index, weights, *operands = piece.inputs
    assert index is not None
    tensors = [
        torch.full(index.shape, 3) if spec is index else torch.ones(spec.shape, dtype=torch.float64)
        for spec in (x, index, weights, *operands)
        if spec is not None
    ]
    with pytest.raises(InputError, match="does not hold"):
        run_call(msgspec.structs.replace(piece), tuple(tensors))
