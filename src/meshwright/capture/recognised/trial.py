"""Differential testing of a user's kernel against its definition in index notation. Enters: a call
that carries its definition. Leaves: nothing, or why it could not be tried; what is refuted is an
`InputError`.

On small random tensors in float64, the kernel is run whole and in the pieces of every split that
the line claims: values and gradients have to agree. Where all functions of the line are known, its
value is compared too. A kernel that cannot run so is tried on the shapes and in the dtype that the
model has; one that cannot run here at all (a GPU's) is not tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.execution.shard_kernels import run_call
from meshwright.graph.counts import is_differentiable
from meshwright.graph.families import family_of
from meshwright.graph.family import DEFINITION, Split, integer, replaced
from meshwright.graph.notation import Apply, Definition, Window, parse_definition, parts
from meshwright.graph.operator_graph import Call, Spec
from meshwright.graph.pieces import Box, part_size, pieces, splits_of
from meshwright.rewrite.language.compute import Array, compute

PARTS = (2, 3)
MOST_ELEMENTS = 1_000_000
SHORT = (4, 6, 5, 7, 8)
"""Sizes of the labels of a small call, in turn; different ones tell dims apart."""

FUNCTIONS: Mapping[str, Callable[..., Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "inverse": lambda x: 1 / x,
    "equal": lambda x, y: np.asarray(x == y, dtype=np.float64),
    "until": lambda end, row: np.asarray(end <= row, dtype=np.float64),
}
"""Functions that mean one thing to everybody; gelu has two forms, so it is not compared."""


def tried(call: Call, *, learns: bool) -> str | None:
    """Why a call could not be tried, None if it was; `learns` says that gradients flow through it.

    >>> x = Spec("float32", (8, 6))
    >>> line = "twice(x)[i..] = 3 * x[i..]"
    >>> call = Call(kind="exp", inputs=(x,), outputs=(x,), attributes=(("definition", line),))
    >>> tried(call, learns=True)
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: the kernel of exp does not compute 'twice(x)[i..] = \
3 * x[i..]': element [0, 0] is 0.0992204 by the kernel and -6.93124 by the line; correct one of \
them.
    """
    why = ""
    for trial in (_small(call), call):
        if sum(spec.elements for spec in (*trial.inputs, *trial.outputs) if spec) > MOST_ELEMENTS:
            continue
        try:
            for positive in (False, True):
                _try(trial, learns, positive)
        except InputError:
            raise
        except Exception as error:  # whatever a foreign kernel raises
            lines = str(error).strip().splitlines()
            why = why or f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
        else:
            return None
    return why or "its tensors are large"


def _small(call: Call) -> Call:
    """The call on short tensors in float64, of which no dim is longer than it was."""
    definition = parse_definition(str(call[DEFINITION])).at(
        tuple(len(spec.shape) for spec in call.inputs if spec is not None)
    )
    held = {
        index.place
        for read in definition.reads
        for index in read.indices
        if isinstance(index, Window)
    }
    sizes: dict[str, int] = {}
    inputs = []
    for operand, spec in zip(definition.operands, call.inputs, strict=True):
        assert spec is not None
        shape = []
        for index, size in zip(definition.indices(operand), spec.shape, strict=True):
            if isinstance(index, Window) or index.name in held:
                shape.append(size)
            else:
                short = SHORT[len(sizes) % len(SHORT)]
                shape.append(sizes.setdefault(index.name, min(size, short)))
        inputs.append(Spec(_widened(spec.dtype), tuple(shape)))
    seen = tuple(Spec(_widened(spec.dtype), spec.shape) for spec in call.outputs)
    lengths = {name: min(integer(call, name), SHORT[0]) for _, name in definition.lengths}
    small = msgspec.structs.replace(
        call,
        inputs=tuple(inputs),
        outputs=seen,
        attributes=replaced(call.attributes, **lengths),
    )
    return msgspec.structs.replace(small, outputs=family_of(small).outputs(small))


def _widened(dtype: str) -> str:
    return "float64" if is_differentiable(dtype) and not dtype.startswith("complex") else dtype


def _try(call: Call, learns: bool, positive: bool) -> None:
    operands = _drawn(call, positive)
    (whole,) = run_call(call, operands)
    _compare_with_line(call, operands, whole.detach())
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(whole.shape, generator=generator).to(whole.dtype)
    expected = _gradients(call, operands, (whole * weights).sum()) if learns else []
    for split in splits_of(call):
        for ways in PARTS:
            if _makes(split, ways):
                _compare_pieces(call, split, ways, operands, (whole, weights, expected))


def _drawn(call: Call, positive: bool) -> tuple[Tensor, ...]:
    """Random operands: normal, and once more positive, for roots and logarithms."""
    generator = torch.Generator().manual_seed(0)
    operands = []
    for spec in call.inputs:
        assert spec is not None
        dtype: torch.dtype = getattr(torch, spec.dtype)
        if dtype.is_floating_point:
            values = torch.randn(spec.shape, generator=generator, dtype=torch.float64)
            operands.append((values.abs() + 0.1 if positive else values).to(dtype).requires_grad_())
        else:
            operands.append(torch.randint(0, 2, spec.shape, generator=generator).to(dtype))
    return tuple(operands)


def _gradients(call: Call, operands: Sequence[Tensor], total: Tensor) -> list[Tensor | None]:
    """By every operand that can have one; a kernel without a formula is refused."""
    asked = [operand for operand in operands if operand.requires_grad]
    try:
        return list(torch.autograd.grad(total, asked, allow_unused=True))
    except Exception as error:  # whatever a foreign kernel raises
        raise InputError(
            f"gradients have to flow through {call.kind}, whose kernel has none "
            f"({str(error).strip().splitlines()[0]})",
            "give it a formula (torch.library.register_autograd), or a kernel that has one",
        ) from None


def _makes(split: Split, ways: int) -> bool:
    try:
        part_size(split.extent, ways)
    except InputError:
        return False
    return True


def _compare_pieces(
    call: Call,
    split: Split,
    ways: int,
    operands: Sequence[Tensor],
    expected: tuple[Tensor, Tensor, list[Tensor | None]],
) -> None:
    """Run a split's pieces, and refuse it if values or gradients are not those of the whole."""
    whole, weights, gradients = expected
    joined, total = torch.zeros_like(whole), torch.zeros((), dtype=whole.dtype)
    for piece in pieces(call, split, ways):
        piece_operands = tuple(_cut(t, box) for t, box in zip(operands, piece.inputs, strict=True))
        (part,) = run_call(piece.call, piece_operands)
        place = _slices(piece.outputs[0])
        joined[place] += part.detach()
        total = total + (part * weights[place]).sum()
    piece_gradients = _gradients(call, operands, total) if gradients else []
    for one, other in zip((joined, *piece_gradients), (whole, *gradients), strict=True):
        if not _close(one, other):
            raise InputError(
                f"cut {ways} ways along {split.name}, the kernel of {call.kind} does not give what "
                f"it gives whole, as {str(call[DEFINITION])!r} says it does",
                "correct the line or the kernel",
            )


def _cut(operand: Tensor, box: Box | None) -> Tensor:
    assert box is not None
    return operand[_slices(box)].contiguous()


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(first, last) for first, last in box)


def _close(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other or not any(t.any() for t in (one, other) if t is not None)
    tolerance = 1e-9 if other.dtype == torch.float64 else 1e-2
    return one.shape == other.shape and torch.allclose(
        one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def _compare_with_line(call: Call, operands: Sequence[Tensor], whole: Tensor) -> None:
    """Refuse a line whose value is another, where all its functions are known."""
    definition: Definition = parse_definition(str(call[DEFINITION]))
    used = {part.function for part in parts(definition.body) if isinstance(part, Apply)}
    settings = {name: call[name] for name in definition.parameters}
    numbers = {
        name: str(value)
        for name, value in settings.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not used <= FUNCTIONS.keys() or numbers.keys() != settings.keys():
        return
    arrays = [t.detach().double().numpy() for t in operands]
    at = definition.at(tuple(array.ndim for array in arrays))
    expected = torch.from_numpy(np.array(compute(at, numbers, arrays, {}, FUNCTIONS)))
    if expected.shape == whole.shape and _close(expected.to(whole.dtype), whole):
        return
    place = _worst(expected, whole) if expected.shape == whole.shape else ()
    raise InputError(
        f"the kernel of {call.kind} does not compute {definition.line!r}: element {list(place)} is "
        f"{float(whole[place]):.6g} by the kernel and {float(expected[place]):.6g} by the line"
        if expected.shape == whole.shape
        else f"the kernel of {call.kind} gives {list(whole.shape)}, and {definition.line!r} "
        f"{list(expected.shape)}",
        "correct one of them",
    )


def _worst(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """Where two tensors differ most."""
    flat = int((one - other.double()).abs().nan_to_num(math.inf).argmax())
    return tuple(int(i) for i in np.unravel_index(flat, one.shape))
