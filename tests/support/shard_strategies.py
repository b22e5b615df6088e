"""Hypothesis strategies for tensors in pieces: types, shards, and operands that an operator takes.

Values are small whole numbers, so that sums and products are exact in any order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from meshwright.graph.notation import Definition, Index, Label, Window
from meshwright.rewrite.language.compute import Array
from meshwright.rewrite.language.shards import Shards, cut, run
from meshwright.rewrite.language.terms import AXES, Attribute
from meshwright.rewrite.language.types import FRONT, Type, TypedAxis, replaced


def numbers(shape: tuple[int, ...], low: int = -3, high: int = 3) -> st.SearchStrategy[Array]:
    """Arrays of small whole numbers."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).integers(low, high + 1, shape).astype(float)
    )


@st.composite
def axes(draw: st.DrawFn, most: int = 3) -> TypedAxis:
    """An axis in equal pieces."""
    degree = draw(st.integers(1, most))
    return TypedAxis(degree * draw(st.integers(1, 3)), degree)


@st.composite
def types(draw: st.DrawFn, dims: int = 3) -> Type:
    """Tensors with steps, copies, sums and up to this many dims, none of which overlaps."""
    steps = TypedAxis(draw(st.integers(1, 3)))
    count = draw(st.integers(1, dims))
    return (steps, draw(axes(2)), draw(axes(2)), *(draw(axes()) for _ in range(count)))


@st.composite
def shards(draw: st.DrawFn, dims: int = 3) -> Shards:
    """Tensors in pieces, every copy with a value of its own."""
    type_ = draw(types(dims))
    return cut(type_, draw(numbers(tuple(axis.size for axis in type_))))


class Case(NamedTuple):
    """An operator with operands that fit, cut along some of its labels."""

    definition: Definition
    """For the ranks of the operands."""
    attributes: tuple[Attribute, ...]
    operands: tuple[Shards, ...]
    wholes: tuple[Array, ...]
    """Each operand with steps, extra copies and pending sums in front, 1 for those it lacks."""
    degrees: Mapping[str, int]
    front: tuple[TypedAxis, TypedAxis, TypedAxis]
    """Steps, extra copies and pending sums of the result."""


@st.composite
def cases(draw: st.DrawFn, defined: Definition, *, for_kernels: bool = False) -> Case:
    """Random ranks, sizes and degrees of several labels at once, extra copies, pending sums.

    Those for kernels have one dim of bags, name only rows that a table has, give every expert its
    group and every row its expert; and every copy has a value of its own, so that it matters which
    one a task reads.
    """
    bags = for_kernels and defined.name == "embedding_bag"
    definition = draw(ranked(defined, st.just(1) if bags else st.integers(0, 2)))
    degrees = dict.fromkeys(definition.cuts, 1)
    for label in draw(st.permutations(definition.cuts)):
        room = 8 // math.prod(degrees.values())
        degrees[label] = draw(st.sampled_from([d for d in (2, 3, 1) if d <= max(room, 1)]))
    windows = {i.output: i for r in definition.reads for i in r.indices if isinstance(i, Window)}
    values = draw(_settings(definition, windows, degrees))
    sizes = draw(_sizes(definition, degrees, windows, values))
    if for_kernels and defined.name == "experts":
        sizes["f"] = sizes["g"]
    few = st.sampled_from((TypedAxis(1), TypedAxis(2), TypedAxis(2, 2), TypedAxis(4, 2)))
    front = (TypedAxis(draw(st.integers(1, 2))), draw(few), draw(few))
    pairs = [draw(_operand(definition, name, sizes, degrees, values, front, for_kernels))
            for name in definition.operands]  # fmt: skip
    attributes = tuple(values[name] for name in definition.parameters)
    return Case(
        definition,
        attributes,
        tuple(operand for operand, _ in pairs),
        tuple(whole for _, whole in pairs),
        degrees,
        front,
    )


@st.composite
def ranked(draw: st.DrawFn, defined: Definition, many_dims: st.SearchStrategy[int]) -> Definition:
    """An operator for operands of some rank: `i..` stands for this many dims."""
    many = draw(many_dims)
    return defined.at(
        tuple(
            sum(many if isinstance(i, Label) and i.many else 1 for i in defined.indices(operand))
            for operand in defined.operands
        )
    )


@st.composite
def _settings(
    draw: st.DrawFn,
    definition: Definition,
    windows: Mapping[str, Window],
    degrees: Mapping[str, int],
) -> dict[str, int]:
    """Attributes; windows get the sizes of their places too."""
    values = {name: draw(st.integers(1, 2)) for name in definition.parameters}
    for label, window in windows.items():
        padding = values[window.padding] = draw(st.integers(0, 1))
        # Outputs of a dim that is cut are its rows by the stride: 2a < place <= 2a + s.
        low, high = 2 * padding + 1, 2 * padding + values[window.stride]
        values[window.place] = draw(st.integers(*((low, high) if degrees[label] > 1 else (1, 3))))
    return values


@st.composite
def _sizes(
    draw: st.DrawFn,
    definition: Definition,
    degrees: Mapping[str, int],
    windows: Mapping[str, Window],
    values: Mapping[str, int],
) -> dict[str, int]:
    """The size of every label; a window's output stands for the rows it slides over."""
    labels = {i.name for r in definition.reads for i in r.indices if isinstance(i, Label)}
    sizes = {}
    for label in sorted({*labels, *degrees}):
        if label in windows:
            window = windows[label]
            stride, padding, place = (
                values[n] for n in (window.stride, window.padding, window.place)
            )
            if degrees[label] > 1:
                piece = max(-(-max(padding, place - stride - padding) // stride), 1)
                sizes[label] = degrees[label] * stride * (piece + draw(st.integers(0, 1)))
            else:
                sizes[label] = max(place - 2 * padding, 1) + draw(st.integers(0, 3))
        elif label in values:
            sizes[label] = values[label]
        else:
            sizes[label] = degrees.get(label, 1) * draw(st.integers(1, 2))
    return sizes


def _label(index: Index) -> str:
    return index.name if isinstance(index, Label) else index.output


@st.composite
def _operand(
    draw: st.DrawFn,
    definition: Definition,
    name: str,
    sizes: Mapping[str, int],
    degrees: Mapping[str, int],
    values: Mapping[str, int],
    front: tuple[TypedAxis, TypedAxis, TypedAxis],
    for_kernels: bool,
) -> tuple[Shards, Array]:
    """An operand in pieces with a copy for each piece that it does not see, and its whole."""
    indices = definition.indices(name)
    steps, copies, sums = front
    extra = copies if name == definition.operands[0] or draw(st.booleans()) else TypedAxis(1)
    pending = sums if name == definition.operands[0] or draw(st.booleans()) else TypedAxis(1)
    labels = [_label(index) for index in indices]
    needed = math.prod(d for label, d in degrees.items() if label not in labels)
    needed *= sums.degree if sums.size > 1 and pending.size == 1 else 1
    type_ = (
        steps,
        TypedAxis(needed * extra.size, needed * extra.degree),
        pending,
        *(TypedAxis(sizes[label], degrees.get(label, 1)) for label in labels),
    )
    repeats = 1 if for_kernels else needed
    shape = [axis.size for axis in type_]
    shape[1] //= repeats
    drawn = draw(_values(definition, name, tuple(shape), sizes, for_kernels))
    operand = cut(type_, np.concatenate([drawn] * repeats, axis=1))
    for dim, index in enumerate(indices):
        if isinstance(index, Window) and degrees[index.output] > 1:
            stride, padding = values[index.stride], values[index.padding]
            after = max(0, values[index.place] - stride - padding)
            (operand,) = run("halo", (dim, padding, after), (operand,))
    return operand, drawn[:, : extra.size]


def _values(
    definition: Definition,
    name: str,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    for_kernels: bool,
) -> st.SearchStrategy[Array]:
    match definition.name, name:
        case "embedding" | "embedding_bag", "t":
            return numbers(shape, 0, sizes["v"] - for_kernels)
        case "experts", "e":
            ends = numbers(shape, 0, sizes["t"]).map(lambda drawn: np.sort(drawn, axis=-1))
            return ends.map(lambda drawn: _ending(drawn, sizes["t"])) if for_kernels else ends
        case _:
            return numbers(shape)


def _ending(ends: Array, rows: int) -> Array:
    """The last group ends with the last row."""
    return np.concatenate([ends[..., :-1], np.full_like(ends[..., -1:], rows)], axis=-1)


@st.composite
def moves(draw: st.DrawFn, operator: str) -> tuple[tuple[Attribute, ...], Shards]:
    """Attributes of a parallel operator and a tensor that it takes with them."""
    type_ = draw(types())
    first = {"replicate": 0, "reduce": 0, "partition": 1, "combine": 1}.get(operator, FRONT)
    number = draw(st.integers(first, len(type_) - 1))
    name: Attribute = AXES[number] if number < FRONT else number - FRONT
    axis, degree = type_[number], draw(st.integers(2, 3))
    attributes: tuple[Attribute, ...] = (name, degree)
    match operator:
        case "partition":
            axis = TypedAxis(axis.size * degree, axis.degree)
        case "combine":
            axis = TypedAxis(axis.size * degree, axis.degree * degree)
        case "reduce":
            whole = name == "steps" or draw(st.booleans())
            axis = TypedAxis(axis.size * degree, 1 if whole else axis.degree * degree)
        case "pipeline":
            axis = TypedAxis(axis.size * degree)
        case "batch":
            axis, type_ = (
                TypedAxis(axis.size),
                replaced(type_, 0, TypedAxis(type_[0].size * degree)),
            )
        case "halo":
            rows = st.integers(0, axis.size // axis.degree)
            attributes = (name, draw(rows), draw(rows))
        case _:
            pass
    type_ = replaced(type_, number, axis)
    return attributes, cut(type_, draw(numbers(tuple(typed_axis.size for typed_axis in type_))))
