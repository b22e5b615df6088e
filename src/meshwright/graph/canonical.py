"""A hash of what a graph computes. Enters: a graph. Leaves: 64 hexadecimal digits.

It does not depend on the names of operators, intermediate tensors, dims and layers, nor on the
order of operators that do not depend on each other. It does depend on the names of inputs,
parameters and buffers, which are how the outside speaks of them.

    down(op) = H(kind, attributes, specs of the outputs, (down, index) of each input)
    up(op)   = H(down, the sorted (up of reader, position) of each output, output positions)
    hash     = H(sorted up of all operators, sorted sources, outputs, loss)
The way up tells apart operators that are computed alike but used differently: two dropouts of one
tensor are not one dropout used twice.
"""

from __future__ import annotations

import hashlib

from meshwright.graph.model import OperatorGraph


def canonical_hash(graph: OperatorGraph) -> str:
    """The same for graphs that compute the same in the same way.

    >>> from meshwright.graph.text import parse_graph
    >>> text = '''graph g
    ... input x: float32[n=4]
    ... operator a: h: float32[n=4] = exp(x)
    ... output h'''
    >>> renamed = text.replace("a: h:", "b: k:").replace("output h", "output k")
    >>> canonical_hash(parse_graph(text)) == canonical_hash(parse_graph(renamed))
    True
    """
    down = _down(graph)
    up = _up(graph, down)
    sources = sorted(down[t.name] for t in graph.definitions() if t.name not in graph.producers)
    ends = [down[name] for name in graph.outputs]
    loss = None if graph.loss is None else down[graph.loss]
    return _digest((sorted(up.values()), sources, ends, loss))


def _down(graph: OperatorGraph) -> dict[str, str]:
    """For each tensor how it is computed."""
    trained = {p.tensor.name: (p.trainable, p.also) for p in graph.parameters}
    found = {
        name: _digest((name, spec.dtype, spec.shape, trained.get(name)))
        for name, spec in graph.specs.items()
        if name not in graph.producers
    }
    for operator in graph.operators:
        specs = tuple((t.dtype, t.shape) for t in operator.outputs)
        reads = tuple(None if name is None else found[name] for name in operator.inputs)
        own = _digest((operator.kind, operator.attributes, specs, reads))
        for index, tensor in enumerate(operator.outputs):
            found[tensor.name] = _digest((own, index))
    return found


def _up(graph: OperatorGraph, down: dict[str, str]) -> dict[str, str]:
    """For each operator how it is computed and how it is used."""
    uses: dict[str, list[tuple[str, int]]] = {tensor.name: [] for tensor in graph.definitions()}
    for index, name in enumerate(graph.outputs):
        uses[name].append(("output", index))
    if graph.loss is not None:
        uses[graph.loss].append(("loss", 0))
    found: dict[str, str] = {}
    for operator in reversed(graph.operators):
        used = tuple((down[t.name], tuple(sorted(uses[t.name]))) for t in operator.outputs)
        own = _digest((operator.kind, used))
        found[operator.name] = own
        for position, read in enumerate(operator.inputs):
            if read is not None:
                uses[read].append((own, position))
    return found


def _digest(value: object) -> str:
    """Tuples, lists, texts, numbers and None print alike exactly if they are alike."""
    return hashlib.sha256(repr(value).encode()).hexdigest()
