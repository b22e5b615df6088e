"""Rule generalisation to any rank, any degree and sharded inputs, if proved. Enters: a rule, a
prover. Leaves: the most general of its readings that is proved.

The generator looks at matrices and at degree 2. What it finds may hold for tensors of any rank, for
any degree, and for inputs in pieces; that is asked here, the boldest first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from meshwright.rewrite.generate.verdicts import Prove
from meshwright.rewrite.language.terms import Condition, Plain, Rank, Rule, Tensor, Term
from meshwright.rewrite.language.types import PARALLEL

FOUND = 2
"""The degree that the generator looks at."""


def most_general_rule(rule: Rule, prove: Prove) -> Rule:
    """The first reading that is proved; the rule as it was found, if no other is.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> rule = parse_rule("r: relu(partition[0, 2](a)) => partition[0, 2](relu(a)) if rank(a) = 2")
    >>> print(most_general_rule(rule, lambda reading: True))
    r: relu(partition[0, d](a)) => partition[0, d](relu(a))
    """
    return next((reading for reading in _readings(rule) if prove(reading)), rule)


def _readings(rule: Rule) -> Iterator[Rule]:
    readings = dict.fromkeys(
        msgspec.structs.replace(reading, conditions=conditions)
        for conditions in (_without(rule, Rank, Plain), _without(rule, Rank), _without(rule, Plain),
                           rule.conditions)
        for reading in (_any_degree(rule), rule)
    )  # fmt: skip
    yield from (reading for reading in readings if reading != rule)


def _without(rule: Rule, *kinds: type[Rank | Plain]) -> tuple[Condition | Plain, ...]:
    def speaks(condition: Condition | Plain) -> bool:
        about = condition if isinstance(condition, Plain) else condition.left
        return isinstance(about, kinds)

    return tuple(condition for condition in rule.conditions if not speaks(condition))


def _any_degree(rule: Rule) -> Rule:
    source, target = (tuple(map(_freed, side)) for side in (rule.source, rule.target))
    return msgspec.structs.replace(rule, source=source, target=target)


def _freed(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Term):
        return tensor
    attributes = tensor.attributes
    if tensor.operator in PARALLEL and attributes[-1] == FOUND:
        attributes = (*attributes[:-1], "d")
    inputs = tuple(map(_freed, tensor.inputs))
    return msgspec.structs.replace(tensor, inputs=inputs, attributes=attributes)
