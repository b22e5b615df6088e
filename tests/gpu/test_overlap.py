"""Communication beside computing on a GPU, seen in a trace of torch.profiler."""

from __future__ import annotations

from typing import cast

import pytest

from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.run.training import TrainingTask
from support.training_bodies import beside_communication

pytestmark = pytest.mark.gpu

BERT = "zoo:bert-large?layers=6&hidden=512&heads=8&inner=2048&vocabulary=2000&dropout=0"


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_buckets_travel_while_layers_compute(zero: int) -> None:
    """Without a stream of their own collectives would stand beside no kernel at all. Between the
    first of them and the last lies a forward pass that has none with ZeRO 0 and 1, too.
    """
    cluster = Cluster.named("dgx-h100", node=2, gpu=1)
    config = ParallelConfig(data=2, zero=zero, bucket=Bytes(4 << 20))
    plan = configured(load_model(BERT, 32).graph, cluster, config)
    task = TrainingTask(plan, BERT, steps=2)
    timings = run_ranks(
        beside_communication, task, ranks=2, home=Home(gpus=1), timeout=Seconds(300.0)
    )
    for computing, beside in cast(list[tuple[int, int]], timings):
        print(f"ZeRO {zero}: {beside / 1e6:.1f} of {computing / 1e6:.1f} ms beside collectives")
        assert beside > 0.1 * computing
