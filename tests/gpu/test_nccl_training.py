"""Training by `meshwright run` on NCCL ranks that share a GPU: every way to spend less memory,
every schedule, both precisions, against plain PyTorch on the same GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from meshwright.base.quantities import Seconds
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.plan import Measurement
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.run.training import TrainingTask
from support.loop_bodies import masked
from support.loop_plans import masking_plans
from support.training_bodies import trains_each

pytestmark = pytest.mark.gpu

BERT = (
    "zoo:bert-large?layers=4&hidden=64&heads=4&inner=128&vocabulary=96&sequence=16&positions=16"
    "&dropout=0"
)
TIED = "zoo:gpt2-xl?layers=4&hidden=64&heads=4&vocabulary=96&sequence=16&dropout=0"
BATCH, STEPS = 16, 4


def wrong(source: str, configs: Sequence[ParallelConfig], dtype: str = "float32") -> list[str]:
    """The configurations of 4 ranks whose numbers are not those of one device."""
    graph = cast_graph(load_model(source, BATCH).graph, dtype)
    cluster = Cluster.named("dgx-h100", node=2, gpu=2)
    tasks = [
        TrainingTask(configured(graph, cluster, config), source, steps=STEPS, one_device=True)
        for config in configs
    ]
    (measurements, *_) = run_ranks(
        trains_each, tasks, ranks=4, home=Home(gpus=1), timeout=Seconds(600.0)
    )
    verdicts = [measurement.one_device for measurement in cast(list[Measurement], measurements)]
    return [
        f"{config}: {one}"
        for config, one in zip(configs, verdicts, strict=True)
        if one is None or not one.equal
    ]


def test_sharded_states_and_recomputation() -> None:
    configs = [
        ParallelConfig(data=4, zero=zero, recompute=recompute, micro_batches=2)
        for zero in (0, 1, 2, 3)
        for recompute in (False, True)
    ]
    assert wrong(BERT, configs) == []


@pytest.mark.parametrize("source", [BERT, TIED])
def test_pipelines_and_tensors(source: str) -> None:
    configs = [
        ParallelConfig(data=2, pipeline=2, micro_batches=4, schedule="gpipe"),
        ParallelConfig(data=2, pipeline=2, micro_batches=4, schedule="1f1b", zero=1),
        ParallelConfig(data=2, pipeline=2, micro_batches=4, chunks=2, zero=2),
        ParallelConfig(tensor=2, pipeline=2, micro_batches=2, sequence=True),
        ParallelConfig(data=2, tensor=2, zero=3),
    ]
    assert wrong(source, configs) == []


def test_half_precision() -> None:
    configs = [ParallelConfig(data=4, zero=zero) for zero in (0, 1, 2, 3)]
    assert wrong(BERT, configs, "bfloat16") == []


def test_masks_are_those_of_every_plan_and_of_the_cpu() -> None:
    """Dropout by its law (seed, step, operator, place): data, tensor and pipeline parallel, ZeRO 3
    and ranks on CPUs drop the same elements.
    """
    plans = masking_plans()
    on_gpus, on_cpus = (
        cast(list[list[list[float]]], run_ranks(masked, plans, ranks=2, home=home))
        for home in (Home(gpus=1), Home())
    )
    for losses in (*on_gpus[0], *on_gpus[1], *on_cpus[0]):
        assert losses == pytest.approx(on_gpus[0][0], rel=1e-9)
