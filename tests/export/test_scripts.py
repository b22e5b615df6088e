"""Exported scripts build their models with torch alone; rank files put ranks where axes lie."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.configured import configured, with_virtual_stage_layers
from meshwright.baselines.degrees.facts import transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model, zoo_example
from meshwright.capture.source.model_source import parse_source
from meshwright.capture.standalone import standalone
from meshwright.capture.zoo import ENTRIES
from meshwright.cluster.cluster import Cluster
from meshwright.configs.megatron_flags import read_megatron
from meshwright.configs.torchtitan_python import read_torchtitan_python
from meshwright.configs.torchtitan_toml import read_torchtitan
from meshwright.configs.written import settled
from meshwright.export.exported import TARGETS
from meshwright.export.hyperparameters import transformer_dims
from meshwright.export.megatron import megatron_script
from meshwright.export.modules import tensor_styles
from meshwright.export.plan_for import plan_for
from meshwright.export.projection import devices_by_rank
from meshwright.export.torchtitan import UNKNOWN
from meshwright.export.uniform import runs_of, uniform_of
from meshwright.export.write import exported
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import PlannedChain
from meshwright.search.budget import Budget
from meshwright.search.joint.request.constraints import parse_constraints
from meshwright.search.joint.request.question import PlanRequest


@cache
def graph_of(model: str, batch: int = 16) -> OperatorGraph:
    return load_model(model, batch).graph


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Path]:
    """A folder that modules are imported from, and are forgotten afterwards."""
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("zoo_")]:
        del sys.modules[name]


def built(source: str, batch: int, folder: Path) -> Any:
    code = standalone(source, batch)
    for name, text in code.files.items():
        assert "meshwright." not in text
        assert "msgspec" not in text
        (folder / name).write_text(text)
    names: dict[str, Any] = {"torch": torch}
    exec("def build():\n" + textwrap.indent(code.body, "    "), names)
    return names["build"]


def test_every_model_of_the_zoo_is_built_by_its_own_files(beside: Path) -> None:
    for entry in ENTRIES:
        source = f"zoo:{entry.name}/tiny"
        build = built(source, 4, beside)
        with torch.device("meta"):
            model, inputs, named, loss, targets = build()
        known = zoo_example(parse_source(source), 4)
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        assert shapes == {
            name: parameter.shape for name, parameter in known.model.named_parameters()
        }
        assert (named, loss.__name__) == ({}, known.loss.__name__ if known.loss else "")
        assert len(inputs) == len(known.inputs)
        assert [target.shape for target in targets] == [target.shape for target in known.targets]


def test_sizes_that_a_source_names_stay(beside: Path) -> None:
    model, *_ = built("zoo:llama3-8b/tiny?layers=3&heads=2", 4, beside)()
    assert len(model.layers) == 3
    model, (image,), *_ = built("zoo:resnet-50/tiny?blocks=1,1,2,1", 4, beside)()
    assert image.shape[0] == 4


def test_a_class_of_transformers_is_built_by_its_settings(beside: Path) -> None:
    pytest.importorskip("transformers")
    model, inputs, named, loss, _ = built(
        "hf:LlamaForCausalLM/tiny?num_hidden_layers=3", 4, beside
    )()
    assert (inputs, loss) == ((), None)
    assert len(model.model.layers) == 3
    assert model(**named)["loss"].isfinite()


def test_weights_that_a_model_draws_are_not_drawn_to_write_its_script(tmp_path: Path) -> None:
    """4 TiB of them would be."""
    file = tmp_path / "drawn.py"
    file.write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Drawn(nn.Linear):\n"
        "    def __init__(self):\n"
        "        super().__init__(4, 4)\n"
        "        self.table = nn.Parameter(torch.randn(1 << 20, 1 << 20))\n"
        "def build(batch=8):\n"
        "    return Drawn(), torch.zeros(batch, 4)\n"
    )
    assert standalone(f"{file}:build", 8).empty


def test_a_trace_has_no_code() -> None:
    with pytest.raises(InputError, match="is a trace, which no script can build"):
        standalone("model.pt2", 4)


def test_tied_tables_are_cut_alike() -> None:
    graph, laptop = graph_of("zoo:bert-large/tiny"), Cluster.named("laptop", process=2)
    plan = configured(graph, laptop, ParallelConfig(tensor=2, sequence=True))
    styling = tensor_styles(plan, (0,))
    assert (styling.styles["words"], styling.styles["decoder"]) == ("table", "head")
    assert styling.styles["layers.*.attention.output"] == "rows"
    # What a norm behind a layer makes is read by the next residual, too: it stays cut.
    assert styling.gathered == ("transform_norm",)
    llama = configured(
        graph_of("zoo:llama3-8b/tiny"), laptop, ParallelConfig(tensor=2, sequence=True)
    )
    assert tensor_styles(llama, (0,)).gathered == (
        "layers.*.attention_norm",
        "layers.*.feed_forward_norm",
        "norm",
    )


def test_what_dtensor_has_no_rules_for_is_computed_by_every_rank() -> None:
    laptop = Cluster.named("laptop", process=2)
    plan = configured(graph_of("zoo:mixtral-8x7b/tiny"), laptop, ParallelConfig(tensor=2))
    styling = tensor_styles(plan, (0,))
    assert styling.local == ("layers.*.feed_forward",)
    export = exported(replace(plan, model="zoo:mixtral-8x7b/tiny", batch=16), plan.graph, "pytorch")
    assert any("computes all of it" in words for words in export.lost)
    assert "run_locally(module" in dict(export.files)["train_plan.py"]


def test_reductions_over_the_data_axis_keep_their_steps() -> None:
    cluster, graph = Cluster.named("dgx-h100", node=2, gpu=4), graph_of("zoo:llama3-8b/tiny")
    plan = configured(graph, cluster, ParallelConfig(data=8, zero=3))
    chains = (
        PlannedChain(collective="ReduceScatter", over=(0, 1, 2), bytes=8.0, steps=((1, 2), (0,))),
        PlannedChain(collective="ReduceScatter", over=(0, 1, 2), bytes=4.0, steps=((0, 1, 2),)),
        PlannedChain(collective="Broadcast", over=(0, 1, 2), bytes=4.0, steps=((0,), (1, 2))),
    )
    export = exported(replace(plan, chains=chains, model="zoo:llama3-8b/tiny"), graph, "pytorch")
    script = dict(export.files)["train_plan.py"]
    assert "SCATTER_STEPS = ((1, 2), (0,))" in script
    assert "GATHER_STEPS = ()" in script
    assert export.lost == ("1 collective in steps: single ones instead",)
    compile(script, "train_plan.py", "exec")


def test_checkpointing_of_some_layers_is_that_of_these() -> None:
    graph, laptop = graph_of("zoo:llama3-8b/tiny"), Cluster.named("laptop")
    plan = configured(graph, laptop, ParallelConfig(data=4, zero=3, recompute=True))
    some = plan.changed(options=replace(plan.options, recompute_layers=1))
    export = exported(replace(some, model="zoo:llama3-8b/tiny"), graph, "pytorch")
    assert "RECOMPUTED = ('layers.0',)" in dict(export.files)["train_plan.py"]
    assert export.lost == ()
    every = exported(replace(plan, model="zoo:llama3-8b/tiny"), graph, "pytorch")
    assert "RECOMPUTED = LAYERS" in dict(every.files)["train_plan.py"]
    lost = exported(some, graph, "deepspeed").lost
    assert lost == ("activation checkpointing of 1 layer becomes that of all",)


@pytest.mark.parametrize("each", [False, True])
def test_gradients_are_summed_when_the_plan_or_else_the_target_sums_them(each: bool) -> None:
    graph = graph_of("zoo:llama3-8b/tiny")
    config = ParallelConfig(data=4, zero=3, micro_batches=2, sync_each=each)
    plan = configured(graph, Cluster.named("laptop"), config)
    exports = {target: exported(plan, graph, target) for target in ("pytorch", "torchtitan", "jax")}
    script = dict(exports["pytorch"].files)["train_plan.py"]
    assert ("set_requires_gradient_sync" in script) is not each
    lost = {target: export.lost for target, export in exports.items()}
    said = {t for t, words in lost.items() if any("gradients are summed" in w for w in words)}
    assert said == ({"jax"} if each else {"torchtitan"})
    pipelined = replace(config, data=2, pipeline=2)
    staged = exported(configured(graph, Cluster.named("laptop"), pipelined), graph, "pytorch")
    assert ("gradients are summed once a step, and held whole" in staged.lost) is each


@pytest.mark.parametrize(("count", "each"), [(2, 1), (3, 2), (6, 3), (8, 4)])
def test_checkpointing_of_some_layers_is_that_of_as_many_in_each_stage(
    count: int, each: int
) -> None:
    """Megatron's block method; of all layers it is the uniform one."""
    graph = graph_of("zoo:llama3-8b/tiny?layers=8")
    config = ParallelConfig(data=2, pipeline=2, micro_batches=2, recompute=True)
    plan = configured(graph, Cluster.named("laptop"), config)
    some = plan.changed(options=replace(plan.options, recompute_layers=count))
    export = exported(some, graph, "megatron")
    text = dict(export.files)["pretrain.sh"]
    method, number = ("block", each) if each < 4 else ("uniform", 1)
    assert f"--recompute-method {method}\n    --recompute-num-layers {number}\n" in text
    changed = f"activation checkpointing of {count} layers becomes that of {2 * each}: {each} in"
    assert [words.startswith(changed) for words in export.lost] == [True] * (count % 2)
    again = settled(read_megatron(text, 4), transformer_facts(graph))
    assert again.recompute_layers == (0 if each == 4 else 2 * each)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_plan_for_a_target_loses_nothing_there(target: str) -> None:
    cluster = Cluster.named("dgx-h100", node=2, gpu=4)
    model = "zoo:llama3-8b/tiny?layers=4&heads=8&key_value_heads=4&sequence=16"
    graph = graph_of(model)
    question = PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory)
    planned = plan_for(question, target, Budget.parse("200"))
    assert planned.simulated > 1
    plan = replace(planned.plan, model=model, batch=16)
    export = exported(plan, graph, target)
    assert [words for words in export.lost if UNKNOWN not in words] == []
    assert export.written.step == planned.best.prediction.step


def test_a_target_is_asked_for_what_it_has() -> None:
    laptop = Cluster.named("laptop")
    lenet = PlanRequest(
        graph=graph_of("zoo:lenet/tiny"), cluster=laptop, memory=laptop.device.memory
    )
    with pytest.raises(InputError, match="megatron lays out transformers"):
        plan_for(lenet, "megatron", Budget.parse("200"))
    llama = PlanRequest(
        graph=graph_of("zoo:llama3-8b/tiny"),
        cluster=laptop,
        memory=laptop.device.memory,
        constraints=parse_constraints(fixes=["zero=1"]),
    )
    with pytest.raises(InputError, match="ZeRO 1 is asked for, and jax has ZeRO 0, 3"):
        plan_for(llama, "jax", Budget.parse("200"))


@pytest.mark.parametrize(("layers", "pipeline", "chunks"), [(6, 4, 1), (7, 4, 1), (7, 2, 2)])
def test_stages_that_are_not_equal_read_back_from_megatron(
    layers: int, pipeline: int, chunks: int
) -> None:
    graph = graph_of(f"zoo:llama3-8b/tiny?layers={layers}")
    cluster, dims = Cluster.named("dgx-h100", node=2, gpu=2), transformer_dims(graph)
    config = ParallelConfig(
        data=4 // pipeline, pipeline=pipeline, chunks=chunks, micro_batches=4, uneven=True
    )
    text = megatron_script(config, dims, cluster, "# a comment\n")
    assert "--pipeline-model-parallel-layout" in text
    written = read_megatron(text, 4)
    again = settled(written, dims.facts)
    assert (again.pipeline, again.chunks, again.uneven) == (pipeline, chunks, True)
    assert not [note for note in written.notes if "priced as" in note and "stages of" in note]
    assert again.stages == ()
    # Stages of other layers than those that the defaults give are read as they stand.
    ends = ParallelConfig(pipeline=pipeline, chunks=chunks, micro_batches=4, data=4 // pipeline)
    mine = (layers - 3, 1, 1, 1)
    other = megatron_script(with_virtual_stage_layers(ends, mine), dims, cluster, "# a comment\n")
    assert settled(read_megatron(other, 4), dims.facts).stages == mine


@pytest.mark.parametrize("target", ["pytorch", "megatron", "torchtitan"])
def test_stages_of_a_plan_stay_as_they_are(target: str) -> None:
    """Five layers and three, which the defaults would make four and four."""
    model = "zoo:llama3-8b/tiny?layers=8"
    graph, laptop = graph_of(model), Cluster.named("laptop")
    config = ParallelConfig(data=2, pipeline=2, zero=2, micro_batches=2, stages=(5, 3))
    plan = replace(configured(graph, laptop, config), model=model, batch=16)
    assert runs_of(plan, (0,)) == (5, 3)
    export = exported(plan, graph, target)
    sums = [words for words in export.lost if words.startswith("gradients are summed")]
    assert len(sums) == (target == "megatron")
    assert [words for words in export.lost if UNKNOWN not in words and words not in sums] == []
    assert export.config.stages == (5, 3)
    assert runs_of(export.plans[1], (0,)) == (5, 3)
    files = dict(export.files)
    if target == "pytorch":
        stages = re.search(r"^STAGES = (.*)$", files["train_plan.py"], re.MULTILINE)
        assert stages is not None
        assert [len(stage) for stage in ast.literal_eval(stages[1])] == [5, 3]
    readers = {
        "pretrain.sh": read_megatron,
        "job.toml": read_torchtitan,
        "meshwright_plan.py": read_torchtitan_python,
    }
    for name in files.keys() & readers.keys():
        assert settled(readers[name](files[name], 4), transformer_facts(graph)).stages == (5, 3)


def test_stages_are_counted() -> None:
    with pytest.raises(InputError, match="the layers of 2 stages are given, and there are 4"):
        ParallelConfig(pipeline=4, stages=(5, 3))
    graph = graph_of("zoo:llama3-8b/tiny?layers=8")
    config = ParallelConfig(data=2, pipeline=2, micro_batches=2, stages=(5, 4))
    with pytest.raises(InputError, match="stages of 5 \\+ 4 layers are given, and the model has 8"):
        configured(graph, Cluster.named("laptop"), config)


def test_rank_files_put_axes_where_the_plan_has_them() -> None:
    """Ranks that a rank file puts on hosts and slots, numbered as Megatron does: its tensor groups
    are the devices that differ along the plan's tensor factors."""
    cluster, graph = Cluster.named("dgx-h100", node=2, gpu=4), graph_of("zoo:llama3-8b/tiny")
    taken = {"tensor": (0,), "context": (), "data": (1, 2), "pipeline": ()}
    plan = configured(graph, cluster, ParallelConfig(data=4, tensor=2), taken)  # type: ignore[arg-type]
    files = dict(exported(plan, graph, "megatron").files)
    lines = [line.split("=", 1)[1].split() for line in files["rankfile"].splitlines()]
    devices = [int(h.removeprefix("node")) * 4 + int(s.removeprefix("slot=")) for h, s in lines]
    hosts = [f"node{device // 4}" for device in devices]
    assert files["hostfile"].split() == hosts
    groups = [devices[first : first + 2] for first in range(0, 8, 2)]
    assert sorted(groups) == [[gpu, gpu + 4] for gpu in range(4)]
    uniform = uniform_of(plan)
    assert list(devices_by_rank(uniform.config, uniform.taken, cluster)) == devices
    assert transformer_facts(graph).heads % 2 == 0
