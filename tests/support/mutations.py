"""Rules with one mistake in them: a wrong dim, degree or order of operands, a step left out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from meshwright.rewrite.language.terms import AXES, Attribute, Rule, Tensor, Term, nodes

COMMUTATIVE = ("add", "mul")
PARALLEL = ("partition", "combine", "replicate", "reduce", "pipeline", "batch")


def mutants(rules: Sequence[Rule], seed: int) -> Iterator[Rule]:
    """Rules with one change in their target, without end."""
    chance = random.Random(seed)
    while True:
        rule = chance.choice(rules)
        change = chance.choice((_dim, _degree, _order, _missing, _output))
        candidates = [node for node in nodes(rule.target) if change(node, chance) is not None]
        if not candidates:
            continue
        node = chance.choice(candidates)
        changed = change(node, chance)
        assert changed is not None
        target = tuple(_replaced(term, node, changed) for term in rule.target)
        if target != rule.target:
            name = f"{rule.name}-{change.__name__.strip('_')}"
            yield msgspec.structs.replace(rule, name=name, target=target)


Change = Callable[[Term, random.Random], Tensor | None]


def _dim(node: Term, chance: random.Random) -> Tensor | None:
    if node.operator not in (*PARALLEL, "concat", "split", "flatten", "unflatten"):
        return None
    if len(node.attributes) == 1 and node.operator in PARALLEL:
        return None
    others: list[Attribute] = [a for a in (0, 1, -1, *AXES) if a != node.attributes[0]]
    return msgspec.structs.replace(node, attributes=(chance.choice(others), *node.attributes[1:]))


def _degree(node: Term, chance: random.Random) -> Tensor | None:
    if node.operator not in PARALLEL:
        return None
    other = chance.choice([d for d in (2, 3, 4) if d != node.attributes[-1]])
    return msgspec.structs.replace(node, attributes=(*node.attributes[:-1], other))


def _order(node: Term, chance: random.Random) -> Tensor | None:
    if len(node.inputs) < 2 or node.operator in COMMUTATIVE:
        return None
    return msgspec.structs.replace(node, inputs=node.inputs[::-1])


def _missing(node: Term, chance: random.Random) -> Tensor | None:
    return node.inputs[0] if node.operator in PARALLEL else None


def _output(node: Term, chance: random.Random) -> Tensor | None:
    if node.operator != "split":
        return None
    return msgspec.structs.replace(node, output=1)


def _replaced(term: Tensor, old: Term, new: Tensor) -> Tensor:
    if not isinstance(term, Term):
        return term
    if term.node == old:
        if isinstance(new, Term) and new.operator == old.operator and not new.output:
            return msgspec.structs.replace(new, output=term.output)
        return new
    return msgspec.structs.replace(
        term, inputs=tuple(_replaced(operand, old, new) for operand in term.inputs)
    )
