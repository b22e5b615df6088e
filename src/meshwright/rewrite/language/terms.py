"""Abstract syntax of rules: terms, conditions and rules. Enters: names and numbers. Leaves:
`Term`s, `Rule`s.

A term is an expression over tensors; equal terms are one operator, so an expression is a graph. A
rule says that its source may be replaced by its target wherever its conditions hold. What operators
mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from meshwright.graph.operator_graph import Value

STEPS, COPIES, SUMS = "steps", "copies", "sums"
AXES = (STEPS, COPIES, SUMS)
"""Axes that every tensor has in front of its dims: micro-batches that follow each other, copies of
the same value, summands of a sum that is still to be taken."""

Attribute = int | str
"""A number, one of `AXES`, or a variable that stands for a dim, a degree or a size."""

Setting = Value | tuple[Value, ...]
"""What an attribute of a term is in a graph: a dim, a degree, a size, or a value that rules only
hand on, as the eps of a norm."""

Relation = Literal["=", "!=", "<", "<=", "divides"]


class Variable(msgspec.Struct, frozen=True, tag=True):
    """Any tensor."""

    name: str

    def __str__(self) -> str:
        return self.name


class Term(msgspec.Struct, frozen=True, tag=True):
    """One output of an operator applied to tensors."""

    operator: str
    inputs: tuple[Tensor, ...]
    attributes: tuple[Attribute, ...] = ()
    output: int = 0

    def __str__(self) -> str:
        attributes = f"[{', '.join(map(str, self.attributes))}]" if self.attributes else ""
        output = f".{self.output}" if self.output else ""
        return f"{self.operator}{attributes}({', '.join(map(str, self.inputs))}){output}"

    @property
    def node(self) -> Term:
        """The operator itself, by its first output."""
        return msgspec.structs.replace(self, output=0) if self.output else self


Tensor = Variable | Term


class Size(msgspec.Struct, frozen=True, tag=True):
    """The size of a dim of a variable: `x.0`, `x.k`."""

    tensor: str
    dim: Attribute

    def __str__(self) -> str:
        return f"{self.tensor}.{self.dim}"


class Degree(msgspec.Struct, frozen=True, tag=True):
    """How many ways an axis of a variable is cut: `degree(x, k)`."""

    tensor: str
    axis: Attribute

    def __str__(self) -> str:
        return f"degree({self.tensor}, {self.axis})"


class Rank(msgspec.Struct, frozen=True, tag=True):
    """How many dims a variable has, or fewer: `rank(x)`, `rank(x)-1`."""

    tensor: str
    less: int = 0

    def __str__(self) -> str:
        return f"rank({self.tensor})" + (f"-{self.less}" if self.less else "")


Quantity = Attribute | Size | Degree | Rank


class Condition(msgspec.Struct, frozen=True, tag=True):
    """What has to hold where a rule is applied."""

    left: Quantity
    relation: Relation
    right: Quantity

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


class Plain(msgspec.Struct, frozen=True, tag=True):
    """A variable in one piece: nothing cut, one copy, no sum to be taken, one step."""

    tensor: str

    def __str__(self) -> str:
        return f"plain({self.tensor})"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A named substitution; `free` names tensors that only the target reads."""

    name: str
    source: tuple[Tensor, ...]
    target: tuple[Tensor, ...]
    conditions: tuple[Condition | Plain, ...] = ()
    free: tuple[str, ...] = ()

    def __str__(self) -> str:
        conditions = " and ".join(map(str, self.conditions))
        return "".join(
            (
                f"{self.name}: {side(self.source)} => {side(self.target)}",
                f" if {conditions}" if conditions else "",
                f" for any {', '.join(self.free)}" if self.free else "",
            )
        )

    @property
    def reverse(self) -> Rule:
        """The rule read from right to left."""
        known = {v.name for v in variables(self.target)}
        lost = tuple(v.name for v in variables(self.source) if v.name not in known)
        return Rule(
            name=f"{self.name}-reversed",
            source=self.target,
            target=self.source,
            conditions=self.conditions,
            free=lost,
        )


def side(terms: tuple[Tensor, ...]) -> str:
    """One side of a rule as text."""
    text = ", ".join(map(str, terms))
    return text if len(terms) == 1 else f"({text})"


def nodes(terms: tuple[Tensor, ...]) -> tuple[Term, ...]:
    """Every operator once, inputs before readers.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> rule = parse_rule("double: add(relu(x), relu(x)) => mul(relu(x), relu(x))")
    >>> [str(node) for node in nodes(rule.source)]
    ['relu(x)', 'add(relu(x), relu(x))']
    """
    operators: dict[Term, None] = {}

    def visit(term: Tensor) -> None:
        if isinstance(term, Term) and term.node not in operators:
            for operand in term.inputs:
                visit(operand)
            operators[term.node] = None

    for term in terms:
        visit(term)
    return tuple(operators)


def variables(terms: tuple[Tensor, ...]) -> tuple[Variable, ...]:
    """Every variable once, in the order in which it is first read."""
    ordered: dict[Variable, None] = {}
    for term in terms:
        if isinstance(term, Variable):
            ordered[term] = None
    for node in nodes(terms):
        ordered |= dict.fromkeys(
            operand for operand in node.inputs if isinstance(operand, Variable)
        )
    return tuple(ordered)


def quantities(condition: Condition | Plain) -> tuple[Quantity, ...]:
    """What a condition speaks of."""
    return () if isinstance(condition, Plain) else (condition.left, condition.right)


def tensors_in(condition: Condition | Plain) -> tuple[str, ...]:
    """The variables that a condition speaks of."""
    spoken = (condition, *quantities(condition))
    return tuple(q.tensor for q in spoken if isinstance(q, Size | Degree | Rank | Plain))


def symbols(rule: Rule) -> Iterator[str]:
    """Every variable among the attributes and conditions of a rule, with repetitions."""
    for node in (*nodes(rule.source), *nodes(rule.target)):
        yield from (
            attribute
            for attribute in node.attributes
            if isinstance(attribute, str) and attribute not in AXES
        )
    for condition in rule.conditions:
        for quantity in quantities(condition):
            match quantity:
                case str():
                    yield quantity
                case Size(dim=str() as own) | Degree(axis=str() as own) if own not in AXES:
                    yield own
                case _:
                    pass


def numbers(rule: Rule) -> Iterator[int]:
    """Dims, degrees and sizes that the operators of a rule have as numbers, with repetitions."""
    for node in (*nodes(rule.source), *nodes(rule.target)):
        yield from (attribute for attribute in node.attributes if isinstance(attribute, int))
