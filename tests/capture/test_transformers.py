"""Classes of Transformers, unmodified: captured from a configuration, and run as captured."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from meshwright.capture.example import Example
from meshwright.capture.execute import execute, values_of
from meshwright.capture.export import capture
from meshwright.capture.load import load_model
from meshwright.foundation.errors import InputError
from meshwright.graph.check import check

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
        ("hf:BertConfig", "is not a model with a configuration of its own"),
        ("hf:BertForMaskedLM?layers=2", "BertConfig has no setting 'layers'; did you mean"),
        ("hf:BertForMaskedLM?sequence=x", "sequence is 'x'"),
        ("hf:WhisperForConditionalGeneration", "takes 'input_features', which is neither"),
    ],
)
def test_mistakes(source: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(source)
    assert said in str(caught.value)
