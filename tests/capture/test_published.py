"""Configurations that come with Meshwright: as many parameters as their makers say."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.capture.source.model_source import parse_source
from meshwright.capture.source.zoo_names import PUBLISHED
from meshwright.capture.transformers import example_of_class
from meshwright.capture.transformers.config_file import published_names

pytest.importorskip("transformers", reason="configurations are those of Transformers")

BILLIONS = {
    "deepseek-v3": 671.03,
    "gemma3-1b": 1.00,
    "gemma3-27b": 27.01,
    "gpt-oss-120b": 116.83,
    "gpt-oss-20b": 20.91,
    "llama3.1-405b": 405.85,
    "llama3.1-8b": 8.03,
    "llama3.3-70b": 70.55,
    "qwen3-235b-a22b": 235.09,
    "qwen3-30b-a3b": 30.53,
    "qwen3-32b": 32.76,
    "qwen3-8b": 8.19,
    "whisper-large-v3": 1.54,
}
"""As in the model cards; gemma3-27b is its text model, gpt-oss as its model card counts."""


def test_parameters_are_those_of_the_model_cards() -> None:
    billions = {}
    for name in published_names():
        model = example_of_class(parse_source(f"hf:{name}"), 1).model
        billions[name] = round(sum(parameter.numel() for parameter in model.parameters()) / 1e9, 2)
    assert billions == BILLIONS
    assert tuple(billions) == PUBLISHED


def test_a_small_one_is_captured() -> None:
    graph = load_model("hf:qwen3-8b/tiny", 2).graph
    assert graph.loss is not None


def test_what_is_neither_a_class_nor_published_is_refused() -> None:
    with pytest.raises(InputError, match="qwen3-9b"):
        example_of_class(parse_source("hf:qwen3-9b"), 1)
