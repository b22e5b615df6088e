"""The zoo: published sizes on meta tensors, and tiny twins that run."""

import math
from typing import Any

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Step
from meshwright.capture.zoo import ENTRIES, entry
from meshwright.capture.zoo.entry import Entry
from meshwright.capture.zoo.grouped_products import grouped_mm

each_model = pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)

PUBLISHED_MILLIONS = {
    "alexnet": 61.1,
    "inception-v3": 23.8,
    "resnet-50": 25.6,
    "resnet-101": 44.5,
    "resnext-50": 25.0,
    "bert-large": 335.2,
    "gpt2-xl": 1_557.6,
    "gpt3-175b": 174_604.3,
    "llama3-8b": 8_030.3,
    "llama3-70b": 70_553.7,
    "mixtral-8x7b": 46_702.8,
    "vit-large": 304.3,
    "t5-large": 737.7,
    "dit-xl": 674.8,
    "sdxl-unet": 2_567.5,
}
"""As printed beside the models by those who published them."""


@each_model
def test_parameters_at_published_sizes(model: Entry[Any]) -> None:
    with torch.device("meta"):
        built = model.build(model.sizes)
    count = sum(parameter.numel() for parameter in built.parameters())
    assert count == model.parameters
    if model.name in PUBLISHED_MILLIONS:
        assert round(count / 1e6, 1) == PUBLISHED_MILLIONS[model.name]


def test_the_translator_is_as_large_as_flexflow_s_traffic_says() -> None:
    """65.8 GB an iteration on 64 devices are 2·63 times the gradients, of 4 bytes each."""
    assert entry("nmt").parameters == pytest.approx(65.8e9 / (2 * 63 * 4), rel=0.03)


@each_model
def test_the_tiny_twin_learns(model: Entry[Any]) -> None:
    """The loss is a finite scalar, and every parameter gets a gradient."""
    torch.manual_seed(0)
    example = model.example(model.tiny, 3)
    step = Step(example).train()
    loss = step(example.inputs, example.named, example.targets)
    loss.backward()
    assert loss.shape == ()
    assert math.isfinite(loss.item())
    for name, parameter in step.named_parameters():
        assert parameter.grad is not None, name


def test_unknown_model() -> None:
    with pytest.raises(InputError, match="did you mean 'bert-large'"):
        entry("bert")


def test_grouped_product_and_its_gradient() -> None:
    """Against each row times the matrix of its group; one group is empty."""
    torch.manual_seed(0)
    rows = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    matrices = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    ends, group = torch.tensor([2, 2, 5]), torch.tensor([0, 0, 2, 2, 2])
    expected = torch.einsum("nd,ndf->nf", rows, matrices[group])
    product = grouped_mm(rows, matrices, ends)
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)
    weights = torch.randn(5, 2, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad((product * weights).sum(), (rows, matrices)),
        torch.autograd.grad((expected * weights).sum(), (rows, matrices)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
