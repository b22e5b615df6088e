"""Strategies that need no search: their layouts as literals, and what each promises."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.baselines import BASELINES, applicable
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.layer_stages import contiguous
from meshwright.baselines.operator_placement import scheduled
from meshwright.baselines.roles import intra_machine_factors
from meshwright.baselines.tensor import tensor_splits
from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA
from meshwright.sharding.states import PARTIAL
from meshwright.sharding.units import units
from support.baseline_graphs import (
    FUSED,
    PLAIN,
    convolutional,
    recommendation,
    recurrent,
    transformer,
)

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
SIX = Cluster.named("flexflow-p100", node=2, gpu=3)


@pytest.mark.parametrize(
    "graph",
    [convolutional(), transformer(), FUSED, PLAIN, recurrent(), recommendation(20, 90, 40)],
    ids=lambda graph: graph.name,
)
def test_these_graphs_are_consistent(graph: OperatorGraph) -> None:
    assert check(graph) == ()


def texts(plan: Plan) -> dict[str, str]:
    return dict(plan.layouts)


def test_data_parallel() -> None:
    plan = BASELINES["data parallel"](convolutional(), FOUR)
    assert set(texts(plan).values()) == {"sample sample"}
    assert BASELINES["data parallel"](recurrent(), SIX).layout["zeros0"].roles == (REPLICA,) * 2


def test_few_samples_are_cut_inside_machines() -> None:
    plan = BASELINES["data parallel"](convolutional(batch=2), FOUR)
    assert set(texts(plan).values()) == {"replica sample"}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_is_data_parallel_with_shards(stage: int) -> None:
    plan = BASELINES[f"zero {stage}"](convolutional(), SIX)
    assert plan.layouts == BASELINES["data parallel"](convolutional(), SIX).layouts
    assert plan.options.zero == stage


def test_model_parallel() -> None:
    plan = BASELINES["model parallel"](transformer(layers=2), FOUR)
    assert texts(plan) == {
        "0.q": "@0 @0", "0.k": "@0 @0", "0.v": "@0 @0", "0.a": "@0 @0", "0.f": "@0 @0",
        "0.o": "@0 @0", "0.add": "@0 @0", "0.up": "@0 @1", "0.gelu": "@0 @1",
        "0.down": "@0 @1", "0.add2": "@0 @1",
        "1.q": "@1 @0", "1.k": "@1 @0", "1.v": "@1 @0", "1.a": "@1 @0", "1.f": "@1 @0",
        "1.o": "@1 @0", "1.add": "@1 @1", "1.up": "@1 @1", "1.gelu": "@1 @1",
        "1.down": "@1 @1", "1.add2": "@1 @1",
    }  # fmt: skip


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 5))
def test_stages_are_contiguous_and_the_largest_is_least(loads: list[int], count: int) -> None:
    stages = contiguous(loads, count)
    assert stages == sorted(stages)
    assert set(stages) == set(range(max(stages) + 1))
    assert max(stages) < count
    assert max(_sums(loads, stages)) == _least(loads, count)
    if any(loads):
        assert max(stages) + 1 == min(count, sum(map(bool, loads)))


def _sums(loads: list[int], stages: list[int]) -> list[int]:
    return [
        sum(load for load, load_stage in zip(loads, stages, strict=True) if load_stage == stage)
        for stage in range(max(stages) + 1)
    ]


def _least(loads: list[int], count: int) -> int:
    """By trying every first stage."""
    if count == 1 or not loads:
        return sum(loads)
    return min(
        max(sum(loads[:at]), _least(loads[at:], count - 1)) for at in range(1, len(loads) + 1)
    )


def test_one_weird_trick() -> None:
    plan = BASELINES["expert-designed"](convolutional(), SIX)
    assert plan.origin == "expert: one weird trick"
    assert texts(plan) == {
        "conv": "sample sample",
        "flat": "sample sample",
        "first": "channel channel",
        "relu": "dim1 dim1",
        "second": "channel channel",
        "loss": "sample sample",
    }


def test_what_all_factors_cannot_cut_is_cut_inside_machines() -> None:
    plan = BASELINES["expert-designed"](convolutional(classes=3), SIX)
    assert texts(plan)["second"] == "sample channel"


def test_encoder_and_decoder_lie_side_by_side() -> None:
    """A decoder's state comes from the encoder, but its depth is that of its input."""
    plan = BASELINES["expert-designed"](zoo("nmt"), Cluster.named("flexflow-p100", node=2, gpu=4))
    layouts = texts(plan)
    for layer in range(2):
        name = f"coder.layers.{layer}.lstm"
        assert layouts[f"en{name}"] == layouts[f"de{name}_3"]
    assert layouts["encoder.layers.0.lstm"] != layouts["encoder.layers.1.lstm"]


def test_layers_on_devices() -> None:
    plan = BASELINES["expert-designed"](recurrent(), SIX)
    assert plan.origin == "expert: layers on devices"
    assert texts(plan) == {
        "embed": "sample @0",
        "split": "sample @0",
        "zeros0": "replica @0",
        "lstm0.0": "sample @0",
        "lstm0.1": "sample @0",
        "zeros1": "replica @1",
        "lstm1.0": "sample @1",
        "lstm1.1": "sample @1",
        "head": "sample @2",
    }


def test_tables_on_devices() -> None:
    plan = BASELINES["expert-designed"](recommendation(20, 90, 40), FOUR)
    assert plan.origin == "expert: tables on devices"
    assert texts(plan) == {
        "e0": "@1 @0",
        "e1": "@0 @0",
        "e2": "@0 @1",
        "cat": "sample sample",
        "top": "sample sample",
    }


def test_a_large_table_is_cut() -> None:
    """2 GiB are an eighth of a P100. Four columns cannot be cut by six, so rows are."""
    rows = (2 << 30) // 16
    fits = BASELINES["expert-designed"](recommendation(20, rows, 40), FOUR)
    assert texts(fits)["e1"] == "@0 @0"
    cut = BASELINES["expert-designed"](recommendation(20, rows + 1, 40), FOUR)
    assert texts(cut)["e1"] == "channel channel"
    assert texts(cut)["e2"] == "@0 @0"
    by_rows = BASELINES["expert-designed"](recommendation(20, rows + 2, 40), SIX)
    assert texts(by_rows)["e1"] == "vocabulary vocabulary"


def test_megatron_inside_a_node() -> None:
    plan = BASELINES["expert-designed"](transformer(), FOUR)
    assert plan.origin == "expert: megatron"
    layer = {
        "q": "sample channel",
        "k": "sample channel",
        "v": "sample channel",
        "a": "sample head",
        "f": "sample dim2",
        "o": "sample inner",
        "add": "sample replica",
        "up": "sample channel",
        "gelu": "sample dim2",
        "down": "sample inner",
        "add2": "sample replica",
    }
    assert texts(plan) == {f"{i}.{name}": text for i in range(2) for name, text in layer.items()}


def test_megatron_where_queries_keys_and_values_are_one_product() -> None:
    """What cuts it apart needs it whole, so it is gathered there."""
    layer = {
        "qkv": "sample channel",
        "c": "sample replica",
        "a": "sample head",
        "f": "sample dim2",
        "o": "sample inner",
    }
    plan = BASELINES["expert-designed"](FUSED, FOUR)
    layers = {f"{i}.{name}": text for i in range(2) for name, text in layer.items()}
    assert texts(plan) == layers | {"last": "sample replica"}


def test_megatron_where_attention_is_not_fused() -> None:
    layer = {
        "q": "sample channel",
        "k": "sample channel",
        "v": "sample channel",
        "score": "sample batch1",
        "soft": "sample dim1",
        "a": "sample batch1",
        "f": "sample dim2",
        "o": "sample inner",
    }
    plan = BASELINES["expert-designed"](PLAIN, FOUR)
    assert plan.origin == "expert: megatron"
    layers = {f"{i}.{name}": text for i in range(2) for name, text in layer.items()}
    assert texts(plan) == layers | {"last": "sample replica"}


def test_heads_that_a_node_cannot_cut_stay_whole() -> None:
    """Four heads cannot be cut three ways; six can."""
    data = BASELINES["expert-designed"](transformer(batch=12), SIX)
    assert set(texts(data).values()) == {"sample sample"}
    cut = BASELINES["expert-designed"](transformer(batch=12, heads=6), SIX)
    assert cut.layout["0.a"].roles == ("sample", "head")


def test_megatron_with_a_pipeline() -> None:
    config = ParallelConfig(tensor=2, pipeline=2, micro_batches=4)
    plan = configured(transformer(layers=4), FOUR, config)
    assert plan.options.micro_batches == 4
    assert texts(plan)["1.a"] == "@0 head"
    assert texts(plan)["1.add2"] == "@0 replica"
    assert texts(plan)["2.q"] == "@1 channel"
    assert texts(plan)["3.down"] == "@1 inner"


@pytest.mark.parametrize(("last", "found"), [(8, {0: 1, 1: 1, 2: 2}), (5, {})])
def test_a_pair_of_linear_layers_gives_back_what_it_took(last: int, found: dict[int, int]) -> None:
    graph = parse_graph(
        f"""graph pair
        input x: float32[n=4, d=8]
        parameter a: float32[o=12, i=8]
        parameter b: float32[o={last}, i=12]
        operator up: u: float32[n=4, d=12] = linear(x, a)
        operator relu: r: float32[n=4, d=12] = relu(u)
        operator down: d: float32[n=4, d={last}] = linear(r, b)
        operator last: y: float32[n=4, d={last}] = relu(d)
        output y"""
    )
    assert tensor_splits(graph, units(graph)) == found


def test_no_attention_no_megatron() -> None:
    with pytest.raises(InputError, match="no repeated attention layers"):
        configured(convolutional(), FOUR, ParallelConfig(tensor=2, data=2))


NAMES = [
    entry.name for entry in ENTRIES if entry.name not in ("llama3-70b", "gpt3-175b", "resnet-50")
]
"""Without those that are like another one but larger."""


@cache
def zoo(name: str) -> OperatorGraph:
    return load_model(f"zoo:{name}/tiny").graph


EXPERTS = {
    "alexnet": "one weird trick",
    "lenet": "one weird trick",
    "inception-v3": "one weird trick",
    "resnet-101": "one weird trick",
    "resnext-50": "one weird trick",
    "rnntc": "layers on devices",
    "rnnlm": "layers on devices",
    "nmt": "layers on devices",
    "bert-large": "megatron",
    "gpt2-xl": "megatron",
    "llama3-8b": "megatron",
    "mixtral-8x7b": "megatron",
    "vit-large": "megatron",
    "dit-xl": "megatron",
    "sdxl-unet": "megatron",
    "t5-large": "megatron",
    "dlrm": "tables on devices",
    "xdl": "tables on devices",
}


@pytest.mark.parametrize("name", NAMES)
def test_zoo(name: str) -> None:
    plans = applicable(zoo(name), FOUR)
    missing = set() if name in EXPERTS else {"expert-designed"}
    missing |= set() if name == "mixtral-8x7b" else {"expert parallel"}
    assert set(BASELINES) - set(plans) == missing
    if name in EXPERTS:
        assert plans["expert-designed"].origin == f"expert: {EXPERTS[name]}"


@pytest.mark.parametrize("name", ["bert-large", "llama3-8b", "t5-large", "vit-large"])
def test_megatron_sums_no_gradients_of_cut_weights_inside_a_node(name: str) -> None:
    """On a factor inside a node a weight is cut, or every device has its whole gradient."""
    plan = BASELINES["expert-designed"](zoo(name), FOUR)
    weights = {parameter.tensor.name for parameter in zoo(name).parameters}
    cut = 0
    for unit in plan.units:
        roles = plan.layout[unit.name].roles
        for factor in intra_machine_factors(FOUR):
            if roles[factor] == REPLICA:
                continue
            number = [split.name for split in unit.splits].index(roles[factor])
            for boundary in unit.inputs:
                if boundary.tensor in weights and boundary.backward is not None:
                    assert boundary.backward[number] != PARTIAL
                    cut += boundary.forward[number] >= 0
    assert cut >= 12


@pytest.mark.parametrize("name", NAMES)
def test_placement_uses_one_device_for_each_unit(name: str) -> None:
    plan = BASELINES["operator placement"](zoo(name), SIX)
    assert all(role.startswith("@") for layout in plan.layout.values() for role in layout.roles)


def test_placement_keeps_a_chain_together_and_spreads_branches() -> None:
    chain = scheduled(convolutional(), SIX)
    assert set(chain.devices) == {0}
    size = 512
    lines = ["graph wide", f"input x: float32[n=4096, d={size}]"]
    lines += [f"parameter w{i}: float32[o={size}, i={size}]" for i in range(3)]
    lines += [f"operator b{i}: b{i}: float32[n=4096, d={size}] = linear(x, w{i})" for i in range(3)]
    lines += [f"operator s{i}: s{i}: float32[] = sum(b{i})" for i in range(3)]
    lines += [f"output s{i}" for i in range(3)]
    branches = scheduled(parse_graph("\n".join(lines)), SIX)
    assert branches.devices[:3] == (0, 1, 2)


@pytest.mark.parametrize("name", ["nmt", "inception-v3", "llama3-8b", "mlp"])
def test_placement_is_never_worse_than_one_device(name: str) -> None:
    one = Cluster.named("flexflow-p100", node=1, gpu=1)
    assert scheduled(zoo(name), SIX).seconds <= scheduled(zoo(name), one).seconds


@pytest.mark.parametrize(
    ("graph", "strategy", "cluster", "expected"),
    [
        (
            convolutional(),
            "expert-designed",
            FOUR,
            "sample sample, sample sample, channel channel, dim1 dim1, channel channel, "
            "sample sample",
        ),
        (
            recurrent(),
            "expert-designed",
            FOUR,
            "sample @0, sample @0, replica @0, sample @0, sample @0, replica @1, sample @1, "
            "sample @1, sample @1",
        ),
        (
            recommendation(20, 90, 40),
            "expert-designed",
            SIX,
            "@0 @2, @0 @0, @0 @1, sample sample, sample sample",
        ),
        (
            convolutional(),
            "model parallel",
            FOUR,
            "@0 @0, @0 @0, @0 @1, @1 @0, @1 @0, @1 @1",
        ),
        (
            convolutional(),
            "model parallel",
            SIX,
            "@0 @0, @0 @0, @0 @1, @0 @2, @1 @0, @1 @1",
        ),
        (convolutional(), "operator placement", FOUR, ", ".join(["@0 @0"] * 6)),
        (
            recurrent(),
            "data parallel",
            SIX,
            "sample sample, sample sample, replica replica, sample sample, sample sample, "
            "replica replica, sample sample, sample sample, sample sample",
        ),
    ],
)
def test_whole_plans(graph: OperatorGraph, strategy: str, cluster: Cluster, expected: str) -> None:
    plan = BASELINES[strategy](graph, cluster)
    assert ", ".join(layout for _, layout in plan.layouts) == expected


def test_pipeline_of_two_nodes_of_three() -> None:
    graph = transformer(layers=2, batch=12, heads=6)
    plan = configured(graph, SIX, ParallelConfig(tensor=3, pipeline=2, micro_batches=2))
    roles = ["channel"] * 3 + ["head", "dim2", "inner", "replica"]
    roles += ["channel", "dim2", "inner", "replica"]
    assert [text for _, text in plan.layouts] == [
        f"@{i} {name}" for i in range(2) for name in roles
    ]
