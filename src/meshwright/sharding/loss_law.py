"""Loss decomposition over shares of a batch: exact weighted means or sums of gradients. Enters: a
graph with its loss. Leaves: the law by which losses of shares make that of the batch.

    mean   loss(batch) = sum of (samples of the share / samples) · loss(share)
    sum    loss(batch) = sum of loss(share)
Gradients follow, as both are linear. What looks at all samples before the loss (batch norm in
training), or bends it afterwards, has no such law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from meshwright.base.errors import InputError
from meshwright.graph.operator_graph import Operator, OperatorGraph

Law = Literal["mean", "sum"]

LINEAR = frozenset(
    {"add", "sub", "mul", "div", "neg", "alias", "view", "reshape", "to", "_to_copy"}
)
"""Kinds that a loss may pass after its samples were summed up."""

RESHAPING = frozenset({"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "alias"})
"""Kinds that leave targets as they are, but for their shape."""

COUPLING = frozenset({"batch_norm"})


def loss_law(graph: OperatorGraph) -> Law:
    """The law; refuses a graph that has none.

    >>> from meshwright.graph.text import parse_graph
    >>> loss_law(parse_graph('''graph g
    ... input x: float32[n=4]
    ... operator y: y: float32[] = mean(x)
    ... loss y'''))
    'mean'
    """
    if graph.loss is None:
        raise _refusal("the graph has no loss")
    for operator in graph.operators:
        if operator.kind in COUPLING and dict(operator.attributes).get("training", True):
            raise _refusal(f"{operator.name!r} ({operator.kind}) looks at all samples at once")
    return _law(graph, graph.producers[graph.loss])


def _refusal(why: str) -> InputError:
    return InputError(f"a step cannot be cut into shares of samples: {why}", "plan on one island")


def _law(graph: OperatorGraph, maker: Operator) -> Law:
    """The law of what an operator makes, a number."""
    reduction = dict(maker.attributes).get("reduction", 1)
    if maker.kind.endswith("_loss") and reduction in (1, 2):
        return "mean" if reduction == 1 else "sum"
    if maker.kind in ("mean", "sum"):
        return "mean" if maker.kind == "mean" else "sum"
    if maker.kind not in LINEAR:
        raise _refusal(f"{maker.name!r} ({maker.kind}) is applied to the loss of all samples")
    before = [
        graph.producers[name]
        for name in maker.inputs
        if name is not None and name in graph.producers and not graph.tensors[name].shape
    ]
    laws = {_law(graph, operator) for operator in before}
    if len(laws) != 1 or (len(before) > 1 and maker.kind in ("mul", "div")):
        raise _refusal(f"{maker.name!r} ({maker.kind}) puts terms of different kinds together")
    return laws.pop()


def target_and_ignore_index(
    graph: OperatorGraph, earlier: Sequence[OperatorGraph] = ()
) -> tuple[str, int] | None:
    """The input whose values a mean over classes counts, and the value that it leaves out; None
    where a mean is over all samples alike. Refuses weighted classes, and targets that are computed.

    Of the last of several stages with the graphs of earlier ones.
    """
    assert graph.loss is not None
    maker = graph.producers[graph.loss]
    while not maker.kind.endswith("_loss") and maker.kind in LINEAR:
        maker = graph.producers[next(n for n in maker.inputs if n and n in graph.producers)]
    if maker.kind not in ("cross_entropy_loss", "nll_loss", "nll_loss_nd"):
        return None
    if len(maker.inputs) > 2 and maker.inputs[2] is not None:
        raise _refusal(f"{maker.name!r} weights its classes")
    target, dtype = maker.inputs[1], graph.tensors[maker.inputs[1] or ""].dtype
    makers = {
        name: producer for one in (*earlier, graph) for name, producer in one.producers.items()
    }
    while target and target in makers:
        reader = makers[target]
        if reader.kind not in RESHAPING:
            break
        target = reader.inputs[0]
    if target is None or target in makers:
        raise _refusal(f"the targets of {maker.name!r} are computed, and it counts them")
    if dtype.startswith(("float", "bfloat")):
        return None
    ignored = dict(maker.attributes).get("ignore_index", -100)
    assert isinstance(ignored, int)
    return target, ignored
