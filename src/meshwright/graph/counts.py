"""FLOPs, memory traffic and saved activations of operators and graphs, machine-independent.

Enters: a call or a graph. Leaves: flops, bytes moved, bytes kept for the backward pass. Flops of
products are those of `torch.utils.flop_counter`. Seconds are made of these in `price`.

With F the flops of an operator and G_i those of the gradient of its input i,
    forward  = F flops,  bytes of what is read and written                          `forward`
    backward = sum of G_i over the inputs that need a gradient, bytes of the
               gradients that come in, of what was kept, of the gradients made      `backward`
    kept     = distinct tensors that some operator keeps, views counted as what
               they look at, parameters not counted, and all extras      `saved_activation_bytes`
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from meshwright.base.once import once
from meshwright.base.quantities import Bytes
from meshwright.graph.families import family_of
from meshwright.graph.family import Family, Wanted
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph


class Counts(msgspec.Struct, frozen=True):
    """Floating-point operations and bytes read and written."""

    flops: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.flops + other.flops, self.bytes + other.bytes)


def forward(call: Call) -> Counts:
    """The forward pass of one operator."""
    return _forward(family_of(call), call)


@lru_cache(maxsize=4096)
def _forward(family: Family, call: Call) -> Counts:
    return Counts(family.flops(call), family.traffic(call))


def backward(call: Call, wanted: Wanted) -> Counts:
    """The backward pass of one operator, for the inputs whose gradients are wanted.

    A view's gradient is a view; an operator through which no gradient flows costs nothing.
    """
    return _backward(family_of(call), call, wanted)


@lru_cache(maxsize=4096)
def _backward(family: Family, call: Call, wanted: Wanted) -> Counts:
    if family.view or not family.differentiable or not any(wanted):
        return Counts()
    flops = sum(n for n, want in zip(family.gradient_flops(call), wanted, strict=True) if want)
    saved = family.saved(call, wanted)
    read = sum(spec.bytes for spec in call.outputs) + saved.extra
    read += sum(spec.bytes for i in saved.inputs if (spec := call.inputs[i]) is not None)
    read += sum(call.outputs[i].bytes for i in saved.outputs)
    written = sum(
        spec.bytes
        for spec, want in zip(call.inputs, wanted, strict=True)
        if spec is not None and want
    )
    return Counts(flops, read + written)


@once
def tensors_requiring_grad(graph: OperatorGraph) -> frozenset[str]:
    """The tensors for which the backward pass makes a gradient.

    Those that depend on a trainable parameter, and on which the loss depends (or, without a loss,
    an output), both through operators that gradients flow through.
    """
    depending = {p.tensor.name for p in graph.parameters if p.trainable}
    flowing = [op for op in graph.operators if family_of(op).differentiable]
    for operator in flowing:
        if depending.intersection(operator.inputs):
            depending.update(t.name for t in operator.outputs if is_differentiable(t.dtype))
    reaching = set(graph.outputs) if graph.loss is None else {graph.loss}
    for operator in reversed(flowing):
        if any(tensor.name in reaching for tensor in operator.outputs):
            reaching.update(filter(None, operator.inputs))
    return frozenset(depending & reaching)


def is_differentiable(dtype: str) -> bool:
    """Whether a tensor of this dtype can have a gradient.

    >>> is_differentiable("bfloat16"), is_differentiable("int64")
    (True, False)
    """
    return dtype.startswith(("float", "bfloat", "complex"))


def forward_counts(graph: OperatorGraph) -> Counts:
    """The forward pass of a whole graph."""
    return sum((forward(graph.call(operator)) for operator in graph.operators), Counts())


def backward_counts(graph: OperatorGraph) -> Counts:
    """The backward pass of a whole graph."""
    needing = tensors_requiring_grad(graph)
    total = Counts()
    for operator in graph.operators:
        if any(tensor.name in needing for tensor in operator.outputs):
            total += backward(graph.call(operator), input_needs_grad(operator, needing))
    return total


def input_needs_grad(operator: Operator, needing: frozenset[str]) -> Wanted:
    """For each input of an operator whether it needs a gradient."""
    return tuple(name in needing for name in operator.inputs)


def product_flops(graph: OperatorGraph) -> tuple[int, int]:
    """Flops of products and convolutions alone, forward and backward, as flop counters count."""
    needing = tensors_requiring_grad(graph)
    forward_flops = backward_flops = 0
    for operator in graph.operators:
        if not family_of(operator).products:
            continue
        call = graph.call(operator)
        forward_flops += forward(call).flops
        if any(tensor.name in needing for tensor in operator.outputs):
            backward_flops += backward(call, input_needs_grad(operator, needing)).flops
    return forward_flops, backward_flops


def saved_activation_bytes(graph: OperatorGraph) -> Bytes:
    """Activations that live from the forward to the backward pass."""
    needing = tensors_requiring_grad(graph)
    roots = view_bases(graph)
    parameters = {p.tensor.name for p in graph.parameters}
    kept: set[str] = set()
    extra = 0
    for operator in graph.operators:
        if not any(tensor.name in needing for tensor in operator.outputs):
            continue
        wanted = input_needs_grad(operator, needing)
        saved = family_of(operator).saved(graph.call(operator), wanted)
        extra += saved.extra
        kept.update(roots[name] for i in saved.inputs if (name := operator.inputs[i]) is not None)
        kept.update(roots[operator.outputs[i].name] for i in saved.outputs)
    return Bytes(extra + sum(graph.specs[name].bytes for name in kept - parameters))


@once
def view_bases(graph: OperatorGraph) -> Mapping[str, str]:
    """For each tensor the one whose memory it is: itself, or what a view looks at.

    What moves no bytes makes nothing new: views, and a dropout that drops nothing.
    """
    roots = {tensor.name: tensor.name for tensor in graph.definitions()}
    for operator in graph.operators:
        source = operator.inputs[0] if operator.inputs else None
        if source is not None and forward(graph.call(operator)).bytes == 0:
            roots.update((tensor.name, roots[source]) for tensor in operator.outputs)
    return roots
