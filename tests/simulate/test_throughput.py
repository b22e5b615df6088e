"""Throughput and the parts of a step, on graphs small enough to count by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.cluster import Cluster
from meshwright.configs.recipes import recipes
from meshwright.explain.step_parts import step_parts
from meshwright.graph.text import parse_graph
from meshwright.graph.workload import Workload, workload
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate.simulation import simulate
from meshwright.simulate.throughput import throughput
from support.baseline_graphs import convolutional, transformer

FOUR = Cluster.named("dgx-h100", node=2, gpu=2)

WORDS = """graph words
input w: int64[n=4, s=8]
parameter t: float32[v=10, h=6]
parameter p: float32[v=10, h=6]
operator e: x: float32[n=4, s=8, h=6] = embedding(t, w)
operator a: y: float32[n=4, s=8, h=6] = {}
operator o: z: float32[n=4, s=8, v=10] = linear(y, p)
output z"""

ATTEND = "scaled_dot_product_attention(x, x, x)"


def test_tokens_are_looked_up_and_attend() -> None:
    linear, attention = 2 * 4 * 8 * 6 * 10, 2 * 2 * 4 * 8 * 8 * 6
    assert workload(parse_graph(WORDS.format(ATTEND))) == Workload(
        samples=4, sequence=8, dtype="float32", model_flops=3 * (linear + attention)
    )
    plain = workload(parse_graph(WORDS.format("relu(x)")))
    assert (plain.samples, plain.tokens, plain.model_flops) == (4, 0, 3 * linear)


def test_copies_and_layers_run_again_are_hardware_flops_alone() -> None:
    graph = transformer()
    cut = Plan.of("cut", graph, FOUR, [Layout(("sample", "sample"))] * len(units(graph)))
    once = throughput(cut, simulate(cut).prediction)
    copied = cut.changed(layouts=tuple((name, "sample replica") for name, _ in cut.layouts))
    twice = throughput(copied, simulate(copied).prediction)
    assert twice.executed_flops == 2 * once.executed_flops
    again = cut.changed(options=replace(cut.options, recompute=True))
    assert throughput(again, simulate(again).prediction).executed_flops > once.executed_flops
    assert twice.workload == once.workload
    assert once.mfu is not None
    assert once.hfu is not None
    assert once.mfu <= once.hfu < 1
    assert once.device_hours(1e6) == pytest.approx(4 * 24 * once.days(1e6))


def test_parts_add_up_and_only_stages_have_a_bubble() -> None:
    graph = transformer(4, batch=8)
    for config in (
        ParallelConfig(data=4),
        ParallelConfig(data=2, pipeline=2, micro_batches=2),
        ParallelConfig(data=2, tensor=2),
    ):
        simulation = simulate(configured(graph, FOUR, config))
        parts = step_parts(simulation)
        assert parts.step == pytest.approx(simulation.prediction.step)
        assert min(parts) >= 0
        assert (parts.bubble > 0) == (config.pipeline > 1)


def test_recipes_fit_with_the_fewest_micro_batches() -> None:
    graph = transformer(batch=64)
    roomy = recipes(graph, FOUR, FOUR.device.memory)
    names = [name for name, _ in roomy.fitted]
    assert names[:4] == ["DDP", "FSDP (ZeRO 3)", "FSDP + AC", "HSDP 2 x 2"]
    assert [candidate.plan.options.micro_batches for _, candidate in roomy.fitted][:4] == [
        1,
        1,
        1,
        1,
    ]
    most = roomy.fitted[1][1].prediction.memory.total
    tight = dict(recipes(graph, FOUR, type(FOUR.device.memory)(most - 1)).fitted)
    chosen = tight["FSDP (ZeRO 3)"]
    assert chosen.prediction.memory.total < most
    assert chosen.plan.options.micro_batches > 1


def test_recipes_of_any_model_are_those_of_samples() -> None:
    outcome = recipes(convolutional(), FOUR, FOUR.device.memory)
    assert [name for name, _ in outcome.fitted] == ["DDP", "ZeRO 1", "FSDP (ZeRO 3)"]
    odd = recipes(transformer(batch=3), FOUR, FOUR.device.memory)
    name, reason = odd.refused[0]
    assert (name, reason.partition(";")[0]) == ("DDP", "data 4 does not divide 3 samples of a step")
