"""Layers that are added without capturing are those that capture finds."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.graph.repeated import with_layers
from meshwright.graph.validation import check

MODELS = (
    "zoo:llama3-8b/tiny",
    "zoo:gpt3-175b/tiny",
    "zoo:gpt3-175b/tiny?key_value_heads=2&inner=48",
    "zoo:mixtral-8x7b/tiny",
    "zoo:mixtral-8x7b/tiny?shared=24&width=8",
    "zoo:mixtral-8x7b/tiny?shared=24&width=8&query_rank=12&latent=10&rotary=4",
)


@pytest.mark.parametrize("model", MODELS)
def test_layers_added_are_those_of_capture(model: str) -> None:
    joined = "&" if "?" in model else "?"
    grown = with_layers(load_model(f"{model}{joined}layers=2", 2).graph, 5)
    captured = load_model(f"{model}{joined}layers=5", 2).graph
    assert grown == replace(captured, traced=None)
    assert not check(grown)


def test_fewer_layers_are_refused() -> None:
    with pytest.raises(InputError, match="has 2 layers, and 1 are wanted"):
        with_layers(load_model("zoo:llama3-8b/tiny", 2).graph, 1)


def test_models_without_repeated_layers_are_refused() -> None:
    with pytest.raises(InputError, match="0 kinds of layers"):
        with_layers(load_model("zoo:lenet/tiny", 2).graph, 3)
