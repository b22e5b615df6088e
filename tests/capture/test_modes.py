"""Training and evaluation: what differs beyond dropout and batch norms is known to the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.export import capture
from meshwright.capture.source.example import Example
from meshwright.graph.traced import Traced


class Model(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.1)
        self.plain = nn.BatchNorm1d(4, track_running_stats=False)
        self.channels, self.leaky = nn.Dropout2d(0.1), nn.RReLU()
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.1)
        self.still = nn.LSTM(4, 4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.norm(self.linear(x)))
        return self.function(self, y).sum()


def traced(function: Callable[[Any, Tensor], Tensor], *, training: bool = True) -> Traced:
    model = Model(function).train(training)
    trace = capture(Example(model=model, inputs=(torch.randn(3, 4),))).traced
    assert trace is not None
    assert trace.training is training
    assert all(module.training is training for module in model.modules())
    return trace


def branching(model: Any, y: Tensor) -> Tensor:
    return y * 2 if model.training else y.round()


def dropped(model: Any, y: Tensor) -> Tensor:
    return functional.dropout(y, 0.1, training=model.training)


def attended(model: Any, y: Tensor) -> Tensor:
    rate = 0.1 if model.training else 0.0
    return functional.scaled_dot_product_attention(y, y, y, dropout_p=rate)


SAME: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "nothing": lambda own, y: y,
    "dropped": dropped,
    "attended": attended,
    "read": lambda own, y: (own.training, y)[1],
    "plain norm": lambda own, y: own.plain(y),
    "lstm": lambda own, y: own.still(y)[0],
    "encoder": lambda own, y: own.encoder(y),
}


@pytest.mark.parametrize("name", SAME)
def test_operators_know_both_modes(name: str) -> None:
    assert traced(SAME[name]).other_mode == ""


OTHER: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "branching": branching,
    "always dropped": lambda own, y: functional.dropout(y, 0.1),
    "always attended": lambda own, y: functional.scaled_dot_product_attention(
        y, y, y, dropout_p=0.1
    ),
    "channels": lambda own, y: own.channels(y[None, :, None])[0],
    "leaky": lambda own, y: own.leaky(y),
    "lstm": lambda own, y: own.lstm(y)[0],
}


@pytest.mark.parametrize("name", OTHER)
def test_what_belongs_to_one_mode_is_said(name: str) -> None:
    sentence = traced(OTHER[name]).other_mode
    assert sentence.startswith("in evaluation mode the model computes something else, first at ")


def test_the_line_that_reads_the_mode_is_named() -> None:
    assert "; self.training is read at " in traced(branching).other_mode
    assert "test_modes.py:" in traced(branching).other_mode


def test_a_graph_of_evaluation_is_not_one_of_training() -> None:
    sentence = traced(dropped, training=False).other_mode
    assert sentence.startswith("in training mode the model computes something else")
    assert traced(lambda model, y: y, training=False).other_mode != ""
