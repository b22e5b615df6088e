"""Running statistics of batch normalisations. Enters: a graph. Leaves: the calls that follow the
same ones, which must be followed in the order of the graph: no tensor tells it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from meshwright.graph.operator_graph import Attributes, Operator, OperatorGraph

MEAN = 3
"""Where a call has its running mean among its inputs; the running variance is the next."""


def follows(kind: str, inputs: Sequence[str | None], attributes: Attributes) -> tuple[str, ...]:
    """The running mean and variance that a call follows; none, where it does not."""
    if kind != "batch_norm" or not dict(attributes).get("training", True):
        return ()
    return tuple(filter(None, inputs[MEAN:]))


def following(graph: OperatorGraph) -> dict[str, tuple[Operator, ...]]:
    """For each running mean that a graph follows the calls that do.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, c=2]
    ... buffer m: float32[c=2]
    ... buffer v: float32[c=2]
    ... operator a: a: float32[n=4, c=2] = batch_norm(x, -, -, m, v) {training=true}
    ... operator b: b: float32[n=4, c=2] = batch_norm(a, -, -, m, v) {training=true}
    ... operator c: c: float32[n=4, c=2] = batch_norm(b, -, -, -, -) {training=true}
    ... operator d: d: float32[n=4, c=2] = batch_norm(c, -, -, m, v) {training=false}
    ... output d''')
    >>> {mean: [call.name for call in calls] for mean, calls in following(graph).items()}
    {'m': ['a', 'b']}
    """
    followers = defaultdict[str, list[Operator]](list)
    for operator in graph.operators:
        for mean in follows(operator.kind, operator.inputs, operator.attributes)[:1]:
            followers[mean].append(operator)
    return {mean: tuple(calls) for mean, calls in followers.items()}
