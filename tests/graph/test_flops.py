"""Flops of products and convolutions are those of `torch.utils.flop_counter`, both ways."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from meshwright.graph.counts import backward, forward
from meshwright.graph.families import family_of
from support.operator_cases import (
    ATTENTION,
    CONTRACTIONS,
    CONVOLUTIONS,
    PRODUCTS,
    RECURRENT,
    Case,
    case,
    real,
    weights,
)
from support.torch_pieces import run

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

UNCOUNTED = {"_grouped_mm"}
"""Ours is a custom operator here, which the counter does not look into."""
SUMMED = [c for c in CONTRACTIONS if c.kind in ("einsum", "addbmm") and len(c.operands) > 1]
"""Contractions that PyTorch carries out as products of matrices."""
PLAIN = [
    c
    for c in (*PRODUCTS, *SUMMED[:4], *CONVOLUTIONS, *RECURRENT)
    if c.kind not in UNCOUNTED
    # Products with a vector run as `mv` and `dot`, which the counter does not know.
    and all(len(o.shape) > 1 for o in c.operands[:2] if o is not None)
]


def counted(case: Case, wanted: tuple[bool, ...]) -> tuple[int, int]:
    """Forward flops, and backward flops for the gradients wanted, as PyTorch counts them."""
    tensors = [
        None if t is None else t.detach().requires_grad_(needed)
        for t, needed in zip(case.tensors(), wanted, strict=True)
    ]
    with FlopCounterMode(display=False) as forward_mode:
        values = run(case.call, tensors)
    differentiated = [t for t in tensors if t is not None and t.requires_grad]
    outputs = [m for m in values if m.requires_grad]
    with FlopCounterMode(display=False) as backward_mode:
        torch.autograd.grad(outputs, differentiated, [torch.ones_like(o) for o in outputs])
    return forward_mode.get_total_flops(), backward_mode.get_total_flops()


def groups(case: Case) -> int:
    value = dict(case.attributes).get("groups", 1)
    assert isinstance(value, int)
    return value


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_forward(case: Case) -> None:
    wanted = (True,) * len(case.operands)
    assert forward(case.call).flops == counted(case, wanted)[0]


@pytest.mark.parametrize("case", [c for c in PLAIN if groups(c) == 1], ids=str)
def test_backward(case: Case) -> None:
    wanted = (True,) * len(case.operands)
    assert backward(case.call, wanted).flops == counted(case, wanted)[1]


@pytest.mark.parametrize("case", [c for c in PLAIN if groups(c) == 1], ids=str)
def test_backward_without_a_gradient_of_the_first_operand(case: Case) -> None:
    wanted = (False, *(True,) * (len(case.operands) - 1))
    assert backward(case.call, wanted).flops == counted(case, wanted)[1]


@pytest.mark.parametrize("case", [c for c in PLAIN if groups(c) > 1], ids=str)
def test_backward_of_grouped_convolutions(case: Case) -> None:
    """PyTorch 2.13 counts the weight's gradient once for every group, which is too often."""
    for_weight = (False, True, False)[: len(case.operands)]
    ours = backward(case.call, for_weight).flops
    assert ours == forward(case.call).flops
    assert counted(case, for_weight)[1] in (ours, groups(case) * ours)


def test_a_recurrent_layer_without_states_to_learn() -> None:
    """A zero initial state needs no gradient: the usual call of `nn.LSTM`."""
    lstm = case(
        "lstm", real(6, 5, 4), real(2, 5, 3), real(2, 5, 3), *weights(4, 4, 3, 2, 1),
        has_biases=True, num_layers=2, dropout=0.0, train=True, bidirectional=False,
        batch_first=False,
    )  # fmt: skip
    wanted = (True, False, False, *(True,) * 8)
    assert backward(lstm.call, wanted).flops == counted(lstm, wanted)[1]


@pytest.mark.parametrize("case", [c for c in ATTENTION if len(c.operands[0].shape) == 4], ids=str)  # type: ignore[union-attr]
def test_fused_attention(case: Case) -> None:
    """PyTorch's formulas for fused kernels: two products forward, five backward."""
    q, k, v = (spec.shape for spec in case.call.inputs[:3] if spec is not None)
    if dict(case.attributes).get("enable_gqa"):
        k, v = ((shape[0], q[1], *shape[2:]) for shape in (k, v))
    out = case.call.outputs[0].shape
    assert forward(case.call).flops == sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]
    wanted = (True, True, True, *(False,) * (len(case.operands) - 3))
    expected = sdpa_backward_flop_count(out, q, k, v)  # type: ignore[no-untyped-call]
    assert backward(case.call, wanted).flops == expected


def test_a_grouped_product_is_a_product_for_each_row() -> None:
    (grouped,) = (c for c in PRODUCTS if c.kind == "_grouped_mm")
    assert forward(grouped.call).flops == 2 * 9 * 4 * 6
    assert family_of(grouped.call).products
