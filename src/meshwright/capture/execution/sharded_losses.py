"""Losses sharded along classes (vocabulary-parallel): cross_entropy_loss and nll_loss.

Enters: a piece's call and operands. Leaves: what its classes add to the loss. Scores are
[n, classes of the piece, ...]; targets and class weights are whole, so that every piece knows what
a mean divides by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.capture.execution.sharded_softmax import (
    Counted,
    JointReductions,
    cross_entropy,
    in_float32,
    softmax,
)
from meshwright.graph.operator_graph import Call

NONE, MEAN = 0, 1
"""ATen's numbers for a loss that is not reduced, and for a mean."""


def loss(call: Call, operands: Sequence[Tensor | None], together: JointReductions) -> Tensor:
    """What the classes of a piece add to the loss."""
    scores, targets, weights = (*operands, None)[:3]
    assert scores is not None
    assert targets is not None
    classes = _Classes(call, weights, scores.shape[1])
    by = _by_share if targets.is_floating_point() else _by_target
    rows, divisor = by(call, scores, targets, classes, together)
    match call.get("reduction", MEAN):
        case 0:
            return rows
        case 1:
            return (rows.sum() / divisor).to(scores.dtype)
        case _:
            return rows.sum()


class _Classes:
    """The classes of a piece among all, with their weights."""

    def __init__(self, call: Call, weights: Tensor | None, count: int) -> None:
        first, every = call.get("first_class"), call.get("classes")
        smoothing = call.get("label_smoothing", 0.0)
        assert isinstance(first, int)
        assert isinstance(every, int)
        assert isinstance(smoothing, float | int)
        self.first, self.every, self.count, self.weights = first, every, count, weights
        self.smoothing = float(smoothing)

    def weight_of(self, targets: Tensor, dtype: torch.dtype) -> Tensor | float:
        if self.weights is None:
            return 1.0
        return self.weights.to(dtype)[targets.clamp(0, self.every - 1)]

    def own_weights(self, dims: int, dtype: torch.dtype) -> Tensor | float:
        """Those of the classes of this piece, as dim 1."""
        if self.weights is None:
            return 1.0
        weights = self.weights.to(dtype)[self.first : self.first + self.count]
        return weights.view(1, -1, *(1,) * (dims - 2))

    def total_weight(self, dtype: torch.dtype) -> Tensor | float:
        return float(self.every) if self.weights is None else self.weights.to(dtype).sum()


class _Targets(NamedTuple):
    """The targets of a piece; classes are dim 1."""

    classes: Tensor
    place: Tensor
    """Among the classes of the piece."""
    mine: Tensor
    """Whether they are there."""
    counted: Tensor
    """Whether they count at all."""


def _targets(call: Call, targets: Tensor, rows: int, classes: _Classes) -> _Targets:
    first, ignored = call.get("first", 0), call.get("ignore_index", -100)
    assert isinstance(first, int)
    assert isinstance(ignored, int)
    labels = targets[first : first + rows].unsqueeze(1)
    place = labels - classes.first
    mine = (place >= 0) & (place < classes.count)
    return _Targets(labels, place.clamp(0, classes.count - 1), mine, labels.ne(ignored))


def _by_target(
    call: Call, scores: Tensor, targets: Tensor, classes: _Classes, together: JointReductions
) -> tuple[Tensor, Tensor | float]:
    """The loss of each row, and what a mean divides by, of targets that are classes."""
    dtype, ignored = in_float32(scores).dtype, call.get("ignore_index", -100)
    assert isinstance(ignored, int)
    divisor = (targets.ne(ignored) * classes.weight_of(targets, dtype)).to(dtype).sum()
    labels = _targets(call, targets, scores.shape[0], classes)
    rows = (labels.counted * classes.weight_of(labels.classes, dtype)).to(dtype)
    share = rows * labels.mine
    if call.kind != "cross_entropy_loss":
        # A class of another device stands in for its target, and its score may be -inf.
        terms = (scores.gather(1, labels.place) * share).masked_fill(share == 0, 0)
        return -terms.squeeze(1).to(scores.dtype), divisor
    hit, dense, total = 1 - classes.smoothing, None, rows * (1 - classes.smoothing)
    if classes.smoothing:
        each = labels.counted.to(dtype) * (classes.smoothing / classes.every)
        dense = each * classes.own_weights(scores.dim(), dtype)
        total = total + each * classes.total_weight(dtype)
    return cross_entropy(
        scores, Counted(dense, labels.place, hit * share, total), together
    ), divisor


def _by_share(
    call: Call, scores: Tensor, targets: Tensor, classes: _Classes, together: JointReductions
) -> tuple[Tensor, Tensor | float]:
    """The same of targets that are probabilities."""
    real = in_float32(scores)
    share = (1 - classes.smoothing) * targets + classes.smoothing / classes.every
    share = share * classes.own_weights(scores.dim(), real.dtype)
    rows = -(softmax(real, 1, together, log=True) * share).sum(1)
    divisor = call.get("divisor", rows.numel())
    assert isinstance(divisor, int)
    return rows.to(scores.dtype), float(divisor)
