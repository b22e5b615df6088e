"""What runs for a piece is what the judge of the splits runs, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from meshwright.capture.execution.shard_kernels import run_call
from meshwright.graph.families import family_of
from meshwright.graph.pieces import pieces, splits_of
from support.operator_cases import CASES, Case
from support.torch_pieces import cut
from support.torch_pieces import run as judged

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_run_as_their_judge_says(case: Case) -> None:
    tensors = case.tensors()
    for split in splits_of(case.call):
        if split.statistics or split.exchanged:
            # They run together: see tests/graph/test_joint_splits.py, tests/run/test_experts.py.
            continue
        for piece in pieces(case.call, split, 2):
            operands = tuple(
                None if tensor is None or box is None else cut(tensor, box)
                for tensor, box in zip(tensors, piece.inputs, strict=True)
            )
            torch.manual_seed(0)
            ours = run_call(piece.call, operands)
            torch.manual_seed(0)
            torch.testing.assert_close(ours, judged(piece.call, operands), rtol=1e-9, atol=1e-12)
            if family_of(case.call).differentiable:
                _compare_gradients(ours, judged(piece.call, operands), tensors)


def _compare_gradients(
    ours: tuple[torch.Tensor, ...],
    theirs: tuple[torch.Tensor, ...],
    tensors: Sequence[torch.Tensor | None],
) -> None:
    wanted = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    if wanted and any(result.requires_grad for result in ours):
        torch.testing.assert_close(
            _gradients(ours, wanted), _gradients(theirs, wanted), rtol=1e-9, atol=1e-12
        )


def _gradients(outputs: tuple[torch.Tensor, ...], wanted: list[torch.Tensor]) -> list[torch.Tensor]:
    """Zeros where there is none."""
    # Of complex numbers both parts: their sum alone has no gradient.
    real = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    learnt = [result.sum() for result in real if result.requires_grad]
    gradients = torch.autograd.grad(learnt, wanted, materialize_grads=True)
    return list(gradients)
