"""A batch normalisation that is called several times in a step, by any plan: gradients, running
statistics and counters are those of the plain model.
"""

from __future__ import annotations

import pytest

from meshwright.capture.load import load_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from support import shared_norm_bodies as bodies
from support.loop_plans import plan_of, staged
from support.module_bodies import errors_of
from support.state_bodies import Subject, random_plan

pytestmark = pytest.mark.ranks


def graph_of(name: str) -> OperatorGraph:
    return load_graph(bodies.example_of(name)).graph


def plans_of(graph: OperatorGraph) -> list[Plan]:
    """Data, tensor and pipeline parallelism, and whatever a seed draws, for four ranks."""
    drawn = Subject(graph, {}, {}, {})
    return [
        plan_of("sample", "sample", graph=graph),
        plan_of("sample", "channel", graph=graph, options=Options(zero=3)),
        staged("sample", graph, Options(recompute=True)),
        staged("channel", graph),
        *(random_plan(drawn, 4, seed) for seed in range(5)),
    ]


def halves_of(graph: OperatorGraph) -> list[Plan]:
    """The same with two micro-batches."""
    options = Options(micro_batches=2)
    return [
        plan_of("sample", "replica", graph=graph, options=options),
        staged("sample", graph, options),
        staged("channel", graph, Options(micro_batches=2, recompute=True, schedule="gpipe")),
    ]


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("name", bodies.MODELS)
def test_every_plan_follows_all_calls_in_their_order(name: str, micro_batches: int) -> None:
    graph = graph_of(name)
    plans = plans_of(graph) if micro_batches == 1 else halves_of(graph)
    losses, state = bodies.alone(name, micro_batches)
    for rank in run_ranks(bodies.by_plans, name, plans, ranks=4):
        assert isinstance(rank, list)
        for plan, (rank_losses, kept) in zip(plans, rank, strict=True):
            assert rank_losses == pytest.approx(losses, rel=1e-10), plan
            assert errors_of(kept, state) < 1e-9, plan
            counted = [key for key in state if key.endswith("num_batches_tracked")]
            assert [kept[key] for key in counted] == [state[key] for key in counted]
