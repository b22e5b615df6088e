"""CTC losses: what is captured is PyTorch's loss, of targets with and without their padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.capture.ctc import CtcLoss
from meshwright.capture.example import Example, Step
from meshwright.capture.execute import execute, values_of
from meshwright.capture.export import capture
from meshwright.foundation.errors import InputError

FRAMES, SAMPLES, CLASSES, LABELS = 12, 4, 6, 5

Loss = Callable[[Tensor, Tensor], Tensor]


class Speech(nn.Module):
    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.head = nn.Linear(3, CLASSES)
        self.loss = loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.loss(self.head(x).log_softmax(-1), labels)


def lengths() -> Tensor:
    return torch.full((SAMPLES,), FRAMES)


def unpadded(reduction: str) -> Loss:
    """As Transformers computes it: labels below 1 are padding, wherever they stand."""

    def loss(scores: Tensor, labels: Tensor) -> Tensor:
        mask = (labels != -100) & (labels != 0)
        counts = mask.sum(-1)
        targets = labels.masked_select(mask)
        return functional.ctc_loss(
            scores, targets, lengths(), counts, reduction=reduction, zero_infinity=True
        )

    return loss


def padded(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.ctc_loss(scores, labels, lengths(), torch.tensor([5, 3, 1, 2]))


def with_numbers(scores: Tensor, labels: Tensor) -> Tensor:
    frames, counts = (FRAMES,) * SAMPLES, (5, 3, 1, 2)
    return functional.ctc_loss(scores, labels, frames, counts)  # type: ignore[arg-type]


def example(loss: Loss, labels: Tensor) -> Example:
    torch.manual_seed(0)
    x = torch.randn(FRAMES, SAMPLES, 3, dtype=torch.float64)
    return Example(model=Speech(loss).double(), inputs=(x, labels))


RAGGED = torch.tensor(
    [[1, 2, 3, 4, 5], [0, 2, -100, 2, -100], [-100, -100, 5, -100, 0], [3, 3, -100, -100, -100]]
)
FULL = torch.tensor([[1, 2, 3, 4, 5], [2, 2, 1, 0, 0], [5, 0, 0, 0, 0], [3, 3, 0, 0, 0]])


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (unpadded("mean"), RAGGED),
        (unpadded("sum"), RAGGED),
        (unpadded("none"), RAGGED),
        (padded, FULL),
        (with_numbers, FULL),
    ],
)
def test_the_captured_loss_is_pytorch_s(loss: Loss, labels: Tensor) -> None:
    own = example(loss, labels)
    graph = capture(own)
    assert "ctc_losses" in {operator.kind for operator in graph.operators}
    (made,) = execute(graph, values_of(own, graph)).values()
    expected = Step(own)(own.inputs, own.named, own.targets)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(made, expected)
    parameters = list(own.model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(made.sum(), parameters), torch.autograd.grad(expected.sum(), parameters)
    )


def of_other_lengths(scores: Tensor, labels: Tensor) -> Tensor:
    targets = labels.masked_select(labels > 0)
    return functional.ctc_loss(scores, targets, lengths(), torch.tensor([5, 2, 1, 2]))


def of_another_use(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.sum() * labels.masked_select(labels > 0).sum()


@pytest.mark.parametrize("loss", [of_other_lengths, of_another_use])
def test_other_selections_depend_on_data(loss: Loss) -> None:
    with pytest.raises(InputError, match=r"depends on data|branches on the values"):
        capture(example(loss, RAGGED))


def test_a_selection_that_is_returned_is_made() -> None:
    with CtcLoss() as ctc:
        waiting: Any = RAGGED.masked_select(RAGGED > 0)
        given = ctc.gathered({"labels": waiting})
    assert torch.equal(given["labels"], RAGGED[RAGGED > 0])
