"""The tiny twins of the zoo, planned, explained and followed byte by byte as before.

On two nodes of two GPUs every phase of a search has something to do, and none takes long.
"""

from __future__ import annotations

import pytest

from meshwright.capture.load import load_model
from meshwright.capture.source.zoo_names import ZOO
from meshwright.search.jobs import cluster_of
from meshwright.search.joint.request.question import PlanRequest
from replay.golden import compare
from replay.record import replayed

CLUSTER, BATCH, PROPOSALS = "gcp-a100 node=2 gpu=2", 8, 50

SLOW = ("inception-v3", "nmt", "t5-large")
"""A third of the time; 'make replay' has them too."""

MODELS = [pytest.param(name, marks=[pytest.mark.replay] * (name in SLOW)) for name in ZOO]


@pytest.mark.parametrize("name", MODELS)
def test_as_before(name: str) -> None:
    cluster = cluster_of(CLUSTER)
    question = PlanRequest(
        graph=load_model(f"zoo:{name}/tiny", BATCH).graph,
        cluster=cluster,
        memory=cluster.device.memory,
    )
    compare(f"tiny/{name}", replayed(question, PROPOSALS))
