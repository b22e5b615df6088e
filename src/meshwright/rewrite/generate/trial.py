"""A rule tried out: a stand-in for a proof. Enters: a rule. Leaves: whether it held every time.

Plain tensors of all combinations of two sizes: wherever the source fits, the target has to fit and
to have the same types; on some of them both are executed by the definition (`shards`).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np

from meshwright.rewrite.definitions import MisfitError
from meshwright.rewrite.shards import Shards, evaluate, of_array
from meshwright.rewrite.terms import Attribute, Rule, Size, Tensor, Term, nodes, variables
from meshwright.rewrite.types import Type, infer, plain

SIZES = (8, 16)
EXECUTED = 3

Shape = tuple[int, int]


def agrees(rule: Rule, seed: int = 0) -> bool:
    """Whether both sides of a rule over plain matrices agree wherever they were tried."""
    names = [own.name for own in variables((*rule.source, *rule.target))]
    fitting: list[dict[str, Shape]] = []
    for shapes in product(product(SIZES, repeat=2), repeat=len(names)):
        given = dict(zip(names, shapes, strict=True))
        source = _types(rule.source, rule, given)
        if source is not None:
            if _types(rule.target, rule, given) != source:
                return False
            fitting.append(given)
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(fitting))[:EXECUTED]
    return bool(fitting) and all(_holds(rule, fitting[n], random) for n in chosen)


def _holds(rule: Rule, shapes: Mapping[str, Shape], random: np.random.Generator) -> bool:
    values: dict[str, Shards] = {
        name: of_array(random.integers(-9, 10, shape).astype(np.float64))
        for name, shape in shapes.items()
    }
    bound = _bound(rule, shapes)
    pairs = zip(
        evaluate(rule.source, values, bound=bound),
        evaluate(rule.target, values, bound=bound),
        strict=True,
    )
    return all(np.array_equal(one.values, other.values) for one, other in pairs)


def _bound(rule: Rule, shapes: Mapping[str, Shape]) -> dict[str, Attribute]:
    """The names that conditions bind to sizes of plain tensors."""
    return {
        condition.left: (
            shapes[condition.right.tensor][condition.right.dim]
            if isinstance(condition.right.dim, int)
            else 1
        )
        for condition in rule.conditions
        if isinstance(condition.right, Size) and isinstance(condition.left, str)
    }


def _types(
    terms: tuple[Tensor, ...], rule: Rule, shapes: Mapping[str, Shape]
) -> list[Type] | None:
    """The types of terms; nothing if an operator cannot take its inputs."""
    bound = _bound(rule, shapes)
    made: dict[Tensor, tuple[Type, ...]] = {}

    def type_of(own: Tensor) -> Type:
        return made[own.node][own.output] if isinstance(own, Term) else plain(shapes[own.name])

    for node in nodes(terms):
        attributes = [bound.get(a, a) if isinstance(a, str) else a for a in node.attributes]
        try:
            made[node] = infer(node.operator, attributes, [type_of(own) for own in node.inputs])
        except MisfitError:
            return None
    return [type_of(own) for own in terms]
