"""The cuts that are read off a definition are right, for every operator that comes with us."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.notation import Definition, Label, MisfitError
from meshwright.rewrite.language.compute import Array, compute
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import Shards, cut, run
from meshwright.rewrite.language.types import FRONT, TypedAxis, rank
from support.shard_strategies import Case, cases, ranked

CUTS = {
    "relu": ("i",),
    "gelu": ("i",),
    "silu": ("i",),
    "tanh": ("i",),
    "sigmoid": ("i",),
    "exp": ("i",),
    "neg": ("i",),
    "add": ("i",),
    "sub": ("i",),
    "mul": ("i",),
    "bias": ("i", "o"),
    "scale": ("i", "o"),
    "linear": ("i", "o", "k"),
    "linear_bias": ("i", "o"),
    "linear_relu": ("i", "o"),
    "matmul": ("i", "m", "n", "k"),
    "conv2d": ("n", "o", "h", "v", "c"),
    "conv2d_bias": ("n", "o", "h", "v"),
    "embedding": ("i", "j", "v"),
    "embedding_bag": ("i", "j", "b", "v"),
    "experts": ("t", "n", "g", "k"),
    "sum_last": ("i", "k"),
    "sum_first": ("i", "k"),
    "sum_rows": ("i", "j", "k"),
    "softmax": ("i",),
    "rms_norm": ("i",),
    "layer_norm": ("i",),
    "attention": ("i", "m", "e"),
}
"""What a person reads off the lines: bias, relu and softmax keep sums whole."""

EXACT = {
    "relu", "neg", "add", "sub", "mul", "bias", "scale", "linear", "linear_bias", "linear_relu",
    "matmul", "conv2d", "conv2d_bias", "embedding", "embedding_bag", "experts", "sum_last",
    "sum_first", "sum_rows",
}  # fmt: skip
"""Operators that make whole numbers of whole numbers."""


def test_cuts_of_every_operator() -> None:
    assert {name: definition.cuts for name, definition in DEFINITIONS.items()} == CUTS


def expected(case: Case) -> Array:
    """The definition on whole arrays, for each step, copy and pending sum."""
    settings = dict(zip(case.definition.parameters, case.attributes, strict=True))
    values = [
        compute(
            case.definition,
            settings,
            [w[tuple(min(i, n - 1) for i, n in zip(at, w.shape, strict=False))]
             for w in case.wholes],
            {},
        )
        for at in itertools.product(*(range(axis.size) for axis in case.front))
    ]  # fmt: skip
    return np.stack(values).reshape(*(axis.size for axis in case.front), *values[0].shape)


def put_together(shards: Shards, parts: int) -> Shards:
    """Sums of the parts taken, dims in one piece."""
    if parts > 1:
        (shards,) = run("reduce", (parts,), (shards,))
    for dim in range(rank(shards.type)):
        degree = shards.type[FRONT + dim].degree
        if degree > 1:
            (shards,) = run("combine", (dim, degree), (shards,))
    return shards


@pytest.mark.parametrize("name", DEFINITIONS)
@given(st.data())
def test_pieces_make_the_whole(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(DEFINITIONS[name]))
    (shards,) = run(name, case.attributes, case.operands)
    cut_dims = tuple(case.degrees.get(label.name, 1) for label in case.definition.output)
    assert tuple(axis.degree for axis in shards.type[FRONT:]) == cut_dims
    parts = math.prod(case.degrees.get(label, 1) for label in case.definition.summed)
    whole = put_together(shards, parts)
    assert whole.type[:FRONT] == case.front
    tolerance = 0.0 if name in EXACT else 1e-12
    np.testing.assert_allclose(whole.whole, expected(case), rtol=tolerance, atol=0)


@pytest.mark.parametrize("name", DEFINITIONS)
@given(st.data())
def test_other_labels_are_refused(name: str, data: st.DataObject) -> None:
    definition = data.draw(ranked(DEFINITIONS[name], st.integers(0, 2)))
    labels = {i.name for r in definition.reads for i in r.indices if isinstance(i, Label)}
    for label in sorted(labels - set(definition.cuts)):
        operands = [_cut_along(definition, operand, label) for operand in definition.operands]
        with pytest.raises(MisfitError, match=f"{name} (cannot be cut along|reads)"):
            run(name, (1,) * len(definition.parameters), operands)


def _cut_along(definition: Definition, operand: str, label: str) -> Shards:
    """An operand of size 2 in every dim, cut along a label, copied where it lacks it."""
    indices = definition.indices(operand)
    everywhere = {
        dim
        for read in definition.reads
        if read.operand == operand
        for dim, index in enumerate(read.indices)
        if index == Label(label)
    }
    dims = [TypedAxis(2, 2 if dim in everywhere else 1) for dim in range(len(indices))]
    copies = TypedAxis(1) if everywhere else TypedAxis(2, 2)
    type_ = (TypedAxis(1), copies, TypedAxis(1), *dims)
    return cut(type_, np.ones([axis.size for axis in type_]))


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_a_cut_normalisation_would_be_wrong(name: str) -> None:
    """The refusal has a reason: pieces of the last dim do not make the whole."""
    definition = DEFINITIONS[name].at((1, *(1,) * (len(DEFINITIONS[name].operands) - 1)))
    operands = [np.array([1.0, 2.0, 3.0, 5.0])] * len(definition.operands)
    settings = dict.fromkeys(definition.parameters, 1)
    whole = compute(definition, settings, operands, {})
    pieces = [
        compute(definition, settings, [x[at] for x in operands], {})
        for at in (slice(2), slice(2, 4))
    ]
    assert not np.allclose(np.concatenate(pieces), whole)


def test_a_bias_in_a_cut_sum_is_added_once_for_each_part() -> None:
    """Why `linear_bias` keeps k whole where `linear` does not."""
    x, w, b = np.ones((2, 4)), np.ones((3, 4)), np.ones(3)
    definition = DEFINITIONS["linear_bias"].at((2, 2, 1))
    halves = [
        compute(definition, {}, [x[:, at], w[:, at], b], {}) for at in (slice(2), slice(2, 4))
    ]
    np.testing.assert_array_equal(sum(halves), compute(definition, {}, [x, w, b], {}) + 1)
