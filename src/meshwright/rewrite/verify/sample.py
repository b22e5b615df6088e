"""Random testing of rules: instances with random types and values. Enters: a rule, a seed. Leaves:
instances.

An instance gives every variable a type and values, and every variable of attributes a number.
Sizes are small and mostly equal, so that operators fit; half of the instances are in one piece, the
others cut, copied and waiting to be summed at random. Copies of an input are equal.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from meshwright.graph.notation import Definition, Label, MisfitError, Window
from meshwright.rewrite.language.compute import Array
from meshwright.rewrite.language.conditions import holds, quantity
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import Shards, cut
from meshwright.rewrite.language.terms import (
    AXES,
    Attribute,
    Condition,
    Plain,
    Rank,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
    nodes,
    numbers,
    symbols,
    variables,
)
from meshwright.rewrite.language.types import (
    COPY,
    DIMS,
    FRONT,
    Type,
    TypedAxis,
    infer,
)
from meshwright.rewrite.verify.case_split import World
from meshwright.rewrite.verify.spaces import Space, as_space, resolve

HIGHEST = 8
"""Dims of the tensors that are tried."""

LARGEST = 64
"""A rule with a larger degree or size in it is not tried: arrays would not fit into memory."""

_SIZES = (4, 8, 12, 2, 6)
_DEGREES = (2, 2, 2, 3)


ELEMENTS = 20_000
"""Most elements of a tensor that is made to try a case of a proof."""


class Instance(NamedTuple):
    """Types of variables and values of attributes for which the source of a rule can be taken."""

    types: Mapping[str, Type]
    bound: Mapping[str, Attribute]
    seed: int

    def values(self) -> dict[str, Shards]:
        """Whole numbers for every variable."""
        random_numbers = np.random.default_rng(self.seed)
        return {name: _values(type_, random_numbers) for name, type_ in self.types.items()}


def instances(
    rule: Rule, seed: int, tries: int, known: Mapping[str, Definition] = DEFINITIONS
) -> Iterator[Instance]:
    """Instances that fit the conditions and the source of a rule, out of so many tries."""
    chance = random.Random(seed)
    names = [v.name for v in dict.fromkeys((*variables(rule.source), *variables(rule.target)))]
    fixed = _fixed_ranks(rule, known)
    if max(fixed.values(), default=0) > HIGHEST or max(numbers(rule), default=0) > LARGEST:
        return
    windows = _Windows(rule, known)
    plain_names = {c.tensor for c in rule.conditions if isinstance(c, Plain)}
    for number in range(tries):
        common = chance.choice((1, 2, 2, 3, 3, 4))
        pieces = chance.random() < 0.5
        sizes = [chance.choice(_SIZES)] * HIGHEST if chance.random() < 0.6 else []
        types = {
            name: _type(
                chance, fixed.get(name, common), sizes, pieces=pieces and name not in plain_names
            )
            for name in names
        }
        types = {name: windows.smaller(name, type_, chance) for name, type_ in types.items()}
        bound = _bound(rule, types, chance, common)
        if bound is not None:
            bound |= windows.settings(chance)
        if bound is not None and _fits(rule, types, bound, known):
            yield Instance(types, bound, seed * tries + number)


def instance_of_world(
    rule: Rule, world: World, seed: int, known: Mapping[str, Definition] = DEFINITIONS
) -> Instance | None:
    """An instance of a world that a proof has looked at; None if numbers do not fit by chance."""
    chance = random.Random(seed)
    windows = _Windows(rule, known)
    chosen: dict[str, int] = {}

    def number(symbol: str) -> int:
        """Degrees divide sizes, which are multiples of all of them."""
        if symbol.startswith("#"):
            return int(symbol[1:].rstrip("'"))
        tensor, _, axis = symbol.rstrip("'").partition(".")
        if axis.isdigit():
            small = (tensor, int(axis)) in windows.kernels
            usual = (4, 8) if rank(tensor) < 4 else (2, 4, 4)
            return chosen.setdefault(symbol, chance.choice((1, 2, 3) if small else usual))
        least = (1, 2) if axis else (2, 2, 4)
        return chosen.setdefault(symbol, chance.choice(least))

    def rank(tensor: str) -> int:
        return world.numbers[f"rank {tensor}"]

    def size(space: Space) -> int:
        return sum(math.prod(map(number, segment)) for segment in space)

    types: dict[str, Type] = {}
    for variable in dict.fromkeys((*variables(rule.source), *variables(rule.target))):
        axes = world.axes_of(variable.name, rank(variable.name))
        types[variable.name] = tuple(
            TypedAxis(size(a.space), size(as_space(a.degree))) for a in axes
        )
    bound: dict[str, Attribute] = {
        name: world.numbers[f"dim {name}"]
        if f"dim {name}" in world.numbers
        else size(resolve(((name,),), world.known))
        for name in symbols(rule)
    }
    for name, value in windows.settings(chance).items():
        bound.setdefault(name, value)
        if name not in world.known:
            bound[name] = value
    elements = max(math.prod(axis.size for axis in type_) for type_ in types.values())
    if elements > ELEMENTS or not _fits(rule, types, bound, known):
        return None
    return Instance(types, bound, seed)


class _Windows:
    """What slides over what: kernels are smaller than what they slide over."""

    def __init__(self, rule: Rule, known: Mapping[str, Definition]) -> None:
        self.kernels: set[tuple[str, int]] = set()
        self._names: dict[str, tuple[int, ...]] = {}
        for node in (*nodes(rule.source), *nodes(rule.target)):
            if node.operator == "halo":
                self._note(node.attributes[2], (0, 1, 2))
            if node.operator not in known:
                continue
            definition = known[node.operator]
            settings = dict(zip(definition.parameters, node.attributes, strict=False))
            slides = [i for read in definition.reads for i in read.indices if isinstance(i, Window)]
            for window in slides:
                self._note(settings[window.stride], (1, 1, 2))
                self._note(settings[window.padding], (0, 1))
            places = {window.place for window in slides}
            for operand, tensor in zip(definition.operands, node.inputs, strict=False):
                for dim, index in enumerate(definition.indices(operand)):
                    if isinstance(index, Label) and index.name in places:
                        self.kernels |= {(v.name, dim) for v in variables((tensor,))}

    def _note(self, name: Attribute, values: tuple[int, ...]) -> None:
        if isinstance(name, str):
            self._names.setdefault(name, values)

    def smaller(self, name: str, type_: Type, chance: random.Random) -> Type:
        """A tensor of which the dims inside a window are small."""
        size = chance.choice((1, 2, 3, 3))
        return (
            *type_[:FRONT],
            *(
                TypedAxis(size) if (name, dim) in self.kernels else axis
                for dim, axis in enumerate(type_[FRONT:])
            ),
        )

    def settings(self, chance: random.Random) -> dict[str, Attribute]:
        """Strides, paddings and rows of neighbours."""
        return {name: chance.choice(values) for name, values in self._names.items()}


def types_of(
    terms: Sequence[Tensor],
    types: Mapping[str, Type],
    bound: Mapping[str, Attribute],
    known: Mapping[str, Definition] = DEFINITIONS,
) -> tuple[Type, ...]:
    """The types of a graph of terms; a `MisfitError` if it cannot be taken."""
    inferred: dict[Term, tuple[Type, ...]] = {}

    def of(term: Tensor) -> Type:
        if isinstance(term, Variable):
            return types[term.name]
        if term.output >= len(inferred[term.node]):
            raise MisfitError(f"{term.operator} has no output {term.output}")
        return inferred[term.node][term.output]

    for node in nodes(tuple(terms)):
        attributes = [bound.get(a, a) if isinstance(a, str) else a for a in node.attributes]
        inferred[node] = infer(node.operator, attributes, list(map(of, node.inputs)), known)
    return tuple(map(of, terms))


def _type(chance: random.Random, rank: int, sizes: Sequence[int], *, pieces: bool) -> Type:
    dims = [TypedAxis(sizes[n] if sizes else chance.choice(_SIZES)) for n in range(rank)]
    if not pieces:
        return (TypedAxis(1),) * FRONT + tuple(dims)
    front = [chance.choice((1, 1, 1, 2)) for _ in AXES]
    steps, copies, sums = front
    return (
        TypedAxis(steps), TypedAxis(copies, copies), TypedAxis(sums, sums),
        *(axis._replace(degree=chance.choice((1, 1, 2))) for axis in dims),
    )  # fmt: skip


def _values(type_: Type, chance: np.random.Generator) -> Shards:
    shape = [axis.size for axis in type_]
    shape[COPY] = 1
    whole: Array = chance.integers(-3, 4, shape).astype(float)
    return cut(type_, np.repeat(whole, type_[COPY].size, axis=COPY))


def _fixed_ranks(rule: Rule, known: Mapping[str, Definition]) -> dict[str, int]:
    """Ranks that conditions or definitions leave no choice about."""
    ranks: dict[str, int] = {}
    for node in (*nodes(rule.source), *nodes(rule.target)):
        definition = known.get(node.operator)
        if definition is None:
            continue
        for operand, tensor in zip(definition.operands, node.inputs, strict=False):
            indices = definition.indices(operand)
            while isinstance(tensor, Term) and tensor.operator in _KEEP_RANK:
                tensor = tensor.inputs[0]
            many = any(isinstance(index, Label) and index.many for index in indices)
            if isinstance(tensor, Variable) and not many:
                ranks[tensor.name] = len(indices)
    for condition in rule.conditions:
        match condition:
            case Condition(left=Rank(tensor=name, less=0), relation="=", right=int() as value):
                ranks[name] = value
            case _:
                pass
    return ranks


_KEEP_RANK = ("partition", "combine", "replicate", "reduce", "pipeline", "batch", "halo", "concat")


def _bound(
    rule: Rule, types: Mapping[str, Type], chance: random.Random, ranks: int
) -> dict[str, Attribute] | None:
    """Numbers for the variables of attributes: dims, degrees, sizes that conditions give."""
    dims = {node.attributes[n] for node in (*nodes(rule.source), *nodes(rule.target))
            for n in DIMS.get(node.operator, ()) if n < len(node.attributes)}  # fmt: skip
    bound: dict[str, Attribute] = {}
    for name in symbols(rule):
        if name not in bound:
            bound[name] = chance.randrange(ranks) if name in dims else chance.choice(_DEGREES)
    try:
        for condition in rule.conditions:
            match condition:
                case Condition(left=str() as name, relation="=", right=Size() as size):
                    value = quantity(size, types, bound)
                    assert isinstance(value, int)
                    bound[name] = value
                case _:
                    pass
    except MisfitError:
        return None
    return bound


def _fits(
    rule: Rule,
    types: Mapping[str, Type],
    bound: Mapping[str, Attribute],
    known: Mapping[str, Definition],
) -> bool:
    if any(axis.size % axis.degree for type_ in types.values() for axis in type_):
        return False
    try:
        if not all(holds(condition, types, bound) for condition in rule.conditions):
            return False
        types_of(rule.source, types, bound, known)
    except MisfitError:
        return False
    return True
