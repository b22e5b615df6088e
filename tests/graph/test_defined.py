"""Operators told by index notation: splits are proved by execution, counts are literal numbers."""

from __future__ import annotations

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.recognised.trial import tried
from meshwright.graph.counts import forward
from meshwright.graph.families import family_of
from meshwright.graph.family import Saved
from meshwright.graph.operator_graph import Call, Spec, Value
from meshwright.graph.pieces import bounds, pieces, splits_of
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from support.torch_pieces import assembled, run

KERNELS = "support.user_kernels"

SWIGLU = "swiglu(x, y)[i..] = silu(x[i..]) * y[i..]"
SCALED = "scaled[s](x, w)[i.., o] = sum(k) s * x[i.., k] * w[o, k]"
WEIGHTED = "weighted(x, g)[i.., j] = sum(k) x[i.., k, j] * g[i.., k]"
GAPS = (
    "gaps(x, y)[i.., m, n] = sum(k) (x[i.., m, k] - y[i.., n, k]) * (x[i.., m, k] - y[i.., n, k])"
)
NORMED = "normed(x, g)[i.., j] = x[i.., j] * rsqrt(sum(m) x[i.., m] * x[i.., m]) * g[j]"
SPREAD = "spread[n](x)[i.., j < n] = x[i..]"
RAMP = "ramp[n](x)[i.., j < n] = j * x[i..]"
RECTIFIED = "rectified(x, w)[i.., o] = relu(sum(k) x[i.., k] * w[o, k])"


def call_of(line: str, *shapes: tuple[int, ...], **attributes: Value) -> Call:
    name = line.partition("(")[0].partition("[")[0]
    notes: dict[str, Value] = {"definition": line, "python_kernel": f"{KERNELS}:{name}"}
    unfinished = Call(
        kind=name,
        inputs=tuple(Spec("float64", shape) for shape in shapes),
        outputs=(),
        attributes=tuple(sorted({**attributes, **notes}.items())),
    )
    outputs = family_of(unfinished).outputs(unfinished)
    return Call(
        kind=name, inputs=unfinished.inputs, outputs=outputs, attributes=unfinished.attributes
    )


CASES = [
    (call_of(SWIGLU, (8, 6), (8, 6)), ["sample sample 8", "dim1 attribute 6"]),
    (
        call_of(SCALED, (8, 3, 6), (4, 6), s=2.5),
        ["sample sample 8", "dim1 attribute 3", "dim2 parameter 4", "sum-k reduction 6"],
    ),
    (
        call_of(WEIGHTED, (8, 6, 4), (8, 6)),
        ["sample sample 8", "dim1 attribute 4", "sum-k reduction 6"],
    ),
    (
        call_of(GAPS, (4, 6, 5), (4, 3, 5)),
        ["sample sample 4", "dim1 attribute 6", "dim2 parameter 3", "sum-k reduction 5"],
    ),
    # x is read at j and at m, so neither is cut.
    (call_of(NORMED, (8, 4, 6), (6,)), ["sample sample 8", "dim1 attribute 4"]),
    (call_of(SPREAD, (8, 4), n=6), ["sample sample 8", "dim1 attribute 4", "dim2 parameter 6"]),
    # A piece does not know where it begins.
    (call_of(RAMP, (8, 4), n=6), ["sample sample 8", "dim1 attribute 4"]),
    # relu of a part of a sum is not a part of relu of the sum.
    (call_of(RECTIFIED, (8, 6), (4, 6)), ["sample sample 8", "dim1 parameter 4"]),
]


@pytest.mark.parametrize(("call", "expected"), CASES, ids=[call.kind for call, _ in CASES])
def test_roles_are_read_off_the_line(call: Call, expected: list[str]) -> None:
    assert [f"{split.name} {split.role} {split.extent}" for split in splits_of(call)] == expected


@pytest.mark.parametrize("call", [call for call, _ in CASES], ids=lambda call: call.kind)
def test_pieces_make_the_whole(call: Call) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(spec.shape, dtype=torch.float64, generator=generator).requires_grad_()
        for spec in call.inputs
        if spec is not None
    ]
    (expected,) = run(call, tensors)
    assert tuple(expected.shape) == call.outputs[0].shape
    weights = torch.randn(expected.shape, dtype=torch.float64, generator=generator)
    backward = torch.autograd.grad(expected, tensors, weights)
    for split in splits_of(call):
        for parts in (2, 3):
            if not _fits(split.extent, parts):
                continue
            (joined,) = assembled(call, split, parts, tensors)
            torch.testing.assert_close(joined, expected, rtol=1e-9, atol=1e-12)
            for one, other in zip(
                torch.autograd.grad(joined, tensors, weights), backward, strict=True
            ):
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
            for piece in pieces(call, split, parts):
                assert family_of(call).outputs(piece.call) == piece.call.outputs


def _fits(extent: int, parts: int) -> bool:
    try:
        return len(bounds(extent, parts)) == parts
    except InputError:
        return False


@pytest.mark.parametrize("call", [call for call, _ in CASES], ids=lambda call: call.kind)
def test_every_line_is_what_its_kernel_computes(call: Call) -> None:
    assert tried(call, learns=True) is None


@pytest.mark.parametrize(
    ("line", "name", "sentence"),
    [
        ("f(x, y)[i..] = x[i..] * silu(y[i..])", "swiglu", "does not compute"),
        # A function that nobody knows hides the value, but not that a sum is not a sum of parts.
        ("f(x, w)[i.., o] = sum(k) what(x[i.., k] * w[o, k])", "rectified", "cut 2 ways along"),
        ("f(x, y)[i..] = what(x[i..], y[i..])", "normed", "cut 2 ways along"),
    ],
)
def test_a_line_that_the_kernel_refutes(line: str, name: str, sentence: str) -> None:
    shapes = {"swiglu": ((8, 6), (8, 6)), "rectified": ((8, 6), (4, 6)), "normed": ((6, 6), (6, 6))}
    call = call_of(line, *shapes[name])
    attributes = {**dict(call.attributes), "python_kernel": f"{KERNELS}:{name}"}
    wrong = Call(
        kind="f",
        inputs=call.inputs,
        outputs=call.outputs,
        attributes=tuple(sorted(attributes.items())),
    )
    with pytest.raises(InputError, match=sentence):
        tried(wrong, learns=True)


def test_flops_are_those_of_every_distinct_part_once() -> None:
    # A multiplication, an application; a product of a pair counts as two.
    assert forward(call_of(SWIGLU, (8, 6), (8, 6))).flops == 8 * 6 * 2
    assert forward(
        call_of("p(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]", (8, 6), (4, 6))
    ).flops == (2 * 8 * 6 * 4)
    # The root is taken once a row: 8 * 4 rows of 6, two multiplications an element besides.
    assert forward(call_of(NORMED, (8, 4, 6), (6,))).flops == 32 * 6 * 2 + 32 + 32 * 6 * 2


def test_what_is_kept_follows_from_the_products() -> None:
    swiglu, scaled = call_of(SWIGLU, (8, 6), (8, 6)), call_of(SCALED, (8, 6), (4, 6), s=1.0)
    assert family_of(swiglu).saved(swiglu, (True, False)) == Saved(inputs=(0, 1))
    assert family_of(swiglu).saved(swiglu, (False, True)) == Saved(inputs=(0,))
    assert family_of(scaled).saved(scaled, (True, False)) == Saved(inputs=(1,))
    plus = call_of("plus(x, y)[i..] = x[i..] + y[i..]", (8,), (8,))
    assert family_of(plus).saved(plus, (True, True)) == Saved()


def test_products_run_on_matrix_units() -> None:
    assert family_of(call_of(SCALED, (8, 6), (4, 6), s=1.0)).products
    assert not family_of(call_of(SWIGLU, (8, 6), (8, 6))).products


GRAPH = f"""graph g
    input x: float64[n=8, k=6]
    parameter w: float64[o=4, k=6]
    operator y: y: float64[n=8, o=4] = my.scaled(x, w) {{definition="{SCALED}", s=2.0}}
    output y"""


def test_a_graph_brings_its_definitions() -> None:
    graph = parse_graph(GRAPH)
    assert parse_graph(str(graph)) == graph
    assert check(graph) == ()
    assert check(parse_graph(GRAPH.replace("o=4] =", "o=5] ="))) == (
        "operator y: my.scaled gives float64[8, 4], not float64[8, 5]",
    )
    assert check(parse_graph(GRAPH.replace("x: float64[n=8, k=6]", "x: float64[n=8, k=7]"))) == (
        "operator y: my.scaled: k is 7 and 6 long",
    )


def test_a_line_that_means_nothing_is_a_sentence() -> None:
    with pytest.raises(InputError, match="'q' is not known there"):
        check(parse_graph(GRAPH.replace("s * x", "q * x")))
