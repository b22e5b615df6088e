"""Islands as pipeline stages of different widths: the same numbers as one device, in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from meshwright.capture.load import load_example
from meshwright.capture.source.example import Step
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.degraded import degraded
from meshwright.plan.island_plan import save_island_plan
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout, factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support.island_bodies import STEPS, trained_on_islands, went_on
from support.island_plans import GPT, LENET, WIDTHS, drawn, drawn_stages, graph_of
from support.module_bodies import BATCH, batch_of, errors_of, example_of, plain
from support.typed import typed


@pytest.mark.ranks
@pytest.mark.parametrize("source", [LENET, GPT])
@pytest.mark.parametrize("ranks", WIDTHS)
def test_stages_of_different_widths_equal_one_device(source: str, ranks: int) -> None:
    plans = [drawn_stages(source, widths, number) for number, widths in enumerate(WIDTHS[ranks])]
    graph = graph_of(source)
    cluster = Cluster.named("laptop").resized({"process": 1})
    whole = Plan.of("one", graph, cluster, [Layout(()) for _ in units(graph)])
    losses, state = plain(source, whole, STEPS, 1.0)
    results = run_ranks(trained_on_islands, source, plans, graph, ranks=ranks)
    for number, plan in enumerate(plans):
        first = results[0]
        assert isinstance(first, list)
        assert first[number][0] == pytest.approx(losses, rel=1e-9), plan.sheet()
        assert first[number][1].keys() == state.keys()
        assert errors_of(first[number][1], state) < 1e-9, plan.sheet()
        for rank in range(1, ranks):
            other = results[rank]
            assert isinstance(other, list)
            assert other[number] == (first[number][0], None)


def alone(source: str, steps: int) -> list[float]:
    """What `run` trains, on one device."""
    torch.manual_seed(0)
    example = load_example(source, BATCH, torch.device("cpu"))
    example.model.double()
    batch, step = batch_of(example, graph_of(source)), Step(example)
    optimizer = torch.optim.Adam(example.model.parameters(), 1e-3)
    losses, count = [], len(batch) - len(example.targets)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step(tuple(batch[:count]), {}, tuple(batch[count:]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["stages", "shares"])
def test_the_verb_run_takes_plans_over_islands(kind: str, tmp_path: Path) -> None:
    source = LENET
    plan = drawn_stages(source, (2, 1), 1) if kind == "stages" else drawn(source, 3, 0)
    path = str(tmp_path / "plan.json")
    save_island_plan(msgspec.structs.replace(plan, model=source), path)
    result = typed("run", path, "--steps", "2", "--json", PYTHONWARNINGS="ignore")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["measured"]["loss"] == pytest.approx(alone(source, 3), rel=1e-9)
    assert len(document["measured"]["steps_s"]) == 2
    assert document["predicted"]["step_s"] > 0
    refused = typed("run", path, "--measure")
    assert refused.returncode == 2
    assert "--measure is given" in refused.stderr


def data_parallel(unit: OpGroup, cluster: Cluster) -> Layout:
    role = "sample" if "sample" in unit.extents else "replica"
    return Layout((role,) * len(factors(cluster)))


@pytest.mark.ranks
def test_a_state_goes_on_under_any_other_plan_on_other_ranks() -> None:
    """From islands that share the batch, of which one is lost, to a regular plan, to stages."""
    graph = graph_of(GPT)
    shares = drawn(GPT, 3, 0)
    left = degraded(shares.cluster, ["i1"])
    assert isinstance(left, Cluster)
    regular = Plan.of("left", graph, left, [data_parallel(unit, left) for unit in units(graph)])
    state: dict[str, Any] | None = None
    for plan, ranks in ((shares, 3), (regular, left.devices), (drawn_stages(GPT, (1, 2), 0), 3)):
        state = run_ranks(went_on, GPT, plan, state, graph, ranks=ranks)[0]  # type: ignore[assignment]
        assert state is not None
    example = example_of(GPT)
    batch, step = batch_of(example, graph), Step(example)
    optimizer = torch.optim.SGD(example.model.parameters(), 0.1)
    count = len(batch) - len(example.targets)
    for _ in range(3):
        optimizer.zero_grad()
        step(tuple(batch[:count]), {}, tuple(batch[count:])).backward()
        optimizer.step()
    expected = {key: tensor.numpy() for key, tensor in example.model.state_dict().items()}
    assert state is not None
    assert state.keys() == expected.keys()
    assert errors_of(state, expected) < 1e-9
