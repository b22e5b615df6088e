"""Kinds and ATen: every known kind can run, and a call survives being described."""

from __future__ import annotations

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.execution.kernels import KERNELS, run_operator
from meshwright.capture.operators.aten import call, described, overloads
from meshwright.graph.families import BUILT_IN, parallel

A = torch.arange(12.0).reshape(3, 4) - 5
B = torch.arange(4.0) + 1
ROWS = torch.tensor([2, 0])
STATE = torch.ones(1, 1, 2)
ATEN = torch.ops.aten

CALLS = [
    (ATEN.add.Tensor, (A, B), {"alpha": 2}),
    (ATEN.mul.Tensor, (A, 2.5), {}),
    (ATEN.rsub.Scalar, (A, 1), {}),
    (ATEN.pow.Scalar, (2, A), {}),
    (ATEN.where.ScalarSelf, (A > 0, 1.0, A), {}),
    (ATEN.masked_fill.Scalar, (A, A > 0, float("-inf")), {}),
    (ATEN.sum.dim_IntList, (A, [0]), {"keepdim": True, "dtype": torch.float64}),
    (ATEN.max.dim, (A, 1), {}),
    (ATEN.linalg_matrix_norm.str_ord, (A, "nuc"), {}),
    (ATEN.mul.Tensor, (A, 2j), {}),
    (ATEN.min.other, (A, B), {}),
    (ATEN.split.Tensor, (A, 2, 1), {}),
    (ATEN.split.sizes, (A, [1, 3], 1), {}),
    (ATEN.cat.default, ([A, A], 1), {}),
    (ATEN.index.Tensor, (A, [None, ROWS]), {}),
    (ATEN.index_put.default, (A, [ROWS], B), {"accumulate": True}),
    (ATEN.to.dtype, (A, torch.int64), {}),
    (ATEN.full.default, ([2, 2], 7), {"dtype": torch.float64, "device": "cpu"}),
    (ATEN.arange.start_step, (1, 9, 2), {}),
    (ATEN.layer_norm.default, (A, [4], B, None, 1e-3), {}),
    (ATEN.layer_norm.default, (A, [4], None, B), {}),
    (ATEN.upsample_nearest2d.vec, (A[None, None], None, [2.0, 1.0]), {}),
    (ATEN.conv2d.padding, (A[None, None], torch.ones(1, 1, 3, 3), None, [1, 1], "same"), {}),
    (ATEN.lstm_cell.default, (A[:1], [STATE[0], STATE[0]], torch.ones(8, 4), torch.ones(8, 2)), {}),
    (ATEN.gru.input, (A[None], STATE, [torch.ones(6, 4), torch.ones(6, 2)], False, 1, 0.0,
                      False, False, True), {}),
    (ATEN.lstm.input, (A[None], [STATE, STATE], [torch.ones(8, 4), torch.ones(8, 2)], False, 1,
                       0.0, False, False, True), {}),
]  # fmt: skip


@pytest.mark.parametrize(("overload", "positional", "named"), CALLS, ids=lambda c: str(c)[:24])
def test_a_described_call_is_the_call(overload, positional, named) -> None:  # type: ignore[no-untyped-def]
    words = described(overload, positional, named, torch.is_tensor)
    torch.testing.assert_close(
        call(words.kind, words.inputs, words.attributes),
        overload(*positional, **named),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("kind", sorted(set(BUILT_IN) - set(parallel.KINDS)))
def test_every_known_kind_has_a_kernel(kind: str) -> None:
    assert kind in KERNELS or overloads(kind)


def test_a_kind_that_nobody_has() -> None:
    with pytest.raises(InputError, match="PyTorch has no operator 'nosuch' for 1 tensors"):
        run_operator("nosuch", (A,), ())


def test_weighted_bags() -> None:
    table, rows = torch.arange(6.0).reshape(3, 2), torch.tensor([[0, 2]])
    (bags,) = run_operator("embedding_bag", (table, rows, None, torch.tensor([[1.0, 10.0]])), ())
    assert bags.tolist() == [[40.0, 51.0]]


def test_kernels_leave_running_statistics_alone() -> None:
    mean, variance = torch.zeros(4), torch.ones(4)
    attributes = (("eps", 1e-5), ("momentum", 0.1), ("training", True))
    run_operator("batch_norm", (A, None, None, mean, variance), attributes)
    assert mean.eq(0).all()
    assert variance.eq(1).all()
