"""Transformer hyperparameters read off a graph: hidden and FFN width, vocabulary, experts. Enters:
a graph with repeated attention layers. Leaves: `Dims`: widths, tables and experts besides the
counts of `Facts`.

All are read off parameters: the width of the largest table, the inputs of the last product of a
layer, experts by the tables that a router chooses from. Gate and up projection are two products or
one of twice the width. Attention parts a layer: what adds biases before it and behind it is told
apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.facts import ATTENDING, Facts, layer_starts, transformer_facts
from meshwright.baselines.tensor import ATTENTION
from meshwright.graph.families.embedding import KINDS as TABLES
from meshwright.graph.operator_graph import Operator, OperatorGraph

LINEAR, DROPOUT, LAYER_NORM = "linear", "dropout", "layer_norm"

ACTIVATIONS = ("silu", "gelu", "relu")
"""Of feed-forward layers."""

UNGATED = 2
"""Products of a feed-forward layer without a gate."""


class Dims(NamedTuple):
    """Sizes besides those that degrees must divide."""

    facts: Facts
    hidden: int
    inner: int
    """Width of the feed-forward layers, or of one expert."""
    vocabulary: int
    gated: bool
    learned_positions: bool
    tied: bool
    """Whether the head is the table of words."""
    chosen: int
    """Experts of a token; 0 if there are none."""
    dtype: str
    width: int
    """Of a head."""
    dropout: tuple[float, float]
    """Of hidden states, and of attention: the share that is left out in training."""
    biased: tuple[bool, bool]
    """Whether products add a bias: those that make queries, keys and values, those behind."""
    centred: bool
    """Whether norms are layer norms, which subtract the mean and add a bias."""
    activation: str
    """Of the feed-forward layers; "" where no operator of that name computes it."""
    parameters: int
    """Numbers that the model trains."""
    normed_heads: bool
    """Whether queries and keys are normalised head by head."""
    looks_ahead: bool
    """Whether positions attend to later ones: an encoder."""


def transformer_dims(graph: OperatorGraph) -> Dims:
    """The sizes of a transformer of words."""
    facts, shapes = transformer_facts(graph), _shapes(graph)
    _refuse_two_attentions(graph, facts)
    tables = [
        shapes[operator.inputs[0] or ""] for operator in graph.operators if operator.kind in TABLES
    ]
    if not tables:
        raise InputError(
            f"graph {graph.name!r} has no table of words",
            "flags of a model's sizes are for language models; export --to pytorch",
        )
    vocabulary, hidden = max(tables)
    first, then = _around_attention(graph)
    inner, gated = _feed_forward(then, shapes, hidden, experts=facts.experts > 0)
    width = _width(graph, hidden // facts.heads)
    return Dims(
        facts=facts,
        hidden=hidden,
        inner=inner,
        vocabulary=vocabulary,
        gated=gated,
        learned_positions=any(rows >= facts.positions for rows, _ in sorted(tables)[:-1]),
        tied=any(
            parameter.also
            for parameter in graph.parameters
            if shapes[parameter.tensor.name] == max(tables)
        ),
        chosen=_chosen(graph) if facts.experts else 0,
        dtype=graph.parameters[0].tensor.dtype,
        width=width,
        dropout=(
            _share(graph, DROPOUT, "p"),
            _share(graph, ATTENTION, "dropout_p"),
        ),
        biased=(_adds_bias(first, shapes), _adds_bias(then, shapes)),
        centred=any(operator.kind == LAYER_NORM for operator in (*first, *then)),
        activation=next((operator.kind for operator in then if operator.kind in ACTIVATIONS), ""),
        parameters=graph.parameter_count,
        normed_heads=width != hidden
        and any(shapes[name] == (width,) for name in _scales(graph, shapes)),
        looks_ahead=any(
            operator.kind == ATTENTION
            and len(operator.inputs) == 3
            and not dict(operator.attributes).get("is_causal")
            for operator in graph.operators
        ),
    )


def _refuse_two_attentions(graph: OperatorGraph, facts: Facts) -> None:
    """Refuse layers that attend to themselves and to others: a decoder beside its encoder."""
    attentions = sum(operator.kind == ATTENTION for operator in graph.operators)
    if attentions > facts.layers:
        raise InputError(
            f"graph {graph.name!r} has layers that attend more than once, as decoders beside an "
            "encoder do",
            "flags of a model's sizes are for decoders or encoders alone; export --to pytorch, "
            "jax, deepspeed or accelerate",
        )


def _first_layer(graph: OperatorGraph) -> tuple[Operator, ...]:
    starts = layer_starts(graph)
    return graph.operators[starts[0] : starts[1]]


def _around_attention(graph: OperatorGraph) -> tuple[list[Operator], list[Operator]]:
    """The operators of the first layer before and behind its attention."""
    layer = _first_layer(graph)
    at = next(n for n, operator in enumerate(layer) if operator.kind in ATTENDING)
    return list(layer[:at]), list(layer[at:])


def _feed_forward(
    then: Iterable[Operator], shapes: dict[str, tuple[int, ...]], hidden: int, *, experts: bool
) -> tuple[int, bool]:
    """The inner width of what follows attention and its output projection, and whether it has a
    gate; of experts where there are some.
    """
    products = list(_products(then, shapes))[1:]
    if experts:
        products = [shape for shape in products if len(shape) > 2]
    if not products:
        return 4 * hidden, False
    rows, columns = products[-1][-2:]
    inner = columns if rows == hidden else rows
    widths = [set(shape[-2:]) for shape in products]
    return inner, {hidden, 2 * inner} in widths or widths.count({hidden, inner}) > UNGATED


def _adds_bias(operators: Iterable[Operator], shapes: dict[str, tuple[int, ...]]) -> bool:
    """Whether a product with a weight has a bias."""
    ranks = (
        {len(shapes[name]) for name in operator.inputs if name in shapes} for operator in operators
    )
    return any({1, 2} <= rank for rank in ranks)


def _width(graph: OperatorGraph, usual: int) -> int:
    """The width of a head: what attention makes for each."""
    attending = (operator for operator in graph.operators if operator.kind == ATTENTION)
    return next((attention.outputs[0].dims[-1][1] for attention in attending), usual)


def _share(graph: OperatorGraph, kind: str, name: str) -> float:
    """The largest share that operators leave out."""
    of_kind = (operator for operator in graph.operators if operator.kind == kind)
    return max(
        (float(str(dict(operator.attributes).get(name, 0.0))) for operator in of_kind), default=0.0
    )


def _scales(graph: OperatorGraph, shapes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    """Parameters of the first layer that are no product's."""
    for operator in _first_layer(graph):
        if operator.kind != LINEAR:
            yield from (name for name in operator.inputs if name in shapes)


def _shapes(graph: OperatorGraph) -> dict[str, tuple[int, ...]]:
    return {
        parameter.tensor.name: tuple(extent for _, extent in parameter.tensor.dims)
        for parameter in graph.parameters
    }


def _products(
    operators: Iterable[Operator], shapes: dict[str, tuple[int, ...]]
) -> Iterator[tuple[int, ...]]:
    """The shapes of the weights of products, in their order."""
    names = dict.fromkeys(name for operator in operators for name in operator.inputs)
    yield from (shapes[name] for name in names if name in shapes and len(shapes[name]) > 1)


def _chosen(graph: OperatorGraph) -> int:
    """How many experts a token has: the width of what the router keeps."""

    def width(operator: Operator) -> int:
        return operator.outputs[0].dims[-1][1]

    return next((width(operator) for operator in graph.operators if operator.kind == "topk"), 1)
