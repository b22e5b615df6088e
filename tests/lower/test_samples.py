"""Along which dims micro-batches cut: what depends on no input is made whole for each of them."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.lower.shard_tasks import Samples, samples_of
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.states import WHOLE
from meshwright.sharding.units import units
from support.executed import tiny
from support.machines import machine


def samples(model: str, micro_batches: int) -> Samples:
    graph = tiny(model, 8).graph
    layouts = [Layout(()) for _ in units(graph)]
    options = Options(micro_batches=micro_batches)
    return samples_of(Plan.of("one device", graph, machine(1), layouts, options))


def test_a_bias_of_positions_has_no_samples() -> None:
    dims = samples("t5-large", 2).dims
    assert dims["encoder.bias.unsqueeze"] == WHOLE
    assert dims["encoder.layers.0.attention.transpose"] == 0


def test_experts_that_sort_all_tokens_need_one_micro_batch() -> None:
    with pytest.raises(InputError, match="at once, but there are 2 micro-batches"):
        samples("mixtral-8x7b", 2)


def test_one_micro_batch_cuts_nothing() -> None:
    assert set(samples("gpt2-xl", 1).dims.values()) == {WHOLE}
