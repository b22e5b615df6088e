"""One configuration has one price: whoever asks, with the same software."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cli.check_options import Given, require_own_software, written
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import (
    KNOWN,
    cluster_with_software,
    describe_software,
    megatron_software,
)
from meshwright.configs.find_plan import find_plan
from meshwright.configs.judge import judge
from meshwright.configs.recipes import recipes
from meshwright.configs.written import Written
from meshwright.plan.options import LAYERWISE, Options
from support.baseline_graphs import transformer

AXES = {
    "DP": "data", "FSDP": "data", "TP": "tensor", "CP": "context", "PP": "pipeline", "EP": "expert"
}  # fmt: skip
"""How recipes name degrees, and what `check` calls them."""


def degrees_in(name: str, options: Options, devices: int) -> Given:
    """What a person gives `check` who reads the name of a recipe and its options."""
    plain = re.sub(r"\(ZeRO 3\)|HSDP.*", "", name)
    said = re.findall(r"\b([A-Z]+) (\d+)", plain)
    degrees: Given = {AXES[axis]: int(number) for axis, number in said}
    return {
        "data": devices,
        **degrees,
        "micro_batches": options.micro_batches,
        "zero": options.zero,
        "shard_within": options.shard_within,
        "recompute": options.recompute,
        "mixed": options.mixed,
    }


@given(
    nodes=st.sampled_from([1, 2]),
    gpus=st.sampled_from([1, 2, 4]),
    batch=st.sampled_from([4, 16, 64]),
    share=st.sampled_from([1.0, 1e-6, 3e-7]),
    software=st.sampled_from([None, *KNOWN]),
    mixed=st.booleans(),
)
def test_check_prices_what_plan_shows_beside_its_own(
    nodes: int, gpus: int, batch: int, share: float, software: str | None, mixed: bool
) -> None:
    cluster = cluster_with_software(Cluster.named("dgx-h100", node=nodes, gpu=gpus), software)
    graph, memory = transformer(4, batch=batch), Bytes(int(cluster.device.memory * share))
    shown = recipes(graph, cluster, memory, training=Options(mixed=mixed)).fitted
    assert shown
    for name, simulation in shown:
        degrees = degrees_in(name, simulation.plan.options, cluster.devices)
        asked = written(None, None, degrees, cluster.devices)
        checked = judge(asked, graph, cluster, memory, better=False)
        assert checked.simulation is not None, (name, checked.problems)
        assert checked.simulation.plan.layouts == simulation.plan.layouts, name
        assert checked.simulation.prediction == simulation.prediction, name


def test_gradients_of_a_layer_are_reduced_together() -> None:
    cluster = Cluster.named("dgx-h100", node=1, gpu=2)
    shown = recipes(transformer(4, batch=4), cluster, cluster.device.memory).fitted
    assert {simulation.plan.options.bucket for _, simulation in shown} == {LAYERWISE}


def test_software_is_said_and_changes_what_is_priced() -> None:
    plain = Cluster.named("dgx-h100", node=1, gpu=2)
    assert cluster_with_software(plain, None) is plain
    words = {name: describe_software(cluster_with_software(plain, name)) for name in KNOWN}
    assert words["eager"] == describe_software(plain) == "eager PyTorch"
    assert len(set(words.values())) == len(KNOWN)
    narrow = replace(plain.device, software=replace(plain.device.running, products="fp8"))
    assert describe_software(
        cluster_with_software(replace(plain, device=narrow), "compiled")
    ).endswith(", products in fp8")
    software = megatron_software(tensor_overlap=False)
    other = replace(plain, device=replace(plain.device, software=software))
    assert describe_software(other) == "fused kernels, gradients in float32"
    with pytest.raises(InputError, match=r"the software is 'megatrn'.*megatron"):
        cluster_with_software(plain, "megatrn")


def test_python_names_the_size_of_the_machine_and_its_software() -> None:
    planned = find_plan(
        transformer(1, batch=4), "dgx-h100", nodes=2, gpus=1, software="compiled", budget="5"
    )
    assert planned.plan.cluster.hierarchy == (2, 1)
    assert describe_software(planned.plan.cluster) == "compiled PyTorch (fused kernels)"
    assert "priced as compiled PyTorch" in str(planned)


def test_a_file_says_its_own_software() -> None:
    configuration = Written(form="megatron", config=ParallelConfig())
    require_own_software(None, configuration)
    require_own_software("eager", replace(configuration, form="options"))
    with pytest.raises(InputError, match="--software is 'eager', and the configuration is one of"):
        require_own_software("eager", configuration)
