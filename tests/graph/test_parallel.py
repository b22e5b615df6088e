"""Parallel operators as kinds of a graph: sizes of the dims follow the laws of `rewrite.types`."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwright.graph.families import family_of
from meshwright.graph.families.parallel import FRONT_AXES, KINDS
from meshwright.graph.family import ShapeError
from meshwright.graph.notation import MisfitError
from meshwright.graph.operator_graph import Call, Spec, Value
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.rewrite.language.terms import AXES
from meshwright.rewrite.language.types import FRONT, PARALLEL, TypedAxis, infer

NAMES = {"pipeline": ("axis", "count"), "batch": ("axis", "count")} | {
    "halo": ("axis", "before", "after")
}


def call(kind: str, shape: tuple[int, ...], *values: Value) -> Call:
    names = NAMES.get(kind, ("axis", "degree"))
    attributes = tuple(sorted(zip(names, values, strict=True)))
    return Call(kind=kind, inputs=(Spec("float32", shape),), outputs=(), attributes=attributes)


def outputs_of(call: Call) -> tuple[Spec, ...]:
    return family_of(call).outputs(call)


def test_both_rooms_name_the_same() -> None:
    assert set(KINDS) == set(PARALLEL)
    assert FRONT_AXES == AXES


def test_a_graph_of_them_is_right() -> None:
    graph = parse_graph("""graph column
    input x: float32[n=4, k=8]
    parameter w: float32[o=6, k=8]
    operator a: xs: float32[n=4, k=8] = replicate(x) {axis="copies", degree=2}
    operator b: ws: float32[o=6, k=8] = partition(w) {axis=0, degree=2}
    operator c: ys: float32[n=4, o=6] = linear(xs, ws)
    operator d: y: float32[n=4, o=6] = combine(ys) {axis=1, degree=2}
    operator e: m: float32[n=2, o=6] = pipeline(y) {axis=0, count=2}
    operator f: h: float32[n=2, o=6] = halo(m) {after=0, axis=1, before=1}
    output h""")
    assert check(graph) == ()


@pytest.mark.parametrize(
    ("kind", "values", "problem"),
    [
        ("reduce", (0, 3), "size 4 does not make 3 equal parts"),
        ("partition", (2, 2), "no dim 2 among 2"),
        ("partition", ("rows", 2), "axis is 'rows', not one of 2 dims"),
        ("pipeline", ("copies", 2), "axis is 'copies'"),
        ("replicate", ("copies", 0), "degree is 0"),
        ("halo", (0, -1, 0), "less than no rows"),
    ],
)
def test_what_does_not_fit(kind: str, values: tuple[Value, ...], problem: str) -> None:
    with pytest.raises(ShapeError, match=problem):
        outputs_of(call(kind, (4, 8), *values))


@given(
    kind=st.sampled_from(PARALLEL),
    axis=st.sampled_from((-1, 0, 1, *AXES)),
    amounts=st.tuples(st.integers(1, 4), st.integers(0, 2)),
    sizes=st.lists(st.sampled_from((1, 2, 4, 6)), min_size=FRONT + 2, max_size=FRONT + 2),
    degrees=st.lists(st.sampled_from((1, 2)), min_size=FRONT + 2, max_size=FRONT + 2),
)
def test_sizes_are_those_of_the_types(
    kind: str, axis: int | str, amounts: tuple[int, int], sizes: list[int], degrees: list[int]
) -> None:
    given_type = tuple(map(TypedAxis, sizes, degrees))
    assume(all(axis.size % axis.degree == 0 for axis in given_type))
    values = (axis, *amounts[: 2 if kind == "halo" else 1])
    try:
        [output_type] = infer(kind, values, [given_type])
    except MisfitError:
        return
    [spec] = outputs_of(call(kind, tuple(sizes[FRONT:]), *values))
    assert spec.shape == tuple(axis.size for axis in output_type[FRONT:])
