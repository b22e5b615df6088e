"""What tells one module from another, besides its tensors."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from meshwright.capture.export import capture
from meshwright.capture.load import load_example
from meshwright.capture.source.example import Example
from meshwright.capture.trace.fingerprint import _code, _written, modules_of
from meshwright.graph.traced import Traced


@dataclass
class Configuration:
    heads: int = 2
    rate: float = 0.1
    device: str = "cpu"


class Model(nn.Module):
    def __init__(self, settings: Configuration) -> None:
        super().__init__()
        self.settings = settings
        self.drop = nn.Dropout(settings.rate)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.drop(x.view(-1, self.settings.heads))
        return output


class Changed(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


Changed.__qualname__ = Model.__qualname__


def apart(model: Model) -> Model:
    model.drop.eval()
    return model


def traced(model: nn.Module) -> Traced:
    return Traced(modules=modules_of(model))


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (Model(Configuration(device="meta")), None),
        (
            Model(Configuration(heads=4)),
            "settings.heads of the model (Model) is 4, and in the plan 2",
        ),
        (
            Model(Configuration(rate=0.2)),
            "settings.rate of the model (Model) is 0.2, and in the plan 0.1",
        ),
        (nn.Dropout(0.1), "the model is a Dropout, and in the plan a Model"),
        (
            apart(Model(Configuration())),
            "mode of module 'drop' (Dropout) is evaluation, and in the plan the model's",
        ),
    ],
)
def test_the_first_difference_is_told(model: nn.Module, difference: str | None) -> None:
    assert traced(Model(Configuration())).difference(traced(model)) == difference


class Noting(nn.Module):
    """Writes into its configuration what it has found out, as models of Transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Configuration(heads=0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.settings.heads = x.shape[1]
        output: Tensor = self.layer(x)
        return output


def test_what_forward_notes_in_a_configuration_does_not_count() -> None:
    graph = capture(Example(model=Noting(), inputs=(torch.zeros(2, 4),)))
    assert graph.traced is not None
    assert graph.traced.difference(traced(Noting())) is None


class Aliased(nn.Module):
    """A configuration with two names, whose nested list forward writes into."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {"width": 4, "seen": []}
        self.also = self.settings
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.settings["seen"].append(x.shape[0])
        output: Tensor = self.layer(x)
        return output


def test_attributes_are_the_same_objects_after_a_capture() -> None:
    model, fresh = Aliased(), modules_of(Aliased())
    settings, seen = model.settings, model.settings["seen"]
    graph = capture(Example(model=model, inputs=(torch.zeros(2, 4),)))
    assert model.settings is model.also is settings
    assert settings == {"width": 4, "seen": []}
    assert settings["seen"] is seen
    assert graph.traced is not None
    assert graph.traced.modules == fresh


def test_other_code_is_another_model() -> None:
    difference = traced(Model(Configuration())).difference(traced(Changed(Configuration())))
    assert difference is not None
    assert difference.startswith("the code of the model (Model) is digest ")


def test_what_a_library_hangs_into_pytorch_is_no_code_of_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transformers gives nn.Module a `smart_apply` when it first sets weights, on ranks alone."""
    before = modules_of(Model(Configuration()))
    _code.cache_clear()
    monkeypatch.setattr(nn.Module, "smart_apply", lambda module: module.apply(print), raising=False)
    assert modules_of(Model(Configuration())) == before


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM"])
def test_a_model_of_transformers_is_the_same_on_every_device(name: str) -> None:
    sizes = "num_hidden_layers=2&hidden_size=32&num_attention_heads=2&vocab_size=64&sequence=8"
    traces = [
        traced(load_example(f"hf:{name}?{sizes}", 2, torch.device(device)).model)
        for device in ("meta", "cpu")
    ]
    assert traces[0].difference(traces[1]) is None


def test_code_is_told_apart_whatever_python_reads_it() -> None:
    tree = ast.parse("def f(x):  # a comment\n    return f'{x!r}' + 'a', 1e3, None\n")
    assert _written(tree) == (
        "Module(body=[FunctionDef(name='f', args=arguments(args=[arg(arg='x')]), "
        "body=[Return(value=Tuple(elts=[BinOp(left=JoinedStr(values=[FormattedValue("
        "value=Name(id='x', ctx=Load()), conversion=114)]), op=Add(), right=Constant(value='a')), "
        "Constant(value=1000.0), Constant()], ctx=Load()))])])"
    )
