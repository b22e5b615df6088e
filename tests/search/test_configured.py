"""Degrees of parallelism: where they lie, what they refuse, what they become, how they are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.base.errors import InputError
from meshwright.base.integers import factorizations
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    ParallelConfig,
)
from meshwright.baselines.degrees.placed import mesh_factors_of_axes, rows_of
from meshwright.baselines.degrees.refusals import refusals
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.configs.changes import changes, settings
from meshwright.configs.megatron_flags import read_megatron
from meshwright.configs.torchtitan_toml import read_torchtitan
from meshwright.cost.alpha_beta import Pricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import factors
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import WRITTEN, convolutional

SIZES = "layers=4&hidden=32&heads=8&key_value_heads=4&inner=48&sequence=16&vocabulary=32"
EIGHT = Cluster.named("flexflow-p100", node=2, gpu=4)
TWELVE = Cluster.named("flexflow-p100", node=2, gpu=6)


@cache
def llama(batch: int = 16) -> OperatorGraph:
    return load_model(f"zoo:llama3-8b/tiny?{SIZES}", batch).graph


@cache
def mixtral() -> OperatorGraph:
    return load_model(f"zoo:mixtral-8x7b/tiny?{SIZES}&experts=4", 16).graph


@cache
def gpt() -> OperatorGraph:
    sizes = "layers=4&hidden=32&heads=8&sequence=16&vocabulary=32"
    return load_model(f"zoo:gpt2-xl/tiny?{sizes}", 16).graph


def roles(plan: Plan, name: str) -> str:
    return str(plan.layout[name])


@pytest.mark.parametrize(
    ("cluster", "config", "cut"),
    [
        (EIGHT, ParallelConfig(data=2, tensor=4), ("channel", "batch1", "dim1", "batch1", "inner")),
        (TWELVE, ParallelConfig(data=4, context=3), ("row1", "row", "dim2", "row", "row1")),
    ],
)
def test_attention_that_is_written_as_products_around_a_softmax(
    cluster: Cluster, config: ParallelConfig, cut: tuple[str, ...]
) -> None:
    """Heads and positions are those of the scores."""
    assert transformer_facts(WRITTEN) == Facts(
        layers=2, heads=4, key_value_heads=4, positions=6, samples=8, experts=0
    )
    plan = configured(WRITTEN, cluster, config)
    for name, split in zip(("0.q", "0.s", "0.p", "0.a", "0.o"), cut, strict=True):
        assert set(roles(plan, name).split()) == {"sample", split}


def test_facts() -> None:
    assert transformer_facts(llama()) == Facts(4, 8, 4, 16, 16, 0)
    assert transformer_facts(gpt()) == Facts(4, 8, 8, 16, 16, 0)
    assert transformer_facts(mixtral()).experts == 4
    with pytest.raises(InputError, match="no repeated attention layers"):
        transformer_facts(convolutional())


@given(st.sampled_from((EIGHT, TWELVE)), st.data())
def test_rows_multiply_to_degrees_and_columns_to_levels(
    cluster: Cluster, data: st.DataObject
) -> None:
    ways = list(factorizations(cluster.devices, (cluster.devices,) * 3))
    tensor, copies, stages = data.draw(st.sampled_from(ways))
    degrees = ParallelConfig(tensor=tensor, data=copies, pipeline=stages).degrees
    try:
        rows = rows_of(degrees, cluster)
    except InputError:
        # Only where an axis begins in the middle of a level and does not end there.
        assert cluster is TWELVE
        return
    assert {axis: math.prod(row) for axis, row in rows.items()} == degrees
    assert tuple(map(math.prod, zip(*rows.values(), strict=True))) == cluster.hierarchy
    taken = mesh_factors_of_axes(rows, cluster)
    assert sorted(n for numbers in taken.values() for n in numbers) == list(
        range(len(factors(cluster)))
    )
    for axis, row in rows.items():
        for level, count in enumerate(row):
            axis_factors = [factors(cluster)[n] for n in taken[axis]]
            assert math.prod(f.size for f in axis_factors if f.level == level) == count


def test_tensor_is_innermost_and_pipeline_outermost() -> None:
    degrees = ParallelConfig(tensor=2, data=2, pipeline=2).degrees
    assert rows_of(degrees, EIGHT)["pipeline"] == (2, 1)
    other = ParallelConfig(tensor=2, data=2, pipeline=2, order=PIPELINE_INSIDE).degrees
    assert rows_of(other, EIGHT)["pipeline"] == (1, 2)
    assert rows_of(other, EIGHT)["data"] == (2, 1)


def test_groups_that_would_straddle_nodes() -> None:
    with pytest.raises(InputError, match="tensor 4 does not lie evenly on 2 node x 6 gpu"):
        rows_of(ParallelConfig(tensor=4, data=3).degrees, TWELVE)


@st.composite
def configs(draw: st.DrawFn) -> ParallelConfig:
    """Degrees that divide eight devices and the model."""
    left = 8
    tensor = draw(st.sampled_from((1, 2, 4)))
    left //= tensor
    context = draw(st.sampled_from([n for n in (1, 2, 4) if left % n == 0]))
    left //= context
    pipeline = draw(st.sampled_from([n for n in (1, 2, 4) if left % n == 0]))
    data = left // pipeline
    config = ParallelConfig(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        micro_batches=draw(st.sampled_from([n for n in (1, 2, 4) if 16 % (data * n) == 0])),
        zero=draw(st.integers(0, 3)),
        recompute=draw(st.booleans()),
        sequence=draw(st.booleans()) and 16 % (tensor * context) == 0,
        order=draw(st.sampled_from((INNERMOST_FIRST, PIPELINE_INSIDE))),
    )
    copies = draw(st.sampled_from([n for n in (1, 2, 4, 8) if data % n == 0]))
    return config.with_replicas(copies if config.zero and copies < data else 1)


@given(configs(), st.sampled_from((llama, gpt)))
def test_a_plan_has_exactly_the_degrees_that_were_written(
    config: ParallelConfig, model: Callable[[], OperatorGraph]
) -> None:
    graph = model()
    assert refusals(graph, EIGHT, config) == ()
    plan = configured(graph, EIGHT, config)
    factors = plan.factors
    assert len({layout.coordinates() for layout in plan.layout.values()}) == config.pipeline
    for unit in plan.units:
        degrees = plan.layout[unit.name].degrees(factors)
        if unit.members[0].call.kind == "linear" and unit.name.startswith("layers"):
            inside = degrees.get("channel", 1) * degrees.get("inner", 1)
            ways = (degrees.get("sample", 1), inside, degrees.get("row1", 1))
            assert ways == (config.data, config.tensor, config.context)
        if unit.name.endswith("scaled_dot_product_attention"):
            cut = tuple(degrees.get(name, 1) for name in ("sample", "head", "query"))
            assert cut == (config.data, config.tensor, config.context)
    assert plan.options == config.options


def test_layouts_with_everything() -> None:
    config = ParallelConfig(tensor=2, context=2, pipeline=2, micro_batches=4, sequence=True)
    plan = configured(llama(), EIGHT, config)
    assert {
        name: roles(plan, name)
        for name in (
            "words.embedding", "layers.0.attention_norm.rms_norm",
            "layers.0.attention.key.linear", "layers.0.attention.scaled_dot_product_attention",
            "layers.2.feed_forward.down.linear", "layers.3.add_2", "head.linear", "flatten",
            "cross_entropy_loss",
        )
    } == {
        "words.embedding": "@0 dim1 vocabulary",
        "layers.0.attention_norm.rms_norm": "@0 dim1 dim1",
        "layers.0.attention.key.linear": "@0 row1 channel",
        "layers.0.attention.scaled_dot_product_attention": "@0 query head",
        "layers.2.feed_forward.down.linear": "@1 row1 inner",
        "layers.3.add_2": "@1 dim1 dim1",
        "head.linear": "@1 row1 channel",
        "flatten": "@1 sample dim1",
        "cross_entropy_loss": "@1 sample class",
    }  # fmt: skip


def test_without_sequence_parallelism_norms_are_copies() -> None:
    plan = configured(llama(), EIGHT, ParallelConfig(tensor=4, data=2))
    assert roles(plan, "layers.0.attention_norm.rms_norm") == "sample replica replica"
    assert roles(plan, "layers.0.add") == "sample replica replica"
    assert roles(plan, "cross_entropy_loss") == "sample class class"


def test_virtual_stages_go_round() -> None:
    config = ParallelConfig(data=4, pipeline=2, chunks=2, micro_batches=4)
    plan = configured(llama(), EIGHT, config)
    seats = [roles(plan, f"layers.{n}.add").split()[0] for n in range(4)]
    assert seats == ["@0", "@1", "@0", "@1"]
    assert plan.options.schedule == "interleaved"


def test_experts_take_the_innermost_of_the_data_factors() -> None:
    config = ParallelConfig(data=8, expert=2)
    plan = configured(mixtral(), EIGHT, config)
    assert roles(plan, "layers.0.feed_forward.sum_2") == "sample sample expert"
    assert roles(plan, "layers.0.attention.query.linear") == "sample sample sample"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            ParallelConfig(data=2, tensor=8),
            "pipeline 1 x data 2 x context 1 x tensor 8 is 16, and cluster 'flexflow-p100' has 8 "
            "devices; choose degrees that multiply to 8, as data 1.",
        ),
        (
            ParallelConfig(tensor=8),
            "tensor 8 does not divide 4 heads of keys and values; give tensor 4.",
        ),
        (ParallelConfig(pipeline=8), "pipeline 8 does not divide 4 layers; give pipeline 4."),
        (
            ParallelConfig(context=8, micro_batches=3),
            "16 samples on data 1 are 16 each, which 3 micro-batches do not divide; give a number "
            "of micro-batches that divides 16: 1, 2, 4, 8, 16.",
        ),
        (
            ParallelConfig(data=8, expert=2),
            "the degree of expert is 2, and the model has no experts; leave it out, or give a "
            "model with experts.",
        ),
        (
            ParallelConfig(data=4, pipeline=2, chunks=2, micro_batches=1),
            "interleaved stages take micro-batches in groups of pipeline 2, which does not divide "
            "1 micro-batches; give a multiple of 2 micro-batches, or no virtual stages.",
        ),
    ],
)
def test_what_does_not_divide(config: ParallelConfig, words: str) -> None:
    assert words in [str(problem) for problem in refusals(llama(), EIGHT, config)]
    with pytest.raises(InputError):
        configured(llama(), EIGHT, config)


def test_samples_that_data_does_not_divide() -> None:
    assert [str(refusal) for refusal in refusals(llama(12), EIGHT, ParallelConfig(data=8))] == [
        "data 8 does not divide 12 samples of a step; give data 4."
    ]


def test_sequence_parallelism_sends_as_much_and_holds_less() -> None:
    prices = CollectivePrices(Pricer(EIGHT, algorithm="best"), programs=False)
    plain = ParallelConfig(tensor=4, data=2)
    held = [
        simulate(configured(gpt(), EIGHT, config), prices).prediction.memory.activations
        for config in (plain, replace(plain, sequence=True))
    ]
    assert held[1] < held[0]


SCRIPT = """
#!/bin/bash
export TP=4   # inside a node
PP=${PP:-2}
GPT_ARGS=(
    --num-layers 4 --hidden-size 64
    --num-attention-heads 8
    --seq-length=128
)
torchrun pretrain_gpt.py "${GPT_ARGS[@]}" \\
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 1 \\
    --use-distributed-optimizer --sequence-parallel --recompute-granularity full \\
    --micro-batch-size 2 --global-batch-size 32 --bf16 --lr 1e-4 \\
    --pipeline-model-parallel-split-rank 1
"""


def test_a_script_of_megatron() -> None:
    script = read_megatron(SCRIPT, 16)
    assert script.config == ParallelConfig(
        data=2, tensor=4, pipeline=2, micro_batches=8, zero=1, recompute=True, sequence=True,
        mixed=True,
    )  # fmt: skip
    assert (script.batch, script.dtype, script.layers_each) == (32, "bfloat16", 1)
    assert script.model == "zoo:gpt3-175b?layers=4&hidden=64&heads=8&sequence=128"
    assert script.sizes == (("layers", 4), ("heads", 8), ("positions", 128))
    assert script.ignored == ("--lr",)
    assert "--pipeline-model-parallel-split-rank is not known here" in script.notes[0]


def test_megatrons_other_order_and_fsdp() -> None:
    text = "--use-tp-pp-dp-mapping --use-megatron-fsdp "
    text += "--data-parallel-sharding-strategy optim_grads_params"
    config = read_megatron(text, 8).config
    assert (config.order, config.zero, config.data) == (PIPELINE_INSIDE, 3, 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--tensor-model-parallel-size $TP", "--tensor-model-parallel-size is '\\$TP'; write a"),
        ("--lr 3", "there are no flags of Megatron in it"),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy all",
            "--data-parallel-sharding-strategy is 'all'",
        ),
    ],
)
def test_flags_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_megatron(text, 8)


def test_a_batch_that_micro_batches_do_not_divide() -> None:
    script = read_megatron("--micro-batch-size 3 --global-batch-size 64", 8)
    assert script.problems == (
        (
            "--global-batch-size 64 is no multiple of 24: micro-batch 3 x data 8",
            "give 48 or 72",
        ),
    )


JOB = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 4096
steps = 10
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
context_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
spmd_backend = "full"
[activation_checkpoint]
mode = "full"
"""


def test_a_job_of_torchtitan() -> None:
    job = read_torchtitan(JOB, 64)
    assert job.config == ParallelConfig(
        data=8, tensor=2, context=2, pipeline=2, chunks=2, micro_batches=8, zero=2,
        recompute=True, sequence=True, mixed=True, uneven=True,
    )  # fmt: skip
    assert (job.batch, job.dtype) == (64, "bfloat16")
    assert job.model == "zoo:llama3-8b?sequence=4096"
    assert job.ignored == ("training.steps", "parallelism.spmd_backend")
    assert "parallelism.spmd_backend is not known here" in job.notes[0]


@pytest.mark.parametrize(
    ("parallelism", "zero", "dtype", "notes"),
    [
        ("", 3, "bfloat16", 0),
        ('fsdp_reshard_after_forward = "never"', 2, "bfloat16", 0),
        ("pipeline_parallel_degree = 2", 2, "bfloat16", 0),
        ("data_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 1", 0, "bfloat16", 0),
        ("data_parallel_replicate_degree = 2", 3, "bfloat16", 0),
        ("tensor_parallel_degree = 8", 0, "float32", 1),
    ],
)
def test_what_torchtitan_shards(parallelism: str, zero: int, dtype: str, notes: int) -> None:
    text = f'[parallelism]\n{parallelism}\n[activation_checkpoint]\nmode = "none"'
    job = read_torchtitan(text, 8)
    assert (job.config.zero, job.dtype, len(job.notes)) == (zero, dtype, notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "it is not TOML"),
        ("[job]", "neither a .parallelism. nor a .training. section"),
        ("[parallelism]\ntensor_parallel_degree = -1", "only data_parallel_shard_degree may be"),
        ("[parallelism]\ntensor_parallel_degree = '2'", "give a whole number"),
        ("[parallelism]\npipeline_parallel_schedule = 'F1B'", "did you mean '1F1B'"),
    ],
)
def test_jobs_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_torchtitan(text, 8)


def innermost_first(config: ParallelConfig, zero: int) -> ParallelConfig:
    """The same as both formats say it, with as many copies of shards."""
    sequence = config.tensor > 1
    reordered = replace(
        config.with_zero(zero, 0), order=INNERMOST_FIRST, mixed=True, sequence=sequence
    )
    return reordered.with_replicas(config.replicas)


@given(configs())
def test_settings_of_megatron_are_read_back(config: ParallelConfig) -> None:
    config = innermost_first(config, config.zero)
    text = " ".join(settings("megatron", config, 16))
    assert read_megatron(f"{text} --global-batch-size 16 --bf16", 8).config == config


@given(configs(), st.sampled_from((2, 3)))
def test_settings_of_torchtitan_are_read_back(config: ParallelConfig, zero: int) -> None:
    assume(config.data * config.context > 1)
    config = replace(innermost_first(config, zero), uneven=True)
    assert read_torchtitan(_sections(settings("torchtitan", config, 16)), 8).config == config


def test_only_what_differs_is_to_be_changed() -> None:
    before = ParallelConfig(data=8, zero=1, recompute=True)
    after = ParallelConfig(data=2, tensor=4, zero=1, sequence=True, micro_batches=8)
    assert changes("megatron", before, after, 16) == (
        "--tensor-model-parallel-size 4", "--micro-batch-size 1", "--sequence-parallel",
        "without --recompute-granularity", "without --recompute-method",
        "without --recompute-num-layers",
    )  # fmt: skip
    assert changes("options", before, after, 16) == (
        "--data 2", "--tensor 4", "--micro-batches 8", "without --recompute",
    )  # fmt: skip


def _sections(lines: Iterable[str]) -> str:
    """Dotted settings, each section once."""
    sections: dict[str, list[str]] = {}
    for line in lines:
        section, _, rest = line.partition(".")
        sections.setdefault(section, []).append(rest)
    return "\n".join(f"[{name}]\n" + "\n".join(settings) for name, settings in sections.items())
