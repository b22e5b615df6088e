"""Counts of calls and graphs as literal numbers."""

from __future__ import annotations

import pytest

from meshwright.graph.counts import (
    Counts,
    backward,
    backward_counts,
    forward,
    forward_counts,
    product_flops,
    saved_activation_bytes,
    tensors_requiring_grad,
    view_bases,
)
from meshwright.graph.families import family_of
from meshwright.graph.families.contraction import contraction
from meshwright.graph.pieces import pieces, splits_of
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import unknown_kinds
from support.operator_cases import CASES, Case, case, flags, real, whole

MLP = parse_graph(
    """graph mlp
    input x: float32[batch=4, d=8]
    input y: int64[batch=4]
    parameter w: float32[o=16, i=8]
    parameter b: float32[o=16]
    frozen v: float32[o=8, i=16]
    operator up: h: float32[batch=4, d=16] = linear(x, w, b)
    operator act: r: float32[batch=4, d=16] = relu(h)
    operator turn: t: float32[d=16, batch=4] = t(r)
    operator back: u: float32[batch=4, d=16] = t(t)
    operator down: z: float32[batch=4, d=8] = linear(u, v)
    operator loss: l: float32[] = cross_entropy_loss(z, y)
    loss l"""
)


def test_gradients_flow_from_what_learns() -> None:
    assert tensors_requiring_grad(MLP) == {"w", "b", "h", "r", "t", "u", "z", "l"}


def test_what_does_not_lead_to_the_loss_needs_no_gradient() -> None:
    aside = (
        str(MLP)
        .replace("loss l", "output extra\nloss l")
        .replace(
            "output extra",
            "operator aside: extra: float32[batch=4, d=16] = exp(h)\noutput extra",
        )
    )
    assert tensors_requiring_grad(parse_graph(aside)) == tensors_requiring_grad(MLP)
    detached = str(MLP).replace("relu(h)", "detach(h)")
    assert tensors_requiring_grad(parse_graph(detached)) == frozenset()


def test_product_flops() -> None:
    """Neither the input nor the frozen weight has a gradient."""
    assert product_flops(MLP) == (2 * 2 * 4 * 8 * 16, 2 * 2 * 4 * 8 * 16)


def test_whole_graph() -> None:
    floats = 4
    up = floats * (4 * 8 + 16 * 8 + 16 + 4 * 16)
    act = floats * (2 * 4 * 16)
    down = floats * (4 * 16 + 8 * 16 + 4 * 8)
    loss = floats * (4 * 8 + 1) + 8 * 4
    assert forward_counts(MLP) == Counts(2 * 1024 + 64 + 5 * 32, up + act + down + loss)
    assert backward_counts(MLP).flops == 2 * 1024 + 64 + 5 * 32


def test_kept_activations_count_once_and_views_not_at_all() -> None:
    """relu keeps r, linear keeps a view of r; x and y are kept, z as log-probabilities."""
    assert view_bases(MLP)["u"] == "r"
    assert saved_activation_bytes(MLP) == 4 * (4 * 8) + 4 * (4 * 16) + 8 * 4 + 4 * (4 * 8)


def test_an_embedding_moves_the_rows_it_reads() -> None:
    call = case("embedding", real(1_000_000, 64), whole(10, 32)).call
    assert forward(call).bytes == 32 * 8 + 2 * 32 * 64 * 8


def test_views_are_free() -> None:
    call = case("permute", real(5, 4, 6), dims=(2, 0, 1)).call
    assert forward(call) == backward(call, (True,)) == Counts(0, 0)


def test_dropout_keeps_a_mask_unless_it_drops_nothing() -> None:
    on, off = (case("dropout", real(5, 6), p=p, train=True).call for p in (0.1, 0.0))
    assert forward(on).bytes == 2 * 30 * 8 + 30
    assert forward(off) == Counts(0, 0)


def test_what_has_no_gradient_costs_nothing_backward() -> None:
    call = case("logical_not", flags(5, 6)).call
    assert backward(call, (True,)) == Counts(0, 0)


def in_one_step(einsum: Case) -> bool:
    """Whether nothing is summed before operands meet, and two meet at most."""
    equation = contraction(
        str(dict(einsum.attributes)["equation"]), [o.shape for o in einsum.operands if o]
    )
    alone = [
        label
        for label in equation.sizes
        if sum(label in labels for labels in equation.operands) == 1
    ]
    return len(equation.operands) < 3 and (
        len(equation.operands) == 1 or set(alone) <= set(equation.output)
    )


@pytest.mark.parametrize("operator", CASES, ids=str)
def test_pieces_can_be_counted_and_share_the_products(operator: Case) -> None:
    """No split loses or doubles a product, but that by values, which repeats the scores.

    A contraction of several steps repeats those that a label takes no part in, and inputs next to
    a cut of a transposed convolution are multiplied on both sides of it.
    """
    if operator.kind == "bilinear" or (operator.kind == "einsum" and not in_one_step(operator)):
        return
    wanted = (True,) * len(operator.operands)
    whole = forward(operator.call).flops, backward(operator.call, wanted).flops
    for split in splits_of(operator.call):
        parts = [piece.call for piece in pieces(operator.call, split, 2)]
        shares = [(forward(part).flops, backward(part, wanted).flops) for part in parts]
        overlaps = split.halo is not None and "transpose" in operator.kind
        if family_of(operator.call).products and split.name != "value" and not overlaps:
            assert tuple(map(sum, zip(*shares, strict=True))) == whole, f"{operator}: {split.name}"


SWISH = """graph g
    input x: float32[batch=4, d=8]
    operator s: y: float32[batch=4, d=8] = mylib.swish(x)
    output y"""


def test_an_unknown_operator_is_counted_in_bytes_and_not_split() -> None:
    graph = parse_graph(SWISH)
    assert unknown_kinds(graph) == (("mylib.swish", 1),)
    assert forward_counts(graph) == Counts(0, 2 * 4 * 8 * 4)
    assert splits_of(graph.call(graph.operators[0])) == ()


def test_an_unknown_operator_is_split_where_a_capture_proved_it() -> None:
    graph = parse_graph(SWISH.replace("swish(x)", "swish(x) {independent=[0, 0]}"))
    (split,) = splits_of(graph.call(graph.operators[0]))
    assert (split.name, split.extent, split.inputs, split.outputs) == ("sample", 4, (0,), (0,))
