"""What a graph keeps for the backward pass is what autograd keeps, storage by storage.

Only models whose every operator runs on a CPU by the kernel that the families describe: there are
no fused attention with dropout, no fused root-mean-square norm and no plain LSTM on a CPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshwright.capture import zoo
from meshwright.capture.export import capture
from meshwright.capture.source.example import Example
from meshwright.graph.counts import saved_activation_bytes

TOLERANCE = 0.02
"""Scalars and the statistics of small normalisations weigh something in tiny models."""


def kept_by_autograd(example: Example) -> int:
    """Bytes of all storages that autograd packs away, parameters not counted."""
    parameters = {p.untyped_storage().data_ptr() for p in example.model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            storages[storage.data_ptr()] = storage
        return tensor

    assert example.loss is not None
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = example.model(*example.inputs)
        loss = example.loss(output, *example.targets)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(
    "name",
    ["alexnet", "inception-v3", "resnet-50", "resnext-50", "mlp", "candle-uno", "vit-large"],
)
def test_kept_bytes(name: str) -> None:
    torch.manual_seed(0)
    entry = zoo.entry(name)
    example = entry.example(entry.tiny, batch=8)
    for module in example.model.modules():
        if isinstance(module, nn.Dropout):
            # A CPU keeps real numbers where a GPU keeps a mask of bools.
            module.p = 0.0
    measured = kept_by_autograd(example)
    assert saved_activation_bytes(capture(example, name)) == pytest.approx(measured, rel=TOLERANCE)
