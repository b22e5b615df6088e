"""Operator templates: the alphabet of the rule generator. Enters: definitions. Leaves: `Template`s.

A template is an operator with its attributes fixed: `partition` over dim 0 by 2. A `split` has no
size: it cuts where the concat before it joined.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from meshwright.graph.notation import Definition, OperandRead, Plus, ProductTerm
from meshwright.rewrite.language.definitions import DEFINITIONS, definition
from meshwright.rewrite.language.terms import COPIES, Attribute
from meshwright.rewrite.language.types import PARALLEL

SPLIT = "split"


class Template(msgspec.Struct, frozen=True):
    """An operator that graphs may contain."""

    operator: str
    attributes: tuple[Attribute, ...] = ()
    arity: int = 1
    outputs: int = 1
    commutes: bool = False
    """Whether operands may change places, so that only one order is enumerated."""

    def __str__(self) -> str:
        attributes = f"[{', '.join(map(str, self.attributes))}]" if self.attributes else ""
        return f"{self.operator}{attributes}"


Templates = tuple[Template, ...]


def defined(name: str, known: Mapping[str, Definition] = DEFINITIONS) -> Template:
    """A defined operator without attributes.

    >>> defined("add")
    Template(operator='add', attributes=(), arity=2, outputs=1, commutes=True)
    """
    operator = definition(name, known)
    return Template(name, (), len(operator.operands), 1, _commutes(operator))


def _commutes(definition: Definition) -> bool:
    """Whether the line is a sum or a product of all operands, each read once in the same way."""
    match definition.body:
        case Plus(terms=parts) | ProductTerm(factors=parts):
            reads = [part for part in parts if isinstance(part, OperandRead)]
            return (
                len(reads) == len(parts) == len(definition.operands) > 1
                and len({read.indices for read in reads}) == 1
                and len({read.operand for read in reads}) == len(reads)
            )
        case _:
            return False


def parallel(axes: tuple[Attribute, ...], degree: int = 2) -> Templates:
    """Partition, combine, replicate and reduce over each of these axes."""
    return tuple(Template(name, (axis, degree)) for name in PARALLEL[:4] for axis in axes)


def joins(axes: tuple[Attribute, ...]) -> Templates:
    """Concat of two tensors over each of these axes."""
    return tuple(Template("concat", (axis,), 2) for axis in axes)


def splits(axes: tuple[Attribute, ...]) -> Templates:
    """Split into two over each of these axes."""
    return tuple(Template(SPLIT, (axis,), 1, 2) for axis in axes)


_AXES: tuple[Attribute, ...] = (COPIES, 0, 1)

ALGEBRA: Templates = tuple(map(defined, ("relu", "add", "mul", "linear")))
"""The small set for graphs of four operators."""

UNITY: Templates = (
    *map(defined, ("relu", "linear", "linear_relu", "add", "mul")),
    *parallel(_AXES),
    *joins(_AXES),
    *splits(_AXES),
)
"""The operators of Unity's published rules."""
