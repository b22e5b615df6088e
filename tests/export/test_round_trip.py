"""What is written for Megatron and torchtitan reads back as the same configuration."""

from __future__ import annotations

import json
import math
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import transformer_facts
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    ParallelConfig,
)
from meshwright.baselines.degrees.refusals import divisibility_problems
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Software
from meshwright.configs.judge import judge
from meshwright.configs.megatron_flags import read_megatron
from meshwright.configs.torchtitan_python import read_torchtitan_python
from meshwright.configs.torchtitan_toml import read_torchtitan
from meshwright.configs.written import settled
from meshwright.export.as_run import READERS, machine_of, software_of
from meshwright.export.exported import TARGETS
from meshwright.export.hyperparameters import transformer_dims
from meshwright.export.megatron import lost_sizes, megatron_script
from meshwright.export.plan_for import plan_for
from meshwright.export.projection import devices_by_rank, fitted
from meshwright.export.torchtitan import torchtitan_flavor, torchtitan_python, torchtitan_toml
from meshwright.export.uniform import uniform_of
from meshwright.export.write import exported
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.report.text.export_report import describe_exported
from meshwright.search.budget import Budget
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import factors


@cache
def llama() -> OperatorGraph:
    return load_model("zoo:llama3-8b/tiny?layers=4&heads=8&key_value_heads=4&sequence=16", 32).graph


@cache
def mixtral() -> OperatorGraph:
    return load_model("zoo:mixtral-8x7b/tiny?layers=6&sequence=16", 32).graph


CLUSTER = Cluster.named("dgx-h100", node=2)


@st.composite
def configs(draw: st.DrawFn) -> ParallelConfig:
    tensor, pipeline, context = (draw(st.sampled_from(degrees)) for degrees in ((1, 2, 4),) * 3)
    data = CLUSTER.devices // (tensor * pipeline * context)
    config = ParallelConfig(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=max(1, data),
        chunks=draw(st.sampled_from((1, 2))) if pipeline > 1 else 1,
        micro_batches=draw(st.sampled_from((1, 2, 4, 8))),
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        recompute=draw(st.booleans()),
        sequence=tensor > 1,
        order=draw(st.sampled_from((INNERMOST_FIRST, PIPELINE_INSIDE))),
    )
    assume(
        config.devices == CLUSTER.devices
        and not divisibility_problems(transformer_facts(llama()), config)
    )
    copies = draw(st.sampled_from([n for n in (1, 2, 4) if config.data % n == 0]))
    return config.with_replicas(copies if config.zero and copies < config.data else 1)


def same(one: ParallelConfig, two: ParallelConfig) -> None:
    assert one.degrees == two.degrees
    assert (one.chunks, one.micro_batches, one.zero) == (two.chunks, two.micro_batches, two.zero)
    assert one.replicas == two.replicas
    assert (one.recompute, one.expert, one.order) == (two.recompute, two.expert, two.order)


@given(configs())
def test_megatron_flags_read_back(config: ParallelConfig) -> None:
    dims = transformer_dims(llama())
    text = megatron_script(config, dims, CLUSTER, "# a comment\n")
    same(settled(read_megatron(text, CLUSTER.devices), dims.facts), config)


@given(configs())
def test_torchtitan_reads_back(config: ParallelConfig) -> None:
    dims = transformer_dims(llama())
    sharded = config.data * config.context > 1
    expected = config.with_zero(max(2, config.zero) if sharded else 0, 0)
    expected = replace(expected, order=INNERMOST_FIRST)
    expected = expected.with_replicas(config.replicas if sharded else 1)
    for written, read in (
        (torchtitan_toml, read_torchtitan),
        (torchtitan_python, read_torchtitan_python),
    ):
        text = written(expected, dims, None, "# a comment\n")
        same(settled(read(text, CLUSTER.devices), dims.facts), expected)


@st.composite
def configs_of_experts(draw: st.DrawFn) -> ParallelConfig:
    """Degrees of a model with experts, and stages that need not be equal."""
    tensor, pipeline, context = (
        draw(st.sampled_from(degrees)) for degrees in ((1, 2), (1, 2, 4), (1, 2))
    )
    return ParallelConfig(
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        data=CLUSTER.devices // (tensor * pipeline * context),
        expert=draw(st.sampled_from((1, 2, 4))),
        micro_batches=draw(st.sampled_from((1, 2))),
        zero=draw(st.sampled_from((1, 2, 3))),
        sequence=tensor > 1,
        uneven=pipeline == 4,
    ).with_replicas(draw(st.sampled_from((1, 2))) if tensor * pipeline * context < 8 else 1)


@settings(max_examples=8, deadline=None)
@given(configs_of_experts(), st.sampled_from(("megatron", "torchtitan")))
def test_export_then_read_gives_the_same_degrees(config: ParallelConfig, target: str) -> None:
    """The whole way: configuration, plan, files, configuration."""
    graph = mixtral()
    assume(not divisibility_problems(transformer_facts(graph), config))
    export = exported(configured(graph, CLUSTER, config), graph, target)
    name, read = {
        "megatron": ("pretrain.sh", read_megatron),
        "torchtitan": ("job.toml", read_torchtitan),
    }[target]
    again = settled(read(dict(export.files)[name], CLUSTER.devices), transformer_facts(graph))
    assert again.degrees == config.degrees
    assert again.replicas == config.replicas
    assert (again.expert, again.micro_batches) == (config.expert, config.micro_batches)
    assert again.zero == (config.zero if target == "megatron" else max(2, config.zero))


@given(configs())
def test_a_configuration_is_found_again_in_its_plan(config: ParallelConfig) -> None:
    try:
        plan = configured(llama(), CLUSTER, config)
    except InputError:
        assume(False)
    recovered = uniform_of(plan).config
    assert recovered.degrees == replace(config, order=INNERMOST_FIRST).degrees
    assert (recovered.chunks, recovered.micro_batches) == (config.chunks, config.micro_batches)


@given(configs())
def test_every_rank_lies_on_one_device(config: ParallelConfig) -> None:
    try:
        uniform = uniform_of(configured(llama(), CLUSTER, config))
    except InputError:
        assume(False)
    devices = devices_by_rank(uniform.config, uniform.taken, CLUSTER)
    assert sorted(devices) == list(range(CLUSTER.devices))
    sizes = [factor.size for factor in factors(CLUSTER)]
    # Ranks next to each other differ along the innermost axis alone.
    tensor = math.prod(sizes[factor] for factor in uniform.taken["tensor"])
    away = set[int]()
    for first in range(0, CLUSTER.devices, tensor):
        group = devices[first : first + tensor]
        away.add(max(group) - min(group))
    assert len(away) == 1


def test_every_target_has_a_writer_that_says_what_is_lost() -> None:
    graph = llama()
    plan = configured(graph, CLUSTER, ParallelConfig(data=4, tensor=4, zero=1, sequence=True))
    zoo_plan = replace(plan, model="zoo:llama3-8b/tiny", batch=32)
    for name in TARGETS:
        export = exported(zoo_plan, graph, name)
        assert export.config.devices == CLUSTER.devices
        assert "check_ranks.py" in dict(export.files)
        for file, text in export.files:
            if file.endswith(".py"):
                compile(text, file, "exec")
    # In YAML a bare no is a boolean, which Accelerate cannot read.
    settings_file = dict(exported(zoo_plan, graph, "accelerate").files)["accelerate.yaml"]
    assert 'mixed_precision: "no"' in settings_file
    assert exported(zoo_plan, graph, "megatron").lost == ()
    export = exported(zoo_plan, graph, "megatron")
    written = read_megatron(dict(export.files)["pretrain.sh"], CLUSTER.devices)
    checked = judge(written, graph, CLUSTER, CLUSTER.device.memory, better=False)
    assert checked.simulation is not None
    assert checked.simulation.prediction == export.written
    assert any(
        "ZeRO 1 becomes ZeRO 2" in sentence
        for sentence in exported(zoo_plan, graph, "torchtitan").lost
    )


@pytest.mark.parametrize("target", ["megatron", "torchtitan"])
@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(data=4, tensor=2, pipeline=2, micro_batches=4, zero=2, sequence=True),
        ParallelConfig(data=8, context=2, zero=3, recompute=True, recompute_layers=2),
        ParallelConfig(
            data=4, pipeline=4, micro_batches=8, zero=2, stages=(2, 1, 2, 1), mixed=True
        ),
        ParallelConfig(data=8, tensor=2, zero=3, expert=4, sequence=True),
    ],
    ids=str,
)
def test_export_and_check_say_the_same_step(config: ParallelConfig, target: str) -> None:
    """What is written is priced as `check` prices the file: the target's software and habits."""
    graph = mixtral()
    plan = configured(graph, CLUSTER, config)
    for origin in (plan, replace(plan, cluster=machine_of(CLUSTER, Software(fuses=True)))):
        export = exported(origin, graph, target)
        for name, text in export.files:
            if name in READERS:
                written = READERS[name](text, CLUSTER.devices)
                checked = judge(written, graph, CLUSTER, CLUSTER.device.memory, better=False)
                assert checked.simulation is not None
                assert checked.simulation.prediction == export.written


def test_better_configurations_have_stages_and_checkpointing_of_their_own() -> None:
    """Of a file with unequal stages and checkpointing of some layers."""
    config = ParallelConfig(
        data=4, pipeline=4, micro_batches=4, zero=1, recompute=True, recompute_layers=4,
        stages=(2, 1, 2, 1),
    )  # fmt: skip
    graph = mixtral()
    text = dict(exported(configured(graph, CLUSTER, config), graph, "megatron").files)
    written = read_megatron(text["pretrain.sh"], CLUSTER.devices)
    assert (written.config.stages, written.config.recompute_layers) == ((2, 1, 2, 1), 4)
    checked = judge(written, graph, CLUSTER, Bytes(1))
    assert checked.best is not None
    assert checked.best.config.pipeline != 4 or not checked.best.config.stages


def test_software_that_a_cluster_tells_itself_stays() -> None:
    cluster = replace(CLUSTER, device=replace(CLUSTER.device, software=Software(joins=True)))
    assert machine_of(cluster, software_of("megatron", mixed=True)) == cluster
    megatron = machine_of(CLUSTER, software_of("megatron", mixed=True))
    assert machine_of(megatron, software_of("pytorch", mixed=False)).device.running == Software()


def test_a_placement_that_flags_cannot_say_gets_a_rank_file() -> None:
    graph = llama()
    # Tensor parallelism across nodes, data inside them.
    taken = {"tensor": (0,), "context": (), "data": (1, 2, 3), "pipeline": ()}
    plan = configured(graph, CLUSTER, ParallelConfig(data=8, tensor=2), taken)  # type: ignore[arg-type]
    files = dict(exported(plan, graph, "megatron").files)
    assert files["hostfile"].split()[:4] == ["node0", "node1", "node0", "node1"]
    assert files["rankfile"].splitlines()[3] == "rank 3=node1 slot=1"


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("zoo:llama3-8b/tiny", {"--hidden-dropout 0 --attention-dropout 0", "--swiglu"}),
        ("zoo:gpt2-xl/tiny", {"--hidden-dropout 0.1 --attention-dropout 0.1"}),
        ("hf:Qwen3ForCausalLM/tiny?head_dim=32", {"--kv-channels 32", "--qk-layernorm"}),
        ("hf:Qwen2ForCausalLM/tiny", {"--disable-bias-linear --add-qkv-bias"}),
        ("hf:MixtralForCausalLM/tiny", {"--ffn-hidden-size 128", "--swiglu", "--num-experts 4"}),
        ("hf:Phi3ForCausalLM/tiny", {"--ffn-hidden-size 128", "--swiglu", "RMSNorm"}),
        ("hf:StableLmForCausalLM/tiny", {"--swiglu\n    --disable-bias-linear"}),
    ],
)
def test_sizes_of_a_model_that_megatron_has_other_defaults_for(model: str, flags: set[str]) -> None:
    graph = load_model(model, 8).graph
    dims = transformer_dims(graph)
    text = megatron_script(ParallelConfig(data=16), dims, CLUSTER, "")
    assert all(flag in text for flag in flags)
    asked = {"--kv-channels", "--qk-layernorm", "--add-qkv-bias"}
    assert {name for name in asked if name in text} == set(" ".join(flags).split()) & asked
    assert list(lost_sizes(dims)) == []


@pytest.mark.parametrize(
    ("model", "sentences"),
    [
        ("GemmaForCausalLM", ["gated gelu: Megatron's feed-forward layers compute gated silu"]),
        ("Glm4ForCausalLM", ["one of 107,072 parameters, and it has 107,328; write its layers"]),
    ],
)
def test_a_model_that_megatrons_flags_do_not_make_is_said(model: str, sentences: list[str]) -> None:
    """Glm4 normalises what attention and feed-forward layers make, too."""
    lost = list(lost_sizes(transformer_dims(load_model(f"hf:{model}/tiny", 8).graph)))
    assert len(lost) == len(sentences)
    assert all(sentence in line for line, sentence in zip(lost, sentences, strict=True))


def test_torchtitan_is_named_a_model_of_the_same_sizes_only() -> None:
    """Llama-2 7B and Mistral have the layers, width and heads of Llama-3 8B, and other words."""
    dims = transformer_dims(llama())
    facts = dims.facts._replace(layers=32, heads=32, key_value_heads=8)
    dims = dims._replace(facts=facts, hidden=4096, inner=14336, vocabulary=128_256)
    assert torchtitan_flavor(dims) == ("llama3", "8B")
    assert torchtitan_flavor(dims._replace(vocabulary=32_000)) is None
    assert torchtitan_flavor(dims._replace(inner=11_008)) is None


def test_what_is_no_decoder_is_said() -> None:
    encoder, both = (load_model(f"zoo:{own}/tiny", 8).graph for own in ("bert-large", "t5-large"))
    laptop = Cluster.named("laptop")
    lost = exported(data_parallel(encoder, laptop), encoder, "megatron").lost
    assert any("pretrain_gpt.py trains decoders" in own for own in lost)
    for target in ("megatron", "torchtitan"):
        with pytest.raises(InputError, match="attend more than once, as decoders beside an encod"):
            exported(data_parallel(both, laptop), both, target)
    question = PlanRequest(graph=both, cluster=laptop, memory=laptop.device.memory)
    with pytest.raises(InputError, match="attend more than once"):
        plan_for(question, "megatron", Budget(proposals=1))


def test_stages_that_no_number_of_layers_makes_are_lists_alone() -> None:
    """torchtitan refuses a number of layers whose stages its ranks do not divide."""
    dims = transformer_dims(llama())
    for stages, alone in ((4, False), (3, True)):
        config = ParallelConfig(data=4, pipeline=stages, micro_batches=stages)
        text = torchtitan_toml(config, dims, None, "")
        assert ("pipeline_parallel_layers_per_stage" not in text) == alone
        assert ("module_fqns_per_model_part" in text) == alone
        assert settled(read_torchtitan(text, config.devices), dims.facts).pipeline == stages


def test_float32_copies_that_a_target_keeps_unasked() -> None:
    """Megatron and DeepSpeed do; Accelerate does with mixed precision only."""
    graph = cast_graph(llama(), "bfloat16")
    plan = configured(graph, CLUSTER, ParallelConfig(data=16, zero=1))
    told = {own: exported(plan, graph, own) for own in ("megatron", "deepspeed", "accelerate")}
    copies = {own: any("keeps float32 copies" in line for line in told[own].lost) for own in told}
    assert copies == {"megatron": True, "deepspeed": True, "accelerate": False}
    held = {own: told[own].written.memory.optimizer for own in told}
    assert held["deepspeed"] == held["megatron"] > held["accelerate"]
    assert 'mixed_precision: "no"' in dict(told["accelerate"].files)["accelerate.yaml"]


def test_what_does_not_fit_is_said() -> None:
    graph = llama()
    device = replace(CLUSTER.device, memory=Bytes(1 << 20))
    found = exported(
        configured(graph, replace(CLUSTER, device=device), ParallelConfig(data=16)),
        graph,
        "megatron",
    )
    assert "TOO MUCH" in dict(found.files)["pretrain.sh"]
    assert "What was written does NOT fit, by " in describe_exported(found, "job")


def test_models_without_layers_go_to_pytorch_only() -> None:
    graph = load_model("zoo:lenet/tiny", 8).graph
    plan = data_parallel(graph, Cluster.named("laptop"))
    assert exported(plan, graph, "pytorch").config.data == 4
    with pytest.raises(InputError, match="megatron lays out transformers"):
        exported(plan, graph, "megatron")
    with pytest.raises(InputError, match="no target 'megatrn'"):
        exported(plan, graph, "megatrn")


def test_fitted_says_every_axis_it_gives_away() -> None:
    graph = llama()
    plan = configured(graph, CLUSTER, ParallelConfig(data=4, context=4))
    fit = fitted(uniform_of(plan), TARGETS["pytorch"], CLUSTER, transformer_facts(graph))
    assert fit.config.degrees["data"] == 16
    assert fit.lost == ("context 4 becomes data 16: pytorch has no context parallelism",)


def test_no_answer_for_a_target_is_slower_than_what_people_run_there() -> None:
    """With memory for FSDP only if layers run again, of which some are enough."""
    graph = load_model("zoo:llama3-8b/tiny?layers=8&sequence=512&hidden=64&inner=256", 16).graph
    question = PlanRequest(graph=graph, cluster=CLUSTER, memory=CLUSTER.device.memory)
    recipes = dict(plan_for(question, "megatron", Budget(proposals=1)).baselines)
    held = [recipes[name].prediction.memory.total for name in ("FSDP + AC", "FSDP (ZeRO 3)")]
    question = replace(question, memory=Bytes(sum(held) // 2))
    planned = plan_for(question, "megatron", Budget(proposals=200_000))
    assert planned.best.fits(question.memory)
    assert planned.best.prediction.step < recipes["FSDP + AC"].prediction.step
    assert 0 < planned.plan.options.recompute_layers < 8


def test_deepspeed_shards_parameters_again_where_a_plan_shards_within_nodes() -> None:
    graph = llama()
    plan = configured(graph, CLUSTER, ParallelConfig(data=16, zero=3, shard_within=8))
    export = exported(plan, graph, "deepspeed")
    document = json.loads(dict(export.files)["ds_config.json"])
    assert document["zero_optimization"]["zero_hpz_partition_size"] == 8
    assert any("(zero_hpz_partition_size), which the predicted" in line for line in export.lost)
    whole = configured(graph, CLUSTER, ParallelConfig(data=16, zero=3))
    assert "hpz" not in dict(exported(whole, graph, "deepspeed").files)["ds_config.json"]


@pytest.mark.parametrize("zero", [0, 3])
def test_a_trainer_is_told_what_accelerate_is(monkeypatch: pytest.MonkeyPatch, zero: int) -> None:
    """By what `training_arguments.py` hands to classes that stand for the libraries'."""
    graph = llama()
    within = 8 if zero else 0
    config = ParallelConfig(data=16, zero=zero, shard_within=within, micro_batches=2)
    files = dict(exported(configured(graph, CLUSTER, config), graph, "accelerate").files)
    stands = SimpleNamespace(TrainingArguments=dict, ParallelismConfig=dict)
    for name in ("transformers", "accelerate", "accelerate.parallelism_config"):
        monkeypatch.setitem(sys.modules, name, stands)
    names: dict[str, Any] = {}
    exec(files["training_arguments.py"], names)
    arguments = names["training_arguments"](output_dir="out")
    samples = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    assert samples * config.data == transformer_facts(graph).samples
    assert arguments["output_dir"] == "out"
    degrees = arguments.get("parallelism_config", {})
    meant = {"dp_replicate_size": 2, "dp_shard_size": 8, "tp_size": 1, "cp_size": 1}
    assert degrees == (meant if zero else {})
    said = (f"parallelism_config_{name}: {degree}" for name, degree in degrees.items())
    assert all(line in files["accelerate.yaml"] for line in said)
