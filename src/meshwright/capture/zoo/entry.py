"""What one model of the zoo is: its sizes, a tiny twin, and where the sizes come from.

Enters: sizes and a batch. Leaves: an `Example` on the current default device, so that a caller
under `torch.device("meta")` builds GPT-3 without a byte of weights. Knows no graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.source.example import Example, Loss

Sizes = TypeVar("Sizes", bound=msgspec.Struct)


class Entry(msgspec.Struct, Generic[Sizes], frozen=True, kw_only=True):
    """A model of the papers, or of today, with its published sizes."""

    name: str
    sizes: Sizes
    tiny: Sizes
    """The same structure at sizes that a CPU runs in milliseconds."""
    batch: int
    """Samples on one device in one step."""
    parameters: int
    """What the model must have at its published sizes; tied weights count once."""
    source: str
    """Where sizes, batch and parameter count come from, and what had to be chosen."""
    build: Callable[[Sizes], nn.Module]
    inputs: Callable[[Sizes, int], tuple[object, ...]]
    targets: Callable[[Sizes, int], tuple[Tensor, ...]]
    loss: Loss

    def example(self, sizes: Sizes, batch: int) -> Example:
        """The model at these sizes with example inputs, on the default device."""
        return Example(
            model=self.build(sizes),
            inputs=self.inputs(sizes, batch),
            loss=self.loss,
            targets=self.targets(sizes, batch),
        )


def tokens(below: int, *shape: int) -> Tensor:
    """Integers from 0 up to, not including, `below`: token ids, table rows or classes."""
    return torch.randint(0, below, shape)


def class_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of one class for each sample."""
    return functional.cross_entropy(logits, targets)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of one token for each position of each sample."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
