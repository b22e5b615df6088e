"""A rule tried out: a stand-in for a proof. Enters: a rule. Leaves: whether it held every time.

Plain matrices of all combinations of two sizes: wherever the source fits, the target has to fit and
to have the same types; on some of them both are executed by the definition (`shards`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.rewrite.definitions import DEFINITIONS, Definition
from meshwright.rewrite.generate.fit import Shapes, bound, shapes_of, types_of
from meshwright.rewrite.shards import evaluate, of_array
from meshwright.rewrite.terms import Rule

EXECUTED = 3


def agrees(rule: Rule, known: Mapping[str, Definition] = DEFINITIONS, seed: int = 0) -> bool:
    """Whether both sides of a rule over plain matrices agree wherever they were tried.

    >>> from meshwright.rewrite.text import parse_rule
    >>> agrees(parse_rule("r: add(relu(a), relu(a)) => relu(add(a, a))"))
    True
    >>> agrees(parse_rule("r: add(relu(a), relu(b)) => relu(add(a, b))"))
    False
    """
    fitting: list[Shapes] = []
    for shapes in shapes_of(rule):
        source = types_of(rule.source, rule, shapes, known)
        if source is not None:
            if types_of(rule.target, rule, shapes, known) != source:
                return False
            fitting.append(shapes)
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(fitting))[:EXECUTED]
    return bool(fitting) and all(_holds(rule, fitting[n], random, known) for n in chosen)


def _holds(
    rule: Rule, shapes: Shapes, random: np.random.Generator, known: Mapping[str, Definition]
) -> bool:
    values = {
        name: of_array(random.integers(-9, 10, shape).astype(np.float64))
        for name, shape in shapes.items()
    }
    names = bound(rule, shapes)
    pairs = zip(
        evaluate(rule.source, values, known, bound=names),
        evaluate(rule.target, values, known, bound=names),
        strict=True,
    )
    return all(np.array_equal(one.values, other.values) for one, other in pairs)
