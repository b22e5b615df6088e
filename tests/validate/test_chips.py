"""Chips of one kind are priced by one law: an H200 is an H100 with other memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshwright.baselines.data import data_parallel
from meshwright.cluster.catalogue import catalogue_names, catalogued
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Software
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import transformer


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize(
    ("h200", "h100"),
    [("dgx-h200", "dgx-h100"), ("aws-p5e", "aws-p5"), ("azure-nd-h200", "azure-nd-h100"),
     ("gcp-a3-ultra", "gcp-a3-mega")],
)  # fmt: skip
def test_an_h200_computes_as_an_h100_does(h200: str, h100: str, fuses: bool) -> None:
    graph = transformer(batch=2, heads=32, sequence=4096, width=128, dtype="bfloat16")

    def step(name: str) -> float:
        cluster = Cluster.named(name, node=1, gpu=2)
        device = replace(cluster.device, software=Software(fuses=fuses, wide=True))
        return simulate(data_parallel(graph, replace(cluster, device=device))).prediction.step

    assert 0.9 < step(h200) / step(h100) <= 1.0


def test_measured_prices_are_those_of_the_machine_that_was_measured() -> None:
    priced = [it for it in catalogue_names() if catalogued(it).device.prices == "H200-SXM-141GB"]
    assert priced == ["h200"]
