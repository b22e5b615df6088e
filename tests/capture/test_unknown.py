"""Operators that no family knows: kept, named, and cut only where samples are independent."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.capture.load import load_model
from meshwright.capture.recognised.disagreeing import with_opaque_mismatches
from meshwright.capture.recognised.independence import independent_dims, with_independent_samples
from meshwright.graph.operator_graph import Call, Spec
from meshwright.graph.pieces import splits_of
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check

FILE = Path(__file__).with_name("user_models.py")


def test_a_users_own_operators() -> None:
    captured = load_model(f"{FILE}:unknown")
    twice, centred = captured.graph.operators[1:]
    assert (twice.kind, twice.attributes) == ("user_library.twice", (("independent", (0, 0)),))
    assert (centred.kind, centred.attributes) == ("user_library.centred", ())
    assert [split.name for split in splits_of(captured.graph.call(twice))] == ["sample"]
    assert splits_of(captured.graph.call(centred)) == ()
    assert captured.warnings == (
        "graph 'unknown' has operators that no family tells about: user_library.centred (1 times),"
        " user_library.twice (1 times); they count as bytes only and are split only where samples "
        "proved to be independent",
    )


X, W = Spec("float32", (8, 3)), Spec("float32", (5, 3))
OUT = Spec("float32", (8, 5))


@pytest.mark.parametrize(
    ("call", "dims"),
    [
        (Call(kind="aten.sinh", inputs=(X,), outputs=(X,)), (0, 0)),
        (Call(kind="aten.linear", inputs=(X, W), outputs=(OUT,)), (0, -1, 0)),
        (Call(kind="aten.flip", inputs=(X,), outputs=(X,), attributes=(("dims", (0,)),)), None),
        (Call(kind="aten.flip", inputs=(X,), outputs=(X,), attributes=(("dims", (1,)),)), (0, 0)),
        (Call(kind="aten.rand_like", inputs=(X,), outputs=(X,)), None),
        (Call(kind="aten.t", inputs=(X,), outputs=(Spec("float32", (3, 8)),)), None),
        (Call(kind="nosuch.thing", inputs=(X,), outputs=(X,)), None),
        (
            Call(
                kind="aten.sinh",
                inputs=(Spec("float32", (8, 10**9)),),
                outputs=(Spec("float32", (8, 10**9)),),
            ),
            None,
        ),
    ],
    ids=lambda case: case.kind if isinstance(case, Call) else str(case),
)
def test_trials(call: Call, dims: tuple[int, ...] | None) -> None:
    assert independent_dims(call) == dims


def test_a_family_that_expects_other_shapes_is_not_believed() -> None:
    """`linear` of vectors by a stack of matrices is nothing that its family knows."""
    graph = parse_graph("""graph odd
input x: float32[batch=4, width=8]
input table: float32[row=5, width=3]
operator first: y: float32[batch=4, width=3] = linear(x, table)
operator second: z: float32[batch=4, width=3] = relu(y)
output z""")
    assert check(graph)
    kept = with_opaque_mismatches(graph)
    assert [operator.kind for operator in kept.operators] == ["aten.linear", "relu"]
    assert check(kept) == ()
    assert with_opaque_mismatches(kept) is kept
    assert with_independent_samples(kept).operators == kept.operators


def test_products_of_mixed_dtypes_are_left_to_the_check() -> None:
    graph = parse_graph("""graph mixed
input x: int64[batch=4, width=8]
input w: float32[out=4, in=8]
operator product: y: float32[batch=4, out=4] = linear(x, w)
output y""")
    assert with_opaque_mismatches(graph) is graph
    assert check(graph)
