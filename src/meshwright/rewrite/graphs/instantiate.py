"""Instantiation of a rule's target at a match: types checked, free symbols chosen.

Enters: a rule, the settings and tensors that its source bound. Leaves: for each choice of what the
source leaves open a `Blueprint`, the operators to put in place; none where a condition fails, an
operator cannot take its operands, or an output would differ in type or dtype. A symbol that only
the target has follows from a condition that equates it, or takes the values that the caller gives;
one that is only ever a dim may be every dim. All of this depends on types alone, so a caller may
remember it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from meshwright.graph.notation import Definition, MisfitError
from meshwright.graph.operator_graph import Attributes, Spec
from meshwright.rewrite.graphs.kinds import write
from meshwright.rewrite.graphs.readings import OperatorReading, normal
from meshwright.rewrite.language.conditions import holds, quantity
from meshwright.rewrite.language.terms import (
    AXES,
    Condition,
    Quantity,
    Rule,
    Setting,
    Tensor,
    Term,
    nodes,
    symbols,
)
from meshwright.rewrite.language.types import DIMS, FRONT, Type, infer, rank

Parameters = Mapping[str, Sequence[int]]
"""Values to try for symbols that only a target has: degrees, as a rule."""

Bound = Mapping[str, Setting]


class FitShape(NamedTuple):
    """What the fit depends on of a tensor."""

    type: Type
    dtype: str


class BlueprintOperator(NamedTuple):
    """An operator to be made. Tensors are numbered: what is given, then what is made, in order."""

    reading: OperatorReading
    kind: str
    attributes: Attributes
    operands: tuple[int, ...]
    """In the order of the rule language."""
    outputs: tuple[Spec, ...]
    types: tuple[Type, ...]


class Blueprint(NamedTuple):
    """What takes the place of a source."""

    settings: tuple[tuple[str, Setting], ...]
    """All symbols with their values."""
    given: tuple[Tensor, ...]
    """Tensors of the source that are read: variables, and operators that both sides have."""
    pieces: tuple[BlueprintOperator, ...]
    ends: tuple[int, ...]
    """For each output of the rule the tensor that takes its place."""


def blueprints(
    rule: Rule,
    bound: Bound,
    shapes: Mapping[Tensor, FitShape],
    parameters: Parameters,
    known: Mapping[str, Definition],
) -> Iterator[Blueprint]:
    """One for each choice that fits; `shapes` tells of every tensor of the source."""
    types = {str(term): shape.type for term, shape in shapes.items()}
    for chosen in _choices(rule, bound, types, parameters):
        try:
            if all(holds(condition, types, chosen) for condition in rule.conditions):
                blueprint = _Builder(rule, chosen, shapes, known).blueprint()
                if blueprint is not None:
                    yield blueprint
        except MisfitError:
            continue


def _choices(
    rule: Rule, bound: Bound, types: Mapping[str, Type], parameters: Parameters
) -> Iterator[dict[str, Setting]]:
    settings = dict(bound)
    open_ = dict.fromkeys(name for name in symbols(rule) if name not in settings)
    for name, other in _equations(rule) if open_ else ():
        if name in open_:
            try:
                settings[name] = quantity(other, types, settings)
            except MisfitError:
                continue
            del open_[name]
    ranks = range(max(map(rank, types.values()), default=0))
    dims = _only_dims(rule)
    values = [parameters.get(name, ranks if name in dims else ()) for name in open_]
    for chosen in itertools.product(*values):
        yield settings | dict(zip(open_, chosen, strict=True))


def _equations(rule: Rule) -> Iterator[tuple[str, Quantity]]:
    """Symbols that a condition equates with something."""
    for condition in rule.conditions:
        if isinstance(condition, Condition) and condition.relation == "=":
            sides = (condition.left, condition.right)
            for one, other in (sides, sides[::-1]):
                if isinstance(one, str):
                    yield one, other


def _only_dims(rule: Rule) -> set[str]:
    """Symbols that stand where an operator names a dim, and nowhere else among settings."""
    as_dims: set[str] = set()
    others: set[str] = set()
    for node in (*nodes(rule.source), *nodes(rule.target)):
        settings = normal(node.operator, node.attributes, 0)
        for number, setting in enumerate(settings):
            if isinstance(setting, str):
                (as_dims if number in DIMS.get(node.operator, ()) else others).add(setting)
    return as_dims - others


class _Builder:
    """Lays out one target."""

    def __init__(
        self,
        rule: Rule,
        chosen: Bound,
        shapes: Mapping[Tensor, FitShape],
        known: Mapping[str, Definition],
    ) -> None:
        self._rule, self._chosen, self._found, self._known = rule, chosen, shapes, known
        self._given: dict[Tensor, None] = {}
        self._made: dict[Term, None] = {}
        standing = _standing(rule, shapes)
        for term in rule.target:
            self._visit(term, standing)
        self._numbers: dict[Tensor, int] = {term: n for n, term in enumerate(self._given)}
        self._shapes = [shapes[term] for term in self._given]

    def _visit(self, term: Tensor, standing: frozenset[Tensor]) -> None:
        if term in standing:
            self._given[term] = None
        elif isinstance(term, Term) and term.node not in self._made:
            for operand in term.inputs:
                self._visit(operand, standing)
            self._made[term.node] = None

    def blueprint(self) -> Blueprint | None:
        """The operators of the target, if its outputs are what they replace."""
        pieces = tuple(map(self._piece, self._made))
        ends = tuple(self._numbers[term] for term in self._rule.target)
        for number, source in zip(ends, self._rule.source, strict=True):
            if self._shapes[number] != self._found[source]:
                return None
        settings = tuple(sorted(self._chosen.items()))
        return Blueprint(settings=settings, given=tuple(self._given), pieces=pieces, ends=ends)

    def _piece(self, node: Term) -> BlueprintOperator:
        operands = tuple(self._numbers[operand] for operand in node.inputs)
        shapes = [self._shapes[number] for number in operands]
        settings = normal(node.operator, tuple(map(self._setting, node.attributes)),
                          rank(shapes[0].type))  # fmt: skip
        types = infer(node.operator, settings, [shape.type for shape in shapes], self._known)
        writing = write(node.operator, settings, [_spec(shape) for shape in shapes], self._known)
        for output, (type_, spec) in enumerate(zip(types, writing.outputs, strict=True)):
            self._numbers[msgspec.structs.replace(node, output=output)] = len(self._shapes)
            self._shapes.append(FitShape(type_, spec.dtype))
        order = tuple(writing.order.index(number) for number in range(len(operands)))
        return BlueprintOperator(
            reading=OperatorReading(node.operator, settings, order),
            kind=writing.kind,
            attributes=writing.attributes,
            operands=operands,
            outputs=writing.outputs,
            types=types,
        )

    def _setting(self, setting: int | str) -> Setting:
        if isinstance(setting, int) or setting in AXES:
            return setting
        if setting not in self._chosen:
            raise MisfitError(f"{setting} is not bound")
        return self._chosen[setting]


def _standing(rule: Rule, shapes: Mapping[Tensor, FitShape]) -> frozenset[Tensor]:
    """Tensors of the source that the rule leaves as they are: nothing replaced goes into them."""
    pairs = zip(rule.source, rule.target, strict=True)
    replaced = {
        source.node for source, other in pairs if isinstance(source, Term) and source != other
    }
    return frozenset(term for term in shapes if replaced.isdisjoint(nodes((term,))))


def _spec(shape: FitShape) -> Spec:
    return Spec(shape.dtype, tuple(axis.size for axis in shape.type[FRONT:]))
