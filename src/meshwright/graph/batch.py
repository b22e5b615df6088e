"""A graph for a larger batch. Enters: a graph, how many times as many samples. Leaves: the graph
of the same model with so many, or an `InputError` that says which operator has its batch fixed.

The dims that readers of the inputs cut by sample grow, and the first dims that are as long of
inputs which nobody cuts (a loss wants its targets whole); all other shapes follow by the families
of the kinds, as `check` judges them. Parameters and buffers stay.
"""

from __future__ import annotations

import msgspec

from meshwright.foundation.errors import InputError
from meshwright.graph.check import check
from meshwright.graph.families import family_of
from meshwright.graph.family import ShapeError
from meshwright.graph.model import Call, Operator, OperatorGraph, Spec, Tensor
from meshwright.graph.pieces import splits_of

SAMPLE = "sample"

CAPTURE = "capture the model anew with a larger batch (--batch)"


def with_batch(graph: OperatorGraph, times: int) -> OperatorGraph:
    """The graph with so many times as many samples.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, i=8]
    ... parameter w: float32[o=2, i=8]
    ... operator y: y: float32[n=4, o=2] = linear(x, w)
    ... output y''')
    >>> [str(tensor) for tensor in with_batch(graph, 3).definitions()]
    ['x: float32[n=12, i=8]', 'w: float32[o=2, i=8]', 'y: float32[n=12, o=2]']
    """
    grown = _sample_dims(graph)
    inputs = tuple(
        _longer(tensor, grown[tensor.name], times) if tensor.name in grown else tensor
        for tensor in graph.inputs
    )
    specs = dict(graph.specs) | {tensor.name: tensor.spec for tensor in inputs}
    found = msgspec.structs.replace(
        graph,
        inputs=inputs,
        operators=_all_grown(graph.operators, dict(specs)),
        checks=_all_grown(graph.checks, specs),
    )
    problems = check(found)
    if problems:
        raise InputError(f"with {times} times the samples {problems[0]}", CAPTURE)
    return found


def _sample_dims(graph: OperatorGraph) -> dict[str, int]:
    """For each input that has samples the dim along which they lie."""
    found = {own.name: dim for own in graph.inputs if (dim := _cut(graph, own)) is not None}
    sizes = {own.spec.shape[found[own.name]] for own in graph.inputs if own.name in found}
    if not found:
        raise InputError(f"no operator of graph {graph.name!r} cuts samples of an input", CAPTURE)
    whole = {own.name: 0 for own in graph.inputs if {*own.spec.shape[:1]} & sizes}
    return whole | found


def _cut(graph: OperatorGraph, tensor: Tensor) -> int | None:
    """The dim of an input that the first reader to do so cuts by sample, if any does."""
    for reader in graph.consumers[tensor.name]:
        place = reader.inputs.index(tensor.name)
        for split in splits_of(graph.call(reader)):
            if SAMPLE in (split.name, split.role) and split.inputs[place] is not None:
                return split.inputs[place]
    return None


def _longer(tensor: Tensor, dim: int, times: int) -> Tensor:
    dims = tuple(
        (name, size * times if at == dim else size) for at, (name, size) in enumerate(tensor.dims)
    )
    return msgspec.structs.replace(tensor, dims=dims)


def _all_grown(operators: tuple[Operator, ...], specs: dict[str, Spec]) -> tuple[Operator, ...]:
    grown = []
    for operator in operators:
        own = _grown(operator, specs)
        specs |= {tensor.name: tensor.spec for tensor in own.outputs}
        grown.append(own)
    return tuple(grown)


def _grown(operator: Operator, specs: dict[str, Spec]) -> Operator:
    call = Call(
        kind=operator.kind,
        inputs=tuple(None if name is None else specs[name] for name in operator.inputs),
        outputs=tuple(tensor.spec for tensor in operator.outputs),
        attributes=operator.attributes,
    )
    try:
        made = family_of(operator).outputs(call)
    except ShapeError as error:
        raise InputError(
            f"operator {operator.name!r} has its batch fixed: {error}", CAPTURE
        ) from None
    outputs = tuple(
        msgspec.structs.replace(
            tensor,
            dims=tuple(
                (name, size) for (name, _), size in zip(tensor.dims, spec.shape, strict=True)
            ),
        )
        for tensor, spec in zip(operator.outputs, made, strict=True)
    )
    return msgspec.structs.replace(operator, outputs=outputs)
