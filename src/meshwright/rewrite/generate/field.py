"""Graph fingerprints: evaluation at random values in a finite field, with types. Enters: nodes.
Leaves: digests.

Tensors are whole arrays (steps, copies, sums, dims) of integers modulo `PRIME` beside their type.
A cut that is legal leaves values alone, so partition and combine only change the type; a defined
operator consumes copies and makes sums as `shards` says, which is the slow twin of this module. A
function of numbers (relu) is a table of random numbers: nothing but its sameness is known. Products
of three numbers and sums over 256 stay below 2^53, so the slow twin is exact too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from meshwright.graph.notation import (
    Apply,
    Definition,
    Expression,
    MisfitError,
    Plus,
    ProductTerm,
    Total,
)
from meshwright.rewrite.generate.operator_templates import SPLIT, Template
from meshwright.rewrite.language import shards
from meshwright.rewrite.language.compute import Array
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import COPIES, Attribute
from meshwright.rewrite.language.types import COPY, SUM, Type, axis_number, infer, meet, plain, rank

PRIME = 32749
SIDE = 8
"""Every variable has two dims of this size: it can be halved three times."""

Values = NDArray[np.int64]


def table(function: str) -> Values:
    """Random values of a function of numbers, the same in every process."""
    seed = int.from_bytes(blake2b(function.encode(), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).integers(0, PRIME, PRIME, dtype=np.int64)


def lookup(function: str) -> Callable[..., Array]:
    """A function of numbers as `shards` calls it; several arguments are looked up in turn."""
    values = table(function)

    def look(*arguments: Array) -> Array:
        value = np.zeros((), dtype=np.int64)
        for argument in arguments:
            value = values[(value + np.rint(argument).astype(np.int64)) % PRIME]
        return value.astype(np.float64)

    return look


def functions_of(known: Mapping[str, Definition]) -> dict[str, Callable[..., Array]]:
    """Every function of numbers that definitions apply, in the field."""
    names: set[str] = set()

    def visit(node: Expression) -> None:
        match node:
            case Apply(function=name, arguments=parts):
                names.add(name)
                list(map(visit, parts))
            case Plus(terms=parts) | ProductTerm(factors=parts):
                list(map(visit, parts))
            case Total(body=body):
                visit(body)
            case _:
                pass

    for definition in known.values():
        visit(definition.body)
    return {name: lookup(name) for name in sorted(names)}


def variable_value(variable: int) -> Values:
    """The value of a variable, the same in every process."""
    drawn = np.random.default_rng(variable + 1).integers(0, PRIME, (1, 1, 1, SIDE, SIDE))
    return drawn.astype(np.int64)


TYPE: Type = plain((SIDE, SIDE))
"""Of every variable."""


def settings(template: Template) -> tuple[Attribute, ...]:
    """The attributes of a template where every variable has type `TYPE`."""
    if template.operator != SPLIT:
        return template.attributes
    return (*template.attributes, 1 if template.attributes[0] == COPIES else SIDE)


class OperatorArrays:
    """Operators on whole arrays, with types and tables looked up once."""

    def __init__(self, known: Mapping[str, Definition] = DEFINITIONS) -> None:
        self._known = known
        self._functions = functions_of(known)
        self._types: dict[tuple[Template, tuple[Type, ...]], tuple[Type, ...] | None] = {}
        self._relu = table("relu")

    def types(self, template: Template, inputs: tuple[Type, ...]) -> tuple[Type, ...] | None:
        """The types of the outputs; nothing if the operator cannot take its inputs."""
        key = (template, inputs)
        if key not in self._types:
            try:
                outputs = infer(template.operator, settings(template), inputs, self._known)
            except MisfitError:
                self._types[key] = None
            else:
                self._types[key] = outputs
        return self._types[key]

    def run(
        self, template: Template, types: tuple[Type, ...], inputs: Sequence[Values]
    ) -> tuple[Values, ...]:
        """The values of the outputs of an operator that can take its inputs."""
        first = inputs[0]
        match template.operator:
            case "partition" | "combine":
                return (first,)
            case "replicate":
                axis = axis_number(template.attributes[0], rank(types[0]))
                return (np.concatenate([first] * int(template.attributes[1]), axis=axis),)
            case "reduce":
                axis = axis_number(template.attributes[0], rank(types[0]))
                return (_folded(first, axis, int(template.attributes[1])),)
            case "concat":
                axis = axis_number(template.attributes[0], rank(types[0]))
                return (np.concatenate(inputs, axis=axis),)
            case "split":
                axis = axis_number(template.attributes[0], rank(types[0]))
                return tuple(np.split(first, [int(settings(template)[1])], axis=axis))
            case "relu":
                return (self._relu[first],)
            case "add" | "mul" if inputs[0].shape[SUM] == inputs[1].shape[SUM]:
                one, other = inputs
                both = one + other if template.operator == "add" else one * other
                return (both % PRIME,)
            case "linear":
                return (self._linear("linear", types, inputs),)
            case "linear_relu":
                return (self._relu[self._linear("linear_relu", types, inputs)],)
            case _:
                return self.slow(template, types, inputs)

    def slow(
        self, template: Template, types: tuple[Type, ...], inputs: Sequence[Values]
    ) -> tuple[Values, ...]:
        """The same by `shards`, for every operator."""
        pieces = [
            shards.cut(type_, value.astype(np.float64))
            for type_, value in zip(types, inputs, strict=True)
        ]
        outputs = shards.run(
            template.operator, settings(template), pieces, self._known, self._functions
        )
        return tuple(np.rint(output.whole).astype(np.int64) % PRIME for output in outputs)

    def _linear(self, name: str, types: tuple[Type, ...], inputs: Sequence[Values]) -> Values:
        """Products of the pieces that meet: copies of x count pieces of o, those of w pieces of i.

        Axes of the sum: t steps, c copies, p and q sums that were brought; I and i, U and o, D and
        k the pieces of a label and the elements of a piece.
        """
        x, w = inputs
        if all(type_[COPY].size == type_[SUM].size == type_[-1].degree == 1 for type_ in types):
            return np.asarray(x @ w.swapaxes(-1, -2)) % PRIME
        meeting = meet(self._known[name], (), types)
        rows, cols, inner = (meeting.degrees[label] for label in ("i.0", "o", "k"))
        left = _met(x, cols, "" in meeting.lacking[0], meeting.sums.degree)
        right = _met(w, rows, "" in meeting.lacking[1], meeting.sums.degree)
        left = left.reshape(*left.shape[:5], rows, x.shape[-2] // rows, inner, -1)
        right = right.reshape(*right.shape[:5], cols, w.shape[-2] // cols, inner, -1)
        product = np.einsum("tUpcqIiDk,tIpcqUoDk->tcDpqIiUo", left, right)
        return np.asarray(product.reshape([axis.size for axis in meeting.output])) % PRIME


def _folded(value: Values, axis: int, degree: int) -> Values:
    shape = value.shape
    parts = value.reshape(*shape[:axis], degree, shape[axis] // degree, *shape[axis + 1 :])
    return np.asarray(parts.sum(axis=axis)) % PRIME


def _met(value: Values, pieces: int, lacks_sums: bool, sums: int) -> Values:
    """An operand as (steps, pieces of the label it lacks, sums, copies, sums inside, dims)."""
    steps, copies, brought, *dims = value.shape
    if lacks_sums:
        return value.reshape(steps, pieces, sums, copies // pieces // sums, 1, *dims)
    outer = math.gcd(sums, brought)
    split = value.reshape(steps, pieces, copies // pieces, outer, brought // outer, *dims)
    return split.swapaxes(2, 3)


def digest(type_: Type, value: Values) -> int:
    """A number for a tensor: equal for equal types and values, else different."""
    hasher = blake2b(repr([axis[:2] for axis in type_]).encode(), digest_size=8)
    hasher.update(value.tobytes())
    return int.from_bytes(hasher.digest(), "big")
