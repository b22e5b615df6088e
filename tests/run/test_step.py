"""Whole steps: that the model is really trained, on real tensors, by the optimizer asked for."""

from __future__ import annotations

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.load import zoo_example
from meshwright.capture.source.model_source import parse_source
from meshwright.capture.zoo import ENTRIES
from meshwright.run.step import OptimizerName, measure_dispatch, measure_step, real_example

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", [model.name for model in ENTRIES])
def test_every_tiny_model_takes_steps(name: str) -> None:
    example = real_example(name, 2, CPU, tiny=True)
    measured = measure_step(example, "sgd", CPU, torch.float32, steps=1)
    assert measured.seconds > 0
    assert (measured.host, measured.peak) == (None, None)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_steps_change_the_weights(optimizer: OptimizerName) -> None:
    example = real_example("bert-large", 2, CPU, tiny=True)
    # Not the biases: softmax cancels those of the keys, whose gradients are 0.
    matrices = [parameter for parameter in example.model.parameters() if parameter.dim() == 2]
    before = [matrix.detach().clone() for matrix in matrices]
    measured = measure_step(example, optimizer, CPU, torch.float32, steps=3)
    assert all(not torch.equal(a, b) for a, b in zip(before, matrices, strict=True))
    assert len(measured.samples) == 3
    assert measured.seconds == sorted(measured.samples)[1]


def test_the_dtype_asked_for_is_the_one_trained_in() -> None:
    example = real_example("vit-large", 2, CPU, tiny=True)
    measure_step(example, "adam", CPU, torch.bfloat16, steps=1)
    assert {parameter.dtype for parameter in example.model.parameters()} == {torch.bfloat16}


def test_a_model_without_weights_cannot_take_a_step() -> None:
    example = zoo_example(parse_source("zoo:bert-large"), 1)
    with pytest.raises(InputError, match="lies on meta tensors; build it on a real device"):
        measure_step(example, "sgd", CPU, torch.float32, steps=1)


def test_a_size_that_a_model_does_not_have() -> None:
    with pytest.raises(InputError, match="no size 'layer'; did you mean 'layers'"):
        real_example("bert-large", 1, CPU, {"layer": 2})


def test_launching_takes_time_both_ways() -> None:
    dispatch = measure_dispatch(CPU, operators=30, readings=3)
    assert dispatch.forward > 0
    assert dispatch.backward > 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_tells_its_peak_memory_and_the_hosts_share() -> None:
    example = real_example("bert-large", 2, torch.device("cuda"), tiny=True)
    measured = measure_step(example, "adam", torch.device("cuda"), torch.bfloat16, steps=2)
    parameters = sum(parameter.numel() for parameter in example.model.parameters())
    assert measured.peak is not None
    assert measured.peak >= 2 * 4 * parameters
    assert measured.host is not None
    assert measured.host <= max(measured.samples)
