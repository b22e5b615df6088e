"""Names of dims: laws for any reshape, and the ways of a transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshwright.capture.translation.dim_names import Names, output_dims
from meshwright.graph.operator_graph import NAME, Attributes, Call, Spec


def named(
    kind: str,
    inputs: Sequence[tuple[Names, tuple[int, ...]]],
    out: tuple[int, ...],
    **attributes: int,
) -> Names:
    """Names of the only output of a kind."""
    pairs: Attributes = tuple(sorted(attributes.items()))
    call = Call(
        kind=kind,
        inputs=tuple(Spec("float32", shape) for _, shape in inputs),
        outputs=(Spec("float32", out),),
        attributes=pairs,
    )
    (names,) = output_dims(call, [names for names, _ in inputs])
    return names


@st.composite
def regroupings(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with the same number of elements, ones and zeros among their sizes."""
    factors = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 4)), max_size=6))

    def grouped() -> tuple[int, ...]:
        cuts = sorted(draw(st.lists(st.integers(0, len(factors)), max_size=4)))
        bounds = [0, *cuts, len(factors)]
        return tuple(math.prod(factors[a:b]) for a, b in pairwise(bounds))

    return grouped(), grouped()


@given(regroupings())
def test_a_reshape_names_every_dim_once(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    before, after = shapes
    names = named("reshape", [(tuple("abcdef")[: len(before)], before)], after)
    assert len(names) == len(after)
    assert len(set(names)) == len(names)
    assert all(map(NAME.fullmatch, names))


@given(regroupings())
def test_ones_put_in_keep_the_other_names(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Dims that stay keep their names, wherever dims of size 1 come in."""
    whole, _ = shapes
    if 0 in whole:
        return
    sizes = tuple(size for size in whole if size > 1)
    names = tuple("abcdef")[: len(sizes)]
    with_ones = named("view", [(names, sizes)], (*sizes, 1, 1))
    assert with_ones[: len(sizes)] == names


def test_channels_as_an_image_of_one_pixel() -> None:
    scale = named("view", [(("batch", "channel"), (4, 8))], (4, 8, 1, 1))
    assert scale == ("batch", "channel", "d2", "d3")


def test_a_name_given_twice_takes_no_other_dims_name() -> None:
    names = named("add", [(("a", "a", "a_2"), (2, 3, 4))], (2, 3, 4))
    assert names == ("a", "a_2", "a_2_2")


@given(st.lists(st.integers(2, 5), min_size=1, max_size=4))
def test_flattening_and_back_keeps_the_names(sizes: list[int]) -> None:
    shape, names = tuple(sizes), tuple("abcd")[: len(sizes)]
    flat = (math.prod(shape),)
    joined = named("flatten", [(names, shape)], flat)
    assert joined == ("*".join(names),)
    assert named("view", [(joined, flat)], shape) == names


def test_heads_and_back() -> None:
    stream: Names = ("batch", "position", "feature")
    heads = named("unflatten", [(stream, (2, 5, 12))], (2, 5, 3, 4))
    assert heads == ("batch", "position", "feature/0", "feature/1")
    turned = named("transpose", [(heads, (2, 5, 3, 4))], (2, 3, 5, 4), dim0=1, dim1=2)
    assert turned == ("batch", "feature/0", "position", "feature/1")
    assert named("flatten", [(heads, (2, 5, 3, 4))], (2, 5, 12)) == stream


def test_scores_name_both_positions() -> None:
    query: Names = ("batch", "position", "feature")
    key: Names = ("batch", "feature", "position")
    scores = named("bmm", [(query, (2, 5, 4)), (key, (2, 4, 5))], (2, 5, 5))
    assert scores == ("batch", "position", "position_2")


def test_broadcasting_takes_the_longer_operand() -> None:
    bias = named("add", [(("feature",), (4,)), (("batch", "feature"), (3, 4))], (3, 4))
    assert bias == ("batch", "feature")


def test_a_product_with_a_vector_has_one_dim_less() -> None:
    x, vector = Spec("float32", (8, 5, 3)), Spec("float32", (3,))
    call = Call(kind="linear", inputs=(x, vector), outputs=(Spec("float32", (8, 5)),))
    assert output_dims(call, (("batch", "position", "feature"), ("in",))) == (("d0", "d1"),)
