"""Classes of Transformers, unmodified: captured from a configuration, and run as captured."""

from __future__ import annotations

import warnings
from typing import Any, cast

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.load import load_model
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example
from meshwright.capture.source.model_source import parse_source
from meshwright.capture.transformers import example_of_class
from meshwright.capture.transformers.tiny import small_settings
from meshwright.graph.validation import check

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="needs the extra 'hf'")

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 50,
}
DECODER = {**COMMON, "num_key_value_heads": 2, "use_cache": False}
CLASSES: dict[str, dict[str, Any]] = {
    "BertForMaskedLM": COMMON,
    "GPT2LMHeadModel": {
        **{"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "use_cache": False}
    },
    "LlamaForCausalLM": DECODER,
    "MixtralForCausalLM": {**DECODER, "num_local_experts": 4},
    "T5ForConditionalGeneration": {
        **{"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48, "num_layers": 2},
        **{"vocab_size": 50, "use_cache": False, "decoder_start_token_id": 0},
    },
    "ViTForImageClassification": {
        **{key: value for key, value in COMMON.items() if key != "vocab_size"},
        **{"image_size": 16, "patch_size": 8},
    },
}


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    if name.startswith("ViT"):
        return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return {"input_ids": torch.randint(3, 50, (2, 8)), "labels": torch.randint(3, 50, (2, 8))}


@pytest.mark.parametrize("name", CLASSES)
def test_the_captured_graph_is_the_model(name: str) -> None:
    torch.manual_seed(0)
    chosen = getattr(transformers, name)
    model = chosen(chosen.config_class(**CLASSES[name])).train()
    example = Example(model=model, named=inputs_of(name))
    graph = capture(example)
    assert check(graph) == ()
    masked = [
        operator for operator in graph.operators if operator.kind == "scaled_dot_product_attention"
    ]
    if name == "LlamaForCausalLM":
        # As when it runs: a model that is exported would get masks instead.
        causal = [
            (len(operator.inputs), dict(operator.attributes).get("is_causal"))
            for operator in masked
        ]
        assert causal == [(3, True), (3, True)]
    torch.manual_seed(1)
    expected = model(**example.named).loss
    torch.manual_seed(1)
    loss = execute(graph, values_of(example, graph))[graph.loss or ""]
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    parameters = list(model.parameters())
    for ours, its in zip(
        torch.autograd.grad(loss, parameters, allow_unused=True),
        torch.autograd.grad(expected, parameters, allow_unused=True),
        strict=True,
    ):
        assert (ours is None) == (its is None)
        if ours is not None:
            torch.testing.assert_close(ours, its, rtol=1e-4, atol=1e-6)


def test_settings_of_the_configuration() -> None:
    source = "hf:BertForMaskedLM?num_hidden_layers=1&hidden_size=48&sequence=16"
    graph = load_model(source, batch=3).graph
    assert str(graph.inputs[0]) == "input_ids: int64[batch=3, position=16]"
    embedding = next(p for p in graph.parameters if p.also and len(p.tensor.dims) == 2)
    assert embedding.tensor.shape == (30522, 48)
    assert graph.loss == "cross_entropy_loss"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "hf:BertForMaskedL",
            "has no class 'BertForMaskedL'; give one of its models, such as Bert",
        ),
        ("hf:BertTokenizer", "is not a model with a configuration of its own"),
        (
            "hf:AutoModelForCausalLM",
            "names no model_type; write hf:AutoModelForCausalLM?model_type=",
        ),
        ("hf:AutoModelForCausalLM?model_type=vit", "has no model of type 'vit'; give hf:ViTConfig"),
        ("hf:CLIPModel?text_config.layers=2", "CLIPConfig has no setting 'text_config.layers'"),
        ("hf:BertForMaskedLM/tiny?attention_mask=2", "attention_mask is 2"),
        ("hf:BertForMaskedLM?layers=2", "BertConfig has no setting 'layers'; did you mean"),
        ("hf:BertForMaskedLM?sequence=x", "sequence is 'x'"),
        ("hf:LlamaForCausalLM/tiny?hidden_size=30", "refuses the settings of"),
    ],
)
def test_mistakes(source: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(source)
    assert said in str(caught.value)


INPUTS = {
    "CLIPModel": {"input_ids": (2, 16), "pixel_values": (2, 3, 32, 32)},
    "LlavaForConditionalGeneration": {
        **{"input_ids": (2, 20), "pixel_values": (2, 3, 32, 32), "labels": (2, 20)}
    },
    "WhisperForConditionalGeneration": {"input_features": (2, 80, 128), "labels": (2, 4)},
    "Wav2Vec2ForCTC": {"input_values": (2, 5200), "labels": (2, 4)},
    "BertForMultipleChoice": {"input_ids": (2, 2, 16), "labels": (2,)},
    "BertForQuestionAnswering": {
        **{"input_ids": (2, 16), "start_positions": (2,), "end_positions": (2,)}
    },
    "BertForPreTraining": {"input_ids": (2, 16), "next_sentence_label": (2,), "labels": (2, 16)},
    "SegformerForSemanticSegmentation": {"pixel_values": (2, 3, 64, 64), "labels": (2, 64, 64)},
    "ViTForMaskedImageModeling": {"pixel_values": (2, 3, 32, 32), "bool_masked_pos": (2, 4)},
    "VideoMAEForVideoClassification": {"pixel_values": (2, 4, 3, 32, 32), "labels": (2,)},
    "PatchTSTForPrediction": {
        **{"past_values": (2, 32, 1), "past_observed_mask": (2, 32, 1), "future_values": (2, 24, 1)}
    },
    "MinistralForCausalLM": {"input_ids": (2, 16), "labels": (2, 16)},
    "PaliGemmaForConditionalGeneration": {
        "input_ids": (2, 20),
        "pixel_values": (2, 3, 32, 32),
        "token_type_ids": (2, 20),
        "labels": (2, 20),
    },
    "TapasForQuestionAnswering": {"input_ids": (2, 16), "labels": (2, 16)},
    "Qwen2_5_VLForConditionalGeneration": {"input_ids": (2, 16), "labels": (2, 16)},
    "T5Model": {"input_ids": (2, 16), "decoder_input_ids": (2, 16)},
    "YolosForObjectDetection": {"pixel_values": (2, 3, 32, 32)},
    "BartForSequenceClassification": {"input_ids": (2, 16), "labels": (2,)},
    "EsmForTokenClassification": {"input_ids": (2, 16), "labels": (2, 16)},
    "XmodForMultipleChoice": {"input_ids": (2, 2, 16), "labels": (2,)},
}


def test_groups_of_experts_and_of_an_image_s_tokens_stay_whole() -> None:
    """Two groups of two experts, a second layer that has them, and a token for each patch."""
    large = {"n_routed_experts": 256, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3}
    small = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
    assert small_settings(large) == small
    assert small_settings({"mm_tokens_per_image": 256, "head_dim": None}) == {
        "mm_tokens_per_image": 4,
        "head_dim": 16,
    }


@pytest.mark.parametrize("name", INPUTS)
def test_a_class_gets_the_inputs_that_it_takes(name: str) -> None:
    example = example_of_class(parse_source(f"hf:{name}/tiny"), 2)
    shapes = {k: tuple(v.shape) for k, v in example.named.items() if isinstance(v, torch.Tensor)}
    assert shapes == INPUTS[name]
    assert ("return_loss" in example.named) == (name == "CLIPModel")
    if name == "BartForSequenceClassification":
        ids, config = example.named["input_ids"], cast("Any", example.model.config)
        assert isinstance(ids, torch.Tensor)
        assert ids.is_meta or ids.eq(config.eos_token_id).sum(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("hf:AutoModelForCausalLM/tiny?model_type=gpt2", "GPT2LMHeadModel"),
        (
            "hf:AutoModelForSequenceClassification/tiny?model_type=bert",
            "BertForSequenceClassification",
        ),
        ("hf:LlamaConfig/tiny", "LlamaForCausalLM"),
        ("hf:BertConfig/tiny", "BertForMaskedLM"),
        ("hf:ViTConfig/tiny", "ViTForImageClassification"),
    ],
)
def test_auto_classes_and_configurations(source: str, model: str) -> None:
    assert type(example_of_class(parse_source(source), 2).model).__name__ == model


def test_settings_of_parts_of_a_configuration() -> None:
    def widths(options: str) -> tuple[int, int]:
        model = example_of_class(parse_source(f"hf:CLIPModel/tiny?{options}"), 2).model
        config: Any = model.config
        return config.text_config.num_hidden_layers, config.vision_config.num_hidden_layers

    assert widths("num_hidden_layers=1") == (1, 1)
    assert widths("text_config.num_hidden_layers=3") == (3, 2)
    gpt: Any = example_of_class(parse_source("hf:GPT2LMHeadModel/tiny?hidden_size=96"), 2).model
    assert gpt.config.n_embd == 96, "by the name that other models have for it"


def test_a_class_without_a_loss_is_captured_with_a_hint() -> None:
    captured = load_model("hf:BertModel/tiny", batch=2)
    assert captured.graph.loss is None
    assert any("computes no loss" in warning for warning in captured.warnings)


@pytest.mark.parametrize("packed", [False, True])
def test_positions_that_are_given_may_be_of_packed_sequences(packed: bool) -> None:
    """Then there are masks, as in training; positions that the model counts itself have none."""
    torch.manual_seed(0)
    chosen = transformers.LlamaForCausalLM
    model = chosen(chosen.config_class(**DECODER)).train()
    row = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4]) if packed else torch.arange(8)
    example = Example(
        model=model,
        named={**inputs_of("LlamaForCausalLM"), "position_ids": row.expand(2, 8).clone()},
    )
    graph = capture(example)
    expected = model(**example.named).loss
    loss = execute(graph, values_of(example, graph))[graph.loss or ""]
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
