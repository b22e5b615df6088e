"""Every claimed split is true: pieces run by PyTorch make the whole, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Call
from meshwright.graph.pieces import bounds, pieces, splits_of
from support.operator_cases import CASES, Case, case, real
from support.torch_pieces import assembled, cut, run

TOLERANCE = 1e-9

Given = torch.Tensor | None

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def parts_that_fit(extent: int) -> list[int]:
    """Of 2, 3 and 4 parts those of which only the last is shorter."""
    fitting = []
    for parts in (2, 3, 4):
        try:
            bounds(extent, parts)
        except InputError:
            continue
        fitting.append(parts)
    return fitting


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal up to rounding, relative to the largest element; infinities must agree."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    finite = torch.isfinite(other)
    if not torch.equal(one[~finite], other[~finite]):
        return False
    scale = other[finite].abs().max() if finite.any() else torch.tensor(1.0)
    return bool(((one[finite] - other[finite]).abs() <= TOLERANCE * (scale + 1e-30)).all())


def gradients(
    outputs: tuple[torch.Tensor, ...], tensors: list[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Of a fixed random weighting of all outputs, by every input that can have one."""
    generator = torch.Generator().manual_seed(7)
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    weighted = [o for o in outputs if o.requires_grad]
    if not weighted or not wanted:
        return []
    seeds = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in weighted]
    return list(torch.autograd.grad(weighted, wanted, seeds, allow_unused=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_splits_cut_dims_of_tensors_that_are_there(case: Case) -> None:
    """Else `check` takes a call for a mistake: a norm without weights that has statistics."""
    inputs = case.call.inputs
    for split in splits_of(case.call):
        for dim, spec in zip(split.inputs, inputs, strict=False):
            assert dim is None or (spec is not None and dim < len(spec.shape)), split


@pytest.mark.parametrize("case", CASES, ids=str)
def test_shapes_and_dtypes_are_those_of_torch(case: Case) -> None:
    outputs = run(case.call, case.tensors())
    seen = [(str(m.dtype).removeprefix("torch."), tuple(m.shape)) for m in outputs]
    expected = [(spec.dtype, spec.shape) for spec in case.call.outputs]
    assert seen == expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_make_the_whole(case: Case) -> None:
    call, tensors = case.call, case.tensors()
    expected = run(call, tensors)
    backward = gradients(expected, tensors) if family_of(call).differentiable else []
    for split in splits_of(call):
        if split.statistics or split.exchanged:
            continue  # see test_batch_norm_over_a_cut_batch, and tests/run/test_experts.py
        for parts in parts_that_fit(split.extent):
            joined = assembled(call, split, parts, tensors)
            where = f"{case} cut {parts} ways along {split.name}"
            assert all(map(close, joined, expected)), where
            if not family_of(call).differentiable:
                continue
            for one, other in zip(gradients(joined, tensors), backward, strict=True):
                nothing = one is None or not one.any(), other is None or not other.any()
                assert nothing == (True, True) or (
                    one is not None and other is not None and close(one, other)
                ), f"gradient of {where}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_are_calls_of_the_family(case: Case) -> None:
    """The shapes of a piece follow from its own inputs, so pieces can be cut again."""
    call = case.call
    for split in splits_of(call):
        for parts in parts_that_fit(split.extent):
            for piece in pieces(call, split, parts):
                lacking = any(
                    piece_spec is None and whole_spec is not None
                    for piece_spec, whole_spec in zip(piece.call.inputs, call.inputs, strict=True)
                )
                if not lacking:
                    assert family_of(call).outputs(piece.call) == piece.call.outputs


SHAPE_LIKE = {
    "view", "_unsafe_view", "reshape", "unflatten", "expand", "repeat", "full", "zeros", "ones",
    "new_full", "new_zeros", "new_ones", "arange",
}  # fmt: skip
"""Kinds whose attributes hold the shape: a naive cut does not even run."""


def naive_cuts(call: Call) -> Iterator[tuple[tuple[int | None, ...], int | None, int]]:
    """Every way to cut inputs in two without knowing the operator: dims, output dim, extent.

    Inputs are cut along a dim as long as the output's, or not at all, and the outputs joined; or
    along dims that are equally long, and the outputs added.
    """
    shapes = [() if spec is None else spec.shape for spec in call.inputs]
    out = call.outputs[0].shape
    ends: list[tuple[int | None, int]] = [*enumerate(out)]
    ends += [(None, size) for size in sorted({n for shape in shapes for n in shape})]
    for end, extent in ends:
        if extent < 2:
            continue
        choices = [
            [None, *(dim for dim, size in enumerate(shape) if size == extent)] for shape in shapes
        ]
        for dims in product(*choices):
            if any(dim is not None for dim in dims):
                yield dims, end, extent


def naive_result(
    call: Call, dims: tuple[int | None, ...], end: int | None, extent: int, tensors: list[Given]
) -> torch.Tensor | None:
    """The first output of a naive cut, None if the pieces do not run."""
    outputs = []
    for first, last in bounds(extent, 2):
        operands = [
            t if t is None or dim is None else t.narrow(dim, first, last - first)
            for t, dim in zip(tensors, dims, strict=True)
        ]
        try:
            outputs.append(run(call, operands)[0])
        except (RuntimeError, IndexError, ValueError):
            return None
    if end is None:
        return torch.stack(outputs).sum(0) if outputs[0].shape == outputs[1].shape else None
    try:
        return torch.cat(outputs, end)
    except (RuntimeError, IndexError):
        return None


FEW_OPERANDS = [
    c
    for c in CASES
    if len(c.operands) < 5
    and c.kind not in SHAPE_LIKE
    # Gradients alone forbid to cut these.
    and not c.call.get("scale_grad_by_freq")
]


@pytest.mark.parametrize("case", FEW_OPERANDS, ids=str)
def test_what_is_not_claimed_is_false(case: Case) -> None:
    """No naive cut that a family does not claim gives the whole: the other dims must stay whole."""
    call, tensors = case.call, case.tensors()
    claimed = {(split.inputs, split.outputs[0]) for split in splits_of(call)}
    (expected, *_) = run(call, tensors)
    for dims, end, extent in naive_cuts(call):
        if (dims, end) in claimed:
            continue
        joined = naive_result(call, dims, end, extent, tensors)
        assert joined is None or not close(joined, expected), (
            f"{case}: cutting inputs along {dims} and joining along {end} is right, but not claimed"
        )


LSTM = next(c for c in CASES if c.kind == "lstm")
BATCH_NORM = next(c for c in CASES if c.kind == "batch_norm")


def test_the_grouped_product_of_the_tests_is_that_of_the_capture() -> None:
    (grouped,) = (c for c in CASES if c.kind == "_grouped_mm")
    tensors = grouped.tensors()
    (expected,) = run_operator(grouped.kind, tensors, ())
    assert close(run(grouped.call, tensors)[0], expected)


def test_steps_of_a_sequence_stay_whole() -> None:
    assert [split.name for split in splits_of(LSTM.call)] == ["sample"]
    x, *rest = LSTM.tensors()
    assert x is not None
    halves = [run(LSTM.call, [steps, *rest])[0] for steps in (x[:3], x[3:])]
    assert not close(torch.cat(halves), run(LSTM.call, [x, *rest])[0])


def test_batch_norm_over_a_cut_batch_needs_the_statistics_of_all() -> None:
    tensors = BATCH_NORM.tensors()
    (expected,) = run(BATCH_NORM.call, tensors)
    for split in splits_of(BATCH_NORM.call):
        (joined,) = assembled(BATCH_NORM.call, split, 2, tensors)
        assert bool(split.statistics) == (split.name != "channel")
        assert close(joined, expected) == (not split.statistics)


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("name", ["sample", "height", "width"])
def test_batch_norm_over_a_cut_batch(name: str, parts: int) -> None:
    """Parts sum 2 numbers for each channel, then finish alone: forward and backward are exact."""
    call, tensors = BATCH_NORM.call, BATCH_NORM.tensors()
    (split,) = (s for s in splits_of(call) if s.name == name)
    x, weight, bias = tensors[0], tensors[1], tensors[2]
    assert x is not None
    assert weight is not None
    assert bias is not None
    boxes = [piece.inputs[0] for piece in pieces(call, split, parts)]
    parts_of_x = [cut(x, box) for box in boxes if box is not None]
    count = x.numel() // x.shape[1]
    sums = [torch.stack([p.sum((0, 2, 3)), (p**2).sum((0, 2, 3))]) for p in parts_of_x]
    assert all(s.numel() == split.statistics for s in sums)
    mean, square = torch.stack(sums).sum(0) / count
    scale = weight / (square - mean**2 + 1e-5).sqrt()

    def channelwise(t: torch.Tensor) -> torch.Tensor:
        return t[:, None, None]

    normalized = torch.cat(
        [(p - channelwise(mean)) * channelwise(scale) + channelwise(bias) for p in parts_of_x],
        split.outputs[0] or 0,
    )
    expected = run(call, tensors)
    assert close(normalized, expected[0])
    learnt = [x, weight, bias]
    for one, other in zip(
        gradients((normalized,), [*learnt]), gradients(expected, [*learnt]), strict=True
    ):
        assert one is not None
        assert other is not None
        assert close(one, other)


def test_inner_dims_of_a_view_stay_whole() -> None:
    folded = case("view", real(12, 5), size=(4, 3, 5))
    cuts = [(s.inputs[0], s.outputs[0], s.extent) for s in splits_of(folded.call)]
    assert cuts == [(0, 0, 4), (1, 2, 5)]
    (x,) = folded.tensors()
    assert x is not None
    rows = torch.cat([x[:8].reshape(4, 2, 5), x[8:].reshape(4, 1, 5)], 1)
    assert not close(rows, x.reshape(4, 3, 5))
    flat = torch.cat([x.reshape(4, 3, 5)[:, :2].flatten(0, 1), x.reshape(4, 3, 5)[:, 2]])
    assert not close(flat, x)


def cut_in_turn(call: Call, names: list[str], tensors: list[Given]) -> tuple[torch.Tensor, ...]:
    """The outputs of a call whose pieces are cut in two again, once for each name."""
    split = next((s for s in splits_of(call) if names and s.name == names[0]), None)
    if split is None:
        return run(call, tensors) if len(names) < 2 else cut_in_turn(call, names[1:], tensors)
    outputs = []
    for piece in pieces(call, split, 2):
        operands = [
            None if t is None or box is None else cut(t, box)
            for t, box in zip(tensors, piece.inputs, strict=True)
        ]
        outputs.append(cut_in_turn(piece.call, names[1:], operands))
    return tuple(
        torch.stack(parts).sum(0, dtype=parts[0].dtype) if dim is None else torch.cat(parts, dim)
        for dim, parts in zip(split.outputs, zip(*outputs, strict=True), strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_splits_compose(case: Case) -> None:
    """Any two splits, or one twice, cut in turn, give the whole: layouts are made of this."""
    call, tensors = case.call, case.tensors()
    expected = run(call, tensors)
    names = [s.name for s in splits_of(call) if not s.statistics and not s.exchanged]
    assert len(set(names)) == len(names), "a name stands for one split"
    for pair in product(names, repeat=2):
        joined = cut_in_turn(call, [*pair], tensors)
        assert all(map(close, joined, expected)), f"{case} cut along {' and '.join(pair)}"


def test_three_splits_compose() -> None:
    whole = case("conv2d", real(2, 4, 9, 8), real(6, 4, 3, 3), real(6), padding=(1, 1))
    tensors = whole.tensors()
    for names in (["height", "width", "channel"], ["width", "input-channel", "height"]):
        (joined,) = cut_in_turn(whole.call, names, tensors)
        assert close(joined, run(whole.call, tensors)[0])
