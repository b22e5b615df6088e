"""Sharded parameters: fetched for each use, not too early, and held meanwhile."""

from __future__ import annotations

import pytest

from meshwright.base.quantities import BytesPerSecond
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.lower.prefetch import AHEAD
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.simulate.memory.memory_timeline import curves
from meshwright.simulate.simulation import Simulation, simulate
from support.strategies import DEVICE
from support.uniform_chain import RoundPricer, chain

LAYERS, BATCH, SIDE = 12, 16, 8
WEIGHT = SIDE * SIDE * 4


def two(bandwidth: float) -> Cluster:
    link = Link(
        name="wire", per="gpu", out=BytesPerSecond(bandwidth), into=BytesPerSecond(bandwidth)
    )
    return Cluster(
        name="two", levels=(Level(name="gpu", cardinality=2, links=(link,)),), device=DEVICE
    )


def trained(zero: int, micro_batches: int = 1, bandwidth: float = 1e12) -> Simulation:
    """A chain of layers of 1 ms and 2 ms on two devices, each with half of the samples."""
    graph, cluster = chain(LAYERS, BATCH), two(bandwidth)
    options = Options(optimizer="sgd", zero=zero, micro_batches=micro_batches)
    layouts = [Layout.parse("sample")] * LAYERS
    return simulate(
        Plan.of("test", graph, cluster, layouts, options), operators=RoundPricer(cluster.device)
    )


def begins(simulation: Simulation, kind: str) -> dict[tuple[int, int], int]:
    """When the live tasks of a kind begin, by subject and micro-batch."""
    labels, tasks = simulation.problem.labels, simulation.problem.tasks
    rows = zip(labels.kind, labels.subject, labels.micro_batch, strict=True)
    return {
        (subject, micro): int(simulation.timeline.end[n] - tasks.duration[n])
        for n, (task_kind, subject, micro) in enumerate(rows)
        if task_kind == kind and tasks.live[n]
    }


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_every_use_of_every_micro_batch_fetches(micro_batches: int) -> None:
    simulation = trained(3, micro_batches)
    for kind in ("carry", "again"):
        assert len(begins(simulation, kind)) == LAYERS * micro_batches
    # Each device sends half of every weight for each fetch, and half of every gradient once.
    fetched, summed = 2 * micro_batches, 1
    assert simulation.problem.moved == pytest.approx(LAYERS * WEIGHT * (fetched + summed))


def test_fetching_begins_some_uses_ahead() -> None:
    simulation = trained(3)
    forward, fetched = begins(simulation, "forward"), begins(simulation, "carry")
    readers = {
        b: edge.consumers[0].unit
        for b, edge in enumerate(simulation.problem.bundles)
        if edge.parameters
    }
    for (bundle, _), begin in fetched.items():
        layer = readers[bundle]
        assert begin == forward[max(0, layer - AHEAD), 0] or layer <= AHEAD
        assert begin < forward[layer, 0]


def test_what_hides_takes_no_time() -> None:
    """A fetch takes 1.28 us of 1 ms; at a thousandth of the rate the first ones are waited for."""
    whole, sharded = (trained(zero).prediction.step for zero in (0, 3))
    assert sharded < whole * 1.01
    assert (
        trained(3, bandwidth=1e5).prediction.step > 1.02 * trained(0, bandwidth=1e5).prediction.step
    )


def test_what_is_fetched_is_held_until_it_was_used() -> None:
    curve, other = (
        next(curves(simulation.problem, simulation.problem.roles, simulation.timeline))
        for simulation in (trained(3), trained(2))
    )
    assert curve.standing.parameters == LAYERS * WEIGHT / 2
    assert other.standing.parameters == LAYERS * WEIGHT
    # Half of each weight comes besides, of at most AHEAD + 1 layers at a time; of the one that
    # arrives the row is there too from which it is put together.
    more = curve.passing.max() - other.passing.max()
    assert 0 < more <= (AHEAD + 1 + 1) * WEIGHT / 2
