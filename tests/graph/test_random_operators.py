"""Splits and shapes of operators drawn at random, where the corner cases are in the numbers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.family import Halo
from meshwright.graph.pieces import bounds, splits_of
from support.operator_cases import Case, case, real
from support.torch_pieces import assembled, run

SMALL = st.integers(1, 3)


def agrees(drawn: Case) -> None:
    """The shape is that of PyTorch, and every split in two and three gives the whole."""
    call, tensors = drawn.call, drawn.tensors()
    (expected,) = run(call, tensors)
    assert call.outputs[0].shape == tuple(expected.shape)
    for split in splits_of(call):
        for parts in {2, min(3, split.extent)}:
            if len(range(0, split.extent, -(-split.extent // parts))) == parts:
                (joined,) = assembled(call, split, parts, tensors)
                torch.testing.assert_close(joined, expected, rtol=1e-9, atol=1e-9)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    groups, kernel = draw(SMALL), draw(st.tuples(SMALL, SMALL))
    channels, filters = groups * draw(SMALL), groups * draw(SMALL)
    image = draw(st.tuples(st.integers(7, 11), st.integers(7, 11)))
    bias = (real(filters),) if draw(st.booleans()) else ()
    return case(
        "conv2d",
        real(draw(SMALL), channels, *image),
        real(filters, channels // groups, *kernel),
        *bias,
        stride=draw(st.tuples(SMALL, SMALL)),
        padding=draw(st.tuples(SMALL, SMALL)),
        dilation=draw(st.tuples(SMALL, SMALL)),
        groups=groups,
    )


@st.composite
def poolings(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(["max_pool1d", "avg_pool1d"]))
    kernel = draw(st.integers(1, 4))
    more = {"dilation": (draw(SMALL),)} if kind == "max_pool1d" else {}
    if kind == "avg_pool1d":
        more = {"count_include_pad": draw(st.booleans())}  # type: ignore[dict-item]
    return case(
        kind,
        real(2, draw(SMALL), draw(st.integers(10, 16))),
        kernel_size=(kernel,),
        stride=(draw(SMALL),),
        padding=(draw(st.integers(0, kernel // 2)),),
        ceil_mode=draw(st.booleans()),
        **more,
    )


@st.composite
def products(draw: st.DrawFn) -> Case:
    batch = draw(st.lists(SMALL, max_size=2))
    m, k, n = draw(st.tuples(SMALL, SMALL, SMALL))
    left = [size if draw(st.booleans()) else 1 for size in batch]
    right = batch[draw(st.integers(0, len(batch))) :]
    return case("matmul", real(*left, m, k), real(*right, k, n))


@st.composite
def views(draw: st.DrawFn) -> Case:
    factors = draw(st.lists(st.sampled_from((0, 1, 1, 2, 3, 4)), min_size=1, max_size=5))

    def grouped() -> tuple[int, ...]:
        shape = [1]
        for factor in factors:
            if draw(st.booleans()):
                shape.append(factor)
            else:
                shape[-1] *= factor
        return tuple(shape)

    wanted = list(grouped())
    if 0 not in wanted and draw(st.booleans()):
        wanted[draw(st.integers(0, len(wanted) - 1))] = -1
    return case("view", real(*grouped()), size=tuple(wanted))


@given(convolutions())
def test_convolutions(drawn: Case) -> None:
    agrees(drawn)


@given(poolings())
def test_poolings(drawn: Case) -> None:
    agrees(drawn)


@given(products())
def test_products(drawn: Case) -> None:
    agrees(drawn)


@given(views())
def test_views(drawn: Case) -> None:
    agrees(drawn)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.data())
def test_halo_reads_what_the_windows_touch(
    kernel: int, stride: int, dilation: int, before: int, data: st.DataObject
) -> None:
    """Against a list of every element that every window touches."""
    halo = Halo(kernel=kernel, stride=stride, dilation=dilation, before=before)
    size = data.draw(st.integers((kernel - 1) * dilation + 1, 20))
    start = data.draw(st.integers(0, 3))
    stop = data.draw(st.integers(start + 1, start + 3))
    touched = [
        window * stride - before + tap * dilation
        for window in range(start, stop)
        for tap in range(kernel)
    ]
    first, last, padding_before, padding_after = halo.reads(start, stop, size)
    inside = [element for element in touched if 0 <= element < size]
    assert 0 <= first <= last <= size
    assert all(first <= element < last for element in inside)
    assert not inside or first - padding_before == min(touched)
    assert padding_before + last - first + padding_after == max(touched) - min(touched) + 1


@given(st.integers(1, 40), st.integers(1, 8))
def test_bounds_are_even_but_for_the_last(extent: int, parts: int) -> None:
    size = -(-extent // parts)
    if size * (parts - 1) >= extent:
        return
    spans = bounds(extent, parts)
    sizes = [stop - start for start, stop in spans]
    assert len(spans) == parts
    assert sum(sizes) == extent
    assert set(sizes[:-1]) <= {size}
    assert 0 < sizes[-1] <= size
