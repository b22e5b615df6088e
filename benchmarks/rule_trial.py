"""A rule tried out: a stand-in for a proof. Enters: a rule. Leaves: whether it held every time.

Plain matrices of all combinations of two sizes: wherever the source fits, the target has to fit and
to have the same types; on some of them both are executed by the definition (`shards`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meshwright.graph.notation import Definition
from meshwright.rewrite.generate.size_conditions import Types, bound, fit, matrices
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import cut, evaluate
from meshwright.rewrite.language.terms import Rule

EXECUTED = 3


def agrees(rule: Rule, known: Mapping[str, Definition] = DEFINITIONS, seed: int = 0) -> bool:
    """Whether both sides of a rule over plain matrices agree wherever they were tried.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> agrees(parse_rule("r: add(relu(a), relu(a)) => relu(add(a, a))"))
    True
    >>> agrees(parse_rule("r: add(relu(a), relu(b)) => relu(add(a, b))"))
    False
    """
    fitting: list[Types] = []
    for types in matrices(rule):
        source = fit(rule.source, rule, types, known)
        if source is not None:
            if fit(rule.target, rule, types, known) != source:
                return False
            fitting.append(types)
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(fitting))[:EXECUTED]
    return bool(fitting) and all(_holds(rule, fitting[n], random, known) for n in chosen)


def _holds(
    rule: Rule, types: Types, random: np.random.Generator, known: Mapping[str, Definition]
) -> bool:
    values = {
        name: cut(axes, random.integers(-9, 10, [axis.size for axis in axes]).astype(np.float64))
        for name, axes in types.items()
    }
    names = bound(rule, types)
    pairs = zip(
        evaluate(rule.source, values, known, bound=names),
        evaluate(rule.target, values, known, bound=names),
        strict=True,
    )
    return all(np.array_equal(one.values, other.values) for one, other in pairs)
