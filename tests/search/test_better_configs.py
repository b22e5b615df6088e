"""The best configuration of a form does not depend on the one that is given."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.base.quantities import Bytes
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.configs.better import ConfigTrials
from meshwright.configs.written import Form
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.memory import LIBRARY
from meshwright.cost.tables import pricer_of
from meshwright.search.jobs import cluster_of
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

MODEL = "zoo:llama3-8b/tiny?layers=4&hidden=64&heads=8&key_value_heads=4&sequence=16"
STARTS = (
    ParallelConfig(data=2, tensor=4, sequence=True),
    ParallelConfig(pipeline=4, data=2, micro_batches=8, recompute=True, zero=3),
    ParallelConfig(data=8, zero=2),
)


@pytest.mark.parametrize("form", ["options", "torchtitan"])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_best_does_not_depend_on_the_start(form: Form, share: float) -> None:
    """With all the memory that plain data parallelism needs, and with half of it."""
    graph, cluster = load_model(MODEL, 16).graph, cluster_of("gcp-a100 node=2 gpu=4")
    prices = CollectivePrices(Pricer(cluster, algorithm="best"), programs=False)
    operators = pricer_of(cluster.device)
    held = simulate(configured(graph, cluster, ParallelConfig(data=8)), prices, operators)
    besides = held.prediction.memory.framework + LIBRARY
    memory = Bytes(besides + int(share * (held.prediction.memory.total - besides)))
    candidates = []
    for start in STARTS:
        trials = ConfigTrials(graph, cluster, form, memory, prices, operators)
        trials.simulation(start)
        best = trials.best(start)
        assert best is not None
        assert best.prediction.memory.total <= memory
        candidates.append(best)
        before = trials.simulation(start).prediction
        assert best.prediction.step <= before.step or before.memory.total > memory
    assert len({candidate.prediction for candidate in candidates}) == 1
