"""Plans over islands on NCCL ranks: uneven shares of a batch, stages of different widths."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.cluster.cluster import Cluster
from meshwright.plan.plan import Plan
from meshwright.run.islands import rank_parts
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.island_bodies import STEPS, trained_on_islands
from support.island_plans import GPT, LENET, RANKS, WIDTHS, drawn, drawn_stages, graph_of
from support.module_bodies import errors_of, plain

pytestmark = pytest.mark.gpu

GPU = Home(gpus=1)


def alone(source: str) -> tuple[list[float], dict[str, Any]]:
    """What one device, a CPU, gives."""
    graph, cluster = graph_of(source), Cluster.named("laptop").resized({"process": 1})
    whole = Plan.of("one", graph, cluster, [Layout(()) for _ in units(graph)])
    return plain(source, whole, STEPS, 1.0)


@pytest.mark.parametrize("source", [LENET, GPT])
@pytest.mark.parametrize("ranks", RANKS)
def test_uneven_shares_equal_one_device(source: str, ranks: int) -> None:
    plans = [drawn(source, ranks, number) for number in range(3)]
    losses, state = alone(source)
    results: list[Any] = run_ranks(trained_on_islands, source, plans, ranks=ranks, home=GPU)
    for number, plan in enumerate(plans):
        for members in rank_parts(plan):
            loss_values, part_state = results[members[0]][number]
            assert loss_values == pytest.approx(losses, rel=1e-9), plan.sheet()
            assert errors_of(part_state, state) < 1e-9, plan.sheet()


@pytest.mark.parametrize("source", [LENET, GPT])
@pytest.mark.parametrize("ranks", WIDTHS)
def test_stages_of_different_widths_equal_one_device(source: str, ranks: int) -> None:
    plans = [drawn_stages(source, widths, number) for number, widths in enumerate(WIDTHS[ranks])]
    losses, state = alone(source)
    results: list[Any] = run_ranks(
        trained_on_islands, source, plans, graph_of(source), ranks=ranks, home=GPU
    )
    for number, plan in enumerate(plans):
        loss_values, whole_state = results[0][number]
        assert loss_values == pytest.approx(losses, rel=1e-9), plan.sheet()
        assert errors_of(whole_state, state) < 1e-9, plan.sheet()
