"""CTC losses: what is captured is PyTorch's loss, of targets with and without their padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.operators.ctc import CtcLoss
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example, Step

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


def written_later(scores: Tensor, labels: Tensor) -> Tensor:
    """What was selected and counted before is what counts."""
    labels = labels.clone()
    mask = labels > 0
    targets, counts = labels.masked_select(mask), mask.sum(-1)
    labels[0, 0], mask[0, 3:] = 5, False
    return functional.ctc_loss(scores, targets, lengths(), counts, zero_infinity=True)


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
        (written_later, RAGGED),
        (padded, FULL),
        (with_numbers, FULL),
    ],
)
def test_the_captured_loss_is_pytorch_s(loss: Loss, labels: Tensor) -> None:
    case = example(loss, labels)
    graph = capture(case)
    assert "ctc_losses" in {operator.kind for operator in graph.operators}
    (output,) = execute(graph, values_of(case, graph)).values()
    expected = Step(case)(case.inputs, case.named, case.targets)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(output, expected)
    parameters = list(case.model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(output.sum(), parameters),
        torch.autograd.grad(expected.sum(), parameters),
    )


def of_other_lengths(scores: Tensor, labels: Tensor) -> Tensor:
    targets = labels.masked_select(labels > 0)
    return functional.ctc_loss(scores, targets, lengths(), torch.tensor([5, 2, 1, 2]))


def of_a_mask_written_between(scores: Tensor, labels: Tensor) -> Tensor:
    mask = labels > 0
    targets = labels.masked_select(mask)
    mask[0, 3:] = False
    return functional.ctc_loss(scores, targets, lengths(), mask.sum(-1))


def of_another_use(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.sum() * labels.masked_select(labels > 0).sum()


@pytest.mark.parametrize("loss", [of_other_lengths, of_a_mask_written_between])
def test_targets_of_other_lengths_are_refused(loss: Loss) -> None:
    with pytest.raises(InputError, match=r"branches on the values|fails on its example inputs"):
        capture(example(loss, RAGGED))


def test_a_selection_for_another_use_is_as_large_as_the_example_s() -> None:
    case = example(of_another_use, RAGGED)
    graph = capture(case)
    assert [guard.value for guard in graph.guards] == [10]
    (output,) = execute(graph, values_of(case, graph)).values()
    assert torch.equal(output, Step(case)(case.inputs, case.named, case.targets))


def test_a_selection_that_is_returned_is_made() -> None:
    with CtcLoss() as ctc:
        waiting: Any = RAGGED.masked_select(RAGGED > 0)
    tensors = ctc.gathered({"labels": waiting})
    assert torch.equal(tensors["labels"], RAGGED[RAGGED > 0])


def test_a_mask_that_lies_where_another_lay_is_another() -> None:
    """Both are freed at once, so that Python gives the second the place of the first."""
    with CtcLoss() as ctc:
        waiting = RAGGED.masked_select(RAGGED > 0)
        counts = (RAGGED > 1).sum(-1)
        assert ctc._padded(waiting, counts) is None
        mask = RAGGED > 0
        padded = ctc._padded(RAGGED.masked_select(mask), mask.sum(-1))
    assert padded is not None
    assert padded[1].tolist() == [2, 2, 0, -100, -100]
