"""What a model returns, made of a plan's tensors: its own classes, and stand-ins that speak."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.capture.load import load_graph
from meshwright.capture.source.example import Example
from meshwright.graph.returned import Returned
from meshwright.run.returned_values import Returning, filled


class Pair(NamedTuple):
    logits: Any
    loss: Any


def tensor(name: str) -> Returned:
    return Returned(kind="tensor", tensor=name)


def test_outputs_of_transformers_are_theirs() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    kind = "transformers.modeling_outputs:CausalLMOutputWithPast"
    entries = ("loss", tensor("l")), ("logits", tensor("h")), ("past", Returned(kind="other"))
    returned = Returned(kind="mapping", type=kind, entries=entries[:2])
    loss, logits = torch.zeros(()), torch.ones(2, 3)
    both = filled(returned, {"l": loss, "h": logits})
    assert isinstance(both, outputs.CausalLMOutputWithPast)
    assert both.loss is loss
    assert both[1] is logits
    without = filled(returned, {"l": None, "h": logits})
    assert without.loss is None
    assert without[0] is logits


def test_named_tuples_lists_and_dicts() -> None:
    nested = Returned(kind="list", entries=(("0", tensor("h")), ("1", Returned(kind="other"))))
    returned = Returned(
        kind="tuple", type=f"{__name__}:Pair", entries=(("0", nested), ("1", tensor("l")))
    )
    pair = filled(returned, {"h": torch.ones(2), "l": None})
    assert [type(pair).__name__, type(pair[0]), pair[0][1], pair[1]] == [
        *(("Pair", list) if isinstance(pair, Pair) else ("tuple", list)),
        None,
        None,
    ]


class Two(nn.Module):
    """Returns what its loss reads, and something that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"used": self.one(x), "unused": self.other(x)}


def test_what_is_not_there_says_so() -> None:
    example = Example(
        model=Two(),
        inputs=(torch.zeros(3, 4),),
        loss=lambda out, y: (out["used"] - y).square().mean(),
        targets=(torch.zeros(3, 2),),
    )
    returning = Returning(load_graph(example).graph, outputs=False)
    assert returning.optional == ("targets",)
    outputs = returning.of_outputs([torch.ones(3, 2)])
    assert outputs["used"].shape == (3, 2)
    for use in (
        lambda output: output.shape,
        lambda output: output + 1,
        torch.exp,
        lambda output: output[0],
    ):
        with pytest.raises(InputError, match="output 'unused' is not there: the plan does not"):
            use(outputs["unused"])
