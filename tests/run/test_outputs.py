"""Outputs as the model returns them, and losses outside of it: by every plan as on one device."""

from __future__ import annotations

import pytest
import torch

from meshwright.capture.load import load_graph
from meshwright.capture.source.example import Example
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.run.launch.ranks import run_ranks
from support import loop_bodies as bodies
from support import stranger_bodies as strangers
from support.loop_plans import plan_of, staged

pytestmark = pytest.mark.ranks

PLANS = {
    "dp 2": plan_of("sample"),
    "tp 2": plan_of("channel"),
    "zero 1": plan_of("sample", options=Options(zero=1)),
    "zero 3": plan_of("sample", options=Options(zero=3)),
    "pp 2": staged(),
    "dp 2 x tp 2, zero 3": plan_of("sample", "channel", options=Options(zero=3)),
    "pp 2 x dp 2": staged("sample"),
}


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_loss_outside_is_that_of_one_device(ranks: int) -> None:
    plans = {name: plan for name, plan in PLANS.items() if plan.cluster.devices == ranks}
    alone = strangers.alone()
    net = bodies.Alone()
    plain = bodies.trained(net, torch.optim.SGD(net.parameters(), 0.5), clip=False)
    every = run_ranks(strangers.strange, plans, ranks=ranks)
    for name in plans:
        outcomes = [answers[name] for answers in every if isinstance(answers, dict)]
        for outcome in outcomes:
            for loop, numbers in alone.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)
            assert all(outcome["refused"].values()), (name, outcome["refused"])
        shares = zip(*(entry["shares"] for entry in outcomes), strict=True)
        means = [sum(losses) / ranks for losses in shares]
        assert means == pytest.approx(plain, rel=1e-9), name


def inside_graph() -> OperatorGraph:
    example = Example(model=strangers.inside_of(), inputs=bodies.batch_of())
    return load_graph(example).graph


def test_outputs_are_as_the_model_returns_them() -> None:
    graph = inside_graph()
    plans = {
        "dp 2": plan_of("sample", graph=graph, options=Options(micro_batches=2)),
        "tp 2": plan_of("channel", graph=graph),
        "zero 3": plan_of("sample", graph=graph, options=Options(zero=3, recompute=True)),
        "pp 2": staged(graph=graph, options=Options(micro_batches=2)),
    }
    alone = strangers.inside(strangers.inside_of())
    for results in run_ranks(strangers.insides, plans, ranks=2):
        assert isinstance(results, dict)
        for name, outcome in results.items():
            assert outcome["losses"] == pytest.approx(alone, rel=1e-9), name
            assert "without targets" in outcome["both"], name
            assert outcome["wrapped"] is True, name
            assert "outputs=True" in outcome["loss alone"] == outcome["as told"], name
