"""A loss that adds up several: in micro-batches, by any plan, as on one device."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.micro_batches import micro_batch_states
from meshwright.sharding.states import PARTIAL
from support import several_losses as bodies
from support.loop_plans import plan_of, staged
from support.module_bodies import errors_of


def graph_of(join: str) -> OperatorGraph:
    return load_graph(bodies.example_of(join)).graph


def plans_of(graph: OperatorGraph) -> list[Plan]:
    return [
        plan_of("sample", "sample", graph=graph, options=Options(micro_batches=2, zero=1)),
        plan_of("sample", "channel", graph=graph, options=Options(micro_batches=4)),
        plan_of("replica", "sample", graph=graph, options=Options(micro_batches=8, zero=3)),
        staged("sample", graph, Options(micro_batches=4)),
        staged("channel", graph, Options(micro_batches=2, schedule="gpipe")),
    ]


@pytest.mark.ranks
@pytest.mark.parametrize("join", bodies.LINEAR)
def test_micro_batches_of_every_plan_equal_one_device(join: str) -> None:
    plans = plans_of(graph_of(join))
    losses, state = bodies.alone(join)
    for rank in run_ranks(bodies.by_plans, join, plans, ranks=4):
        assert isinstance(rank, list)
        for plan, (rank_losses, kept) in zip(plans, rank, strict=True):
            assert rank_losses == pytest.approx(losses, rel=1e-10), plan
            assert errors_of(kept, state) < 1e-9, plan


@pytest.mark.parametrize("join", bodies.LINEAR)
def test_what_adds_up_losses_is_pending_as_they_are(join: str) -> None:
    graph = graph_of(join)
    assert micro_batch_states(graph, 4)[graph.loss or ""] == PARTIAL


@pytest.mark.parametrize("join", bodies.OTHERS)
def test_what_is_not_linear_in_losses_needs_all_samples(join: str) -> None:
    with pytest.raises(InputError, match="needs all samples of 'cross_entropy_loss"):
        micro_batch_states(graph_of(join), 4)
