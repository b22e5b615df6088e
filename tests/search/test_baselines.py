"""Strategies that need no search: their layouts as literals, and what each promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.model import Cluster
from meshwright.foundation.errors import InputError
from meshwright.graph.check import check
from meshwright.graph.model import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.parallelize.layout import REPLICA
from meshwright.parallelize.states import PARTIAL
from meshwright.plan.model import Plan
from meshwright.search.baselines import BASELINES, applicable
from meshwright.search.baselines.megatron import megatron
from meshwright.search.baselines.placement import scheduled
from meshwright.search.baselines.roles import inside_machine
from meshwright.search.baselines.stages import contiguous

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
SIX = Cluster.named("flexflow-p100", node=2, gpu=3)


def convolutional(batch: int = 12) -> OperatorGraph:
    n = f"n={batch}"
    return parse_graph(
        f"""graph cnn
        input x: float32[{n}, c=3, h=8, w=8]
        input t: int64[{n}]
        parameter k: float32[o=6, i=3, kh=3, kw=3]
        parameter a: float32[o=12, i=216]
        parameter b: float32[o=18, i=12]
        operator conv: c: float32[{n}, c=6, h=6, w=6] = conv2d(x, k)
        operator flat: f: float32[{n}, d=216] = flatten(c) {{start_dim=1}}
        operator first: p: float32[{n}, d=12] = linear(f, a)
        operator relu: q: float32[{n}, d=12] = relu(p)
        operator second: r: float32[{n}, d=18] = linear(q, b)
        operator loss: l: float32[] = cross_entropy_loss(r, t)
        output l
        loss l"""
    )


def transformer(layers: int = 2, batch: int = 4, heads: int = 4) -> OperatorGraph:
    n, d = f"n={batch}", 4 * heads
    lines = ["graph transformer", f"input x: float32[{n}, s=6, d={d}]"]
    body = []
    for i in range(layers):
        before = f"h{i}" if i else "x"
        lines += [f"parameter w{i}.{name}: float32[o={d}, i={d}]" for name in "qkvo"]
        lines += [f"parameter w{i}.up: float32[o={2 * d}, i={d}]"]
        lines += [f"parameter w{i}.down: float32[o={d}, i={2 * d}]"]
        wide, tall = f"float32[{n}, s=6, d={d}]", f"float32[{n}, h={heads}, s=6, e=4]"
        for name in "qkv":
            body += [
                f"{i}.{name}: {i}.{name}: {wide} = linear({before}, w{i}.{name})",
                f"{i}.{name}u: {i}.{name}u: float32[{n}, s=6, h={heads}, e=4] = "
                f"unflatten({i}.{name}) {{dim=2, sizes=[{heads}, 4]}}",
                f"{i}.{name}t: {i}.{name}t: {tall} = transpose({i}.{name}u) {{dim0=1, dim1=2}}",
            ]
        body += [
            f"{i}.a: {i}.a: {tall} = scaled_dot_product_attention({i}.qt, {i}.kt, {i}.vt)",
            f"{i}.at: {i}.at: float32[{n}, s=6, h={heads}, e=4] = "
            f"transpose({i}.a) {{dim0=1, dim1=2}}",
            f"{i}.f: {i}.f: {wide} = flatten({i}.at) {{start_dim=2}}",
            f"{i}.o: {i}.o: {wide} = linear({i}.f, w{i}.o)",
            f"{i}.add: {i}.r: {wide} = add({i}.o, {before})",
            f"{i}.up: {i}.up: float32[{n}, s=6, d={2 * d}] = linear({i}.r, w{i}.up)",
            f"{i}.gelu: {i}.g: float32[{n}, s=6, d={2 * d}] = gelu({i}.up)",
            f"{i}.down: {i}.down: {wide} = linear({i}.g, w{i}.down)",
            f"{i}.add2: h{i + 1}: {wide} = add({i}.down, {i}.r)",
        ]
    lines += [f"operator {line}" for line in body] + [f"output h{layers}"]
    return parse_graph("\n".join(lines))


def attention(text: str) -> OperatorGraph:
    """Two layers of attention over 4 heads of 4, as a text with {i} and the layer before, {x}."""
    wide = "float32[n=8, s=6, d=16]"
    texts = [text.format(i=i, x=f"h{i}", y=f"h{i + 1}") for i in range(2)]
    lines = [line.strip() for own in texts for line in own.splitlines() if line.strip()]
    lines.sort(key=lambda line: not line.startswith("parameter"))
    return parse_graph("\n".join(["graph attention", f"input h0: {wide}", *lines, "output h2"]))


FUSED = attention(
    """
    parameter w{i}: float32[o=48, i=16]
    parameter p{i}: float32[o=16, i=16]
    operator {i}.qkv: {i}.qkv: float32[n=8, s=6, d=48] = linear({x}, w{i})
    operator {i}.c: {i}.q: float32[n=8, s=6, d=16], {i}.k: float32[n=8, s=6, d=16], \
{i}.v: float32[n=8, s=6, d=16] = chunk({i}.qkv) {{chunks=3, dim=2}}
    operator {i}.qu: {i}.qu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.q) {{dim=2, sizes=[4, 4]}}
    operator {i}.ku: {i}.ku: float32[n=8, s=6, h=4, e=4] = unflatten({i}.k) {{dim=2, sizes=[4, 4]}}
    operator {i}.vu: {i}.vu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.v) {{dim=2, sizes=[4, 4]}}
    operator {i}.qt: {i}.qt: float32[n=8, h=4, s=6, e=4] = transpose({i}.qu) {{dim0=1, dim1=2}}
    operator {i}.kt: {i}.kt: float32[n=8, h=4, s=6, e=4] = transpose({i}.ku) {{dim0=1, dim1=2}}
    operator {i}.vt: {i}.vt: float32[n=8, h=4, s=6, e=4] = transpose({i}.vu) {{dim0=1, dim1=2}}
    operator {i}.a: {i}.a: float32[n=8, h=4, s=6, e=4] = \
scaled_dot_product_attention({i}.qt, {i}.kt, {i}.vt)
    operator {i}.at: {i}.at: float32[n=8, s=6, h=4, e=4] = transpose({i}.a) {{dim0=1, dim1=2}}
    operator {i}.f: {i}.f: float32[n=8, s=6, d=16] = flatten({i}.at) {{start_dim=2}}
    operator {i}.o: {y}: float32[n=8, s=6, d=16] = linear({i}.f, p{i})
    """
)
"""Queries, keys and values out of one product."""

PLAIN = attention(
    """
    parameter q{i}: float32[o=16, i=16]
    parameter k{i}: float32[o=16, i=16]
    parameter v{i}: float32[o=16, i=16]
    parameter p{i}: float32[o=16, i=16]
    operator {i}.q: {i}.q: float32[n=8, s=6, d=16] = linear({x}, q{i})
    operator {i}.k: {i}.k: float32[n=8, s=6, d=16] = linear({x}, k{i})
    operator {i}.v: {i}.v: float32[n=8, s=6, d=16] = linear({x}, v{i})
    operator {i}.qu: {i}.qu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.q) {{dim=2, sizes=[4, 4]}}
    operator {i}.ku: {i}.ku: float32[n=8, s=6, h=4, e=4] = unflatten({i}.k) {{dim=2, sizes=[4, 4]}}
    operator {i}.vu: {i}.vu: float32[n=8, s=6, h=4, e=4] = unflatten({i}.v) {{dim=2, sizes=[4, 4]}}
    operator {i}.qt: {i}.qt: float32[n=8, h=4, s=6, e=4] = transpose({i}.qu) {{dim0=1, dim1=2}}
    operator {i}.kt: {i}.kt: float32[n=8, h=4, e=4, s=6] = permute({i}.ku) {{dims=[0, 2, 3, 1]}}
    operator {i}.vt: {i}.vt: float32[n=8, h=4, s=6, e=4] = transpose({i}.vu) {{dim0=1, dim1=2}}
    operator {i}.score: {i}.score: float32[n=8, h=4, s=6, t=6] = matmul({i}.qt, {i}.kt)
    operator {i}.soft: {i}.soft: float32[n=8, h=4, s=6, t=6] = softmax({i}.score) {{dim=3}}
    operator {i}.a: {i}.a: float32[n=8, h=4, s=6, e=4] = matmul({i}.soft, {i}.vt)
    operator {i}.at: {i}.at: float32[n=8, s=6, h=4, e=4] = transpose({i}.a) {{dim0=1, dim1=2}}
    operator {i}.f: {i}.f: float32[n=8, s=6, d=16] = flatten({i}.at) {{start_dim=2}}
    operator {i}.o: {y}: float32[n=8, s=6, d=16] = linear({i}.f, p{i})
    """
)
"""Attention of products and a softmax."""


def recurrent() -> OperatorGraph:
    """Two layers of two steps each after an embedding, a head after the last step."""
    step, state = "float32[n=6, t=1, d=8]", "float32[l=1, n=6, d=8]"
    lines = ["graph rnn", "input ids: int64[n=6, t=2]", "parameter table: float32[v=9, d=8]"]
    for i in range(2):
        lines += [f"parameter w{i}: float32[g=32, d=8]", f"parameter r{i}: float32[g=32, d=8]"]
    lines += ["parameter head: float32[v=9, d=8]"]
    lines += ["operator embed: e: float32[n=6, t=2, d=8] = embedding(table, ids)"]
    lines += [f"operator split: x0.0: {step}, x0.1: {step} = split(e) {{dim=1, split_size=1}}"]
    for i in range(2):
        lines += [f"operator zeros{i}: s{i}: {state} = zeros() {{size=[1, 6, 8]}}"]
        for t in range(2):
            before = f"h{i}.{t - 1}, c{i}.{t - 1}" if t else f"s{i}, s{i}"
            lines += [
                f"operator lstm{i}.{t}: x{i + 1}.{t}: {step}, h{i}.{t}: {state}, c{i}.{t}: {state} "
                f"= lstm(x{i}.{t}, {before}, w{i}, r{i}) {{batch_first=true, has_biases=false}}"
            ]
    lines += ["operator head: y: float32[n=6, t=1, v=9] = linear(x2.1, head)", "output y"]
    return parse_graph("\n".join(lines))


def recommendation(*sizes: int) -> OperatorGraph:
    """Three tables of so many rows."""
    lines = ["graph dlrm", "input x: float32[n=12, d=4]"]
    lines += [f"input i{t}: int64[n=12]" for t in range(3)]
    lines += [f"parameter t{t}: float32[v={rows}, d=4]" for t, rows in enumerate(sizes)]
    lines += ["parameter w: float32[o=2, i=16]"]
    lines += [f"operator e{t}: e{t}: float32[n=12, d=4] = embedding(t{t}, i{t})" for t in range(3)]
    lines += ["operator cat: c: float32[n=12, d=16] = cat(x, e0, e1, e2) {dim=1}"]
    lines += ["operator top: y: float32[n=12, o=2] = linear(c, w)", "output y"]
    return parse_graph("\n".join(lines))


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
        sum(load for load, own in zip(loads, stages, strict=True) if own == stage)
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
    plan = BASELINES["expert"](convolutional(), SIX)
    assert plan.origin == "expert: one weird trick"
    assert texts(plan) == {
        "conv": "sample sample",
        "flat": "sample sample",
        "first": "channel channel",
        "relu": "dim1 dim1",
        "second": "channel channel",
        "loss": "sample sample",
    }


def test_layers_on_devices() -> None:
    plan = BASELINES["expert"](recurrent(), SIX)
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
    plan = BASELINES["expert"](recommendation(20, 90, 40), FOUR)
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
    fits = BASELINES["expert"](recommendation(20, rows, 40), FOUR)
    assert texts(fits)["e1"] == "@0 @0"
    cut = BASELINES["expert"](recommendation(20, rows + 1, 40), FOUR)
    assert texts(cut)["e1"] == "channel channel"
    assert texts(cut)["e2"] == "@0 @0"
    by_rows = BASELINES["expert"](recommendation(20, rows + 2, 40), SIX)
    assert texts(by_rows)["e1"] == "vocabulary vocabulary"


def test_megatron_inside_a_node() -> None:
    plan = BASELINES["expert"](transformer(), FOUR)
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
    assert texts(plan) == {f"{i}.{name}": own for i in range(2) for name, own in layer.items()}


def test_megatron_where_queries_keys_and_values_are_one_product() -> None:
    """What cuts it apart needs it whole, so it is gathered there."""
    own = {
        "qkv": "sample channel",
        "c": "sample replica",
        "a": "sample head",
        "f": "sample dim2",
        "o": "sample inner",
    }
    plan = BASELINES["expert"](FUSED, FOUR)
    assert texts(plan) == {f"{i}.{name}": text for i in range(2) for name, text in own.items()}


def test_megatron_where_attention_is_not_fused() -> None:
    own = {
        "q": "sample channel",
        "k": "sample channel",
        "v": "sample channel",
        "score": "sample batch1",
        "soft": "sample dim1",
        "a": "sample batch1",
        "f": "sample dim2",
        "o": "sample inner",
    }
    plan = BASELINES["expert"](PLAIN, FOUR)
    assert plan.origin == "expert: megatron"
    assert texts(plan) == {f"{i}.{name}": text for i in range(2) for name, text in own.items()}


def test_heads_that_a_node_cannot_cut_stay_whole() -> None:
    """Four heads cannot be cut three ways; six can."""
    data = BASELINES["expert"](transformer(batch=12), SIX)
    assert set(texts(data).values()) == {"sample sample"}
    cut = BASELINES["expert"](transformer(batch=12, heads=6), SIX)
    assert cut.layout["0.a"].roles == ("sample", "head")


def test_megatron_with_a_pipeline() -> None:
    plan = megatron(transformer(layers=4), FOUR, tensor=2, pipeline=2, micro_batches=4)
    assert plan.options.micro_batches == 4
    assert texts(plan)["1.a"] == "@0 head"
    assert texts(plan)["1.add2"] == "@0 replica"
    assert texts(plan)["2.q"] == "@1 channel"
    assert texts(plan)["3.down"] == "@1 inner"


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ((3, 1), "no run of the cluster's factors gives; give one of 1, 2, 4"),
        ((4, 2), "take more than 4 devices"),
        ((1, 4), "6 repeated layers cannot be cut into 4 equal stages"),
        ((0, 1), "give 1 or more"),
    ],
)
def test_degrees_that_megatron_refuses(degrees: tuple[int, int], words: str) -> None:
    with pytest.raises(InputError, match=words):
        megatron(transformer(layers=6), FOUR, *degrees, micro_batches=2)


def test_no_attention_no_megatron() -> None:
    with pytest.raises(InputError, match="no repeated attention layers"):
        megatron(convolutional(), FOUR, tensor=2, pipeline=1, micro_batches=1)


GRAPHS = {
    entry.name: load_model(f"zoo:{entry.name}/tiny").graph
    for entry in ENTRIES
    if entry.name not in ("llama3-70b", "gpt3-175b", "resnet-50")
}
EXPERTS = {
    "alexnet": "one weird trick",
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
    "t5-large": "megatron",
    "dlrm": "tables on devices",
    "xdl": "tables on devices",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_zoo(name: str) -> None:
    plans = applicable(GRAPHS[name], FOUR)
    assert set(BASELINES) - set(plans) == (set() if name in EXPERTS else {"expert"})
    if name in EXPERTS:
        assert plans["expert"].origin == f"expert: {EXPERTS[name]}"


@pytest.mark.parametrize("name", ["bert-large", "llama3-8b", "t5-large", "vit-large"])
def test_megatron_sums_no_gradients_of_cut_weights_inside_a_node(name: str) -> None:
    """On a factor inside a node a weight is cut, or every device has its whole gradient."""
    plan = BASELINES["expert"](GRAPHS[name], FOUR)
    weights = {parameter.tensor.name for parameter in GRAPHS[name].parameters}
    cut = 0
    for unit in plan.units:
        roles = plan.layout[unit.name].roles
        for factor in inside_machine(FOUR):
            if roles[factor] == REPLICA:
                continue
            number = [split.name for split in unit.splits].index(roles[factor])
            for port in unit.inputs:
                if port.tensor in weights and port.back is not None:
                    assert port.back[number] != PARTIAL
                    cut += port.there[number] >= 0
    assert cut >= 12


@pytest.mark.parametrize("name", GRAPHS)
def test_placement_uses_one_device_for_each_unit(name: str) -> None:
    plan = BASELINES["operator placement"](GRAPHS[name], SIX)
    assert all(role.startswith("@") for own in plan.layout.values() for role in own.roles)


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
    assert scheduled(GRAPHS[name], SIX).seconds <= scheduled(GRAPHS[name], one).seconds
