"""Peak memory of a training step on one device, by what holds it. Enters: a graph, an optimizer,
what is recomputed. Leaves: `Memory`, by what it holds at the moment of the peak.

The forward pass holds a tensor until nobody reads it any more, or longer if some operator keeps it
for the backward pass. The backward pass walks the operators in reverse: it holds the gradient of a
tensor from the first of its readers until its producer is done, and lets go of what was kept once
nobody before needs it. Gradients of parameters stay. The optimizer holds its state all the time,
and while it updates, what it computes on the way. With recomputation only what enters a repeated
layer is kept; its operators run once more before their backward pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import msgspec

from meshwright.base.quantities import Bytes
from meshwright.graph.counts import input_needs_grad, tensors_requiring_grad, view_bases
from meshwright.graph.families import family_of
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import ITEM_BYTES, Operator, OperatorGraph

Optimizer = Literal["sgd", "momentum", "adam"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)

STATES: dict[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Numbers that an optimizer remembers for each parameter."""

UPDATE: dict[Optimizer, int] = {"sgd": 0, "momentum": 0, "adam": 1}
"""Numbers for each parameter that PyTorch's update over lists of tensors holds on the way."""


LIBRARY = Bytes(64 << 20)
"""What cuBLAS holds on a Hopper card: 32 MiB for the forward thread, as much for the backward."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes at the peak, by what they hold."""

    parameters: Bytes
    gradients: Bytes
    optimizer: Bytes
    activations: Bytes
    """What the backward pass needs, and buffers."""
    workspace: Bytes
    """Everything else: results on the way, gradients of activations, the update's, libraries."""

    @property
    def total(self) -> Bytes:
        """All of it."""
        held = (self.parameters, self.gradients, self.optimizer, self.activations, self.workspace)
        return Bytes(sum(held))


def training_memory(
    graph: OperatorGraph,
    optimizer: Optimizer = "adam",
    *,
    mixed: bool = False,
    recompute: bool = False,
) -> Memory:
    """The peak of one training step.

    With `mixed`, parameters and gradients are in the graph's dtype, and the optimizer holds a
    float32 copy of the parameters besides its state in float32.
    """
    weights = _bytes(graph, (p.tensor.name for p in graph.parameters))
    trained = [p.tensor for p in graph.parameters if p.trainable]
    native = Bytes(sum(t.spec.bytes for t in trained))
    wide = Bytes(sum(t.spec.elements * max(4, ITEM_BYTES[t.dtype]) for t in trained))
    state = STATES[optimizer] * (wide if mixed else native) + (wide if mixed else 0)
    update = UPDATE[optimizer] * (wide if mixed else native)
    buffers = _bytes(graph, (tensor.name for tensor in graph.buffers))
    inputs = _bytes(graph, (tensor.name for tensor in graph.inputs))
    moments = list(_moments(graph, recompute))
    updating = _Moment(gradients=native, kept=0, passing=update)
    peak = max([*moments, updating], key=lambda m: m.gradients + m.kept + m.passing)
    return Memory(
        parameters=weights,
        gradients=Bytes(peak.gradients),
        optimizer=Bytes(state),
        activations=Bytes(peak.kept + buffers + inputs),
        workspace=Bytes(peak.passing + LIBRARY),
    )


class _Moment(msgspec.Struct, frozen=True, kw_only=True):
    gradients: int
    """Of parameters."""
    kept: int
    passing: int


class _Kept:
    """What the forward pass keeps, and until which operator's backward pass."""

    def __init__(self, graph: OperatorGraph) -> None:
        needing, roots = tensors_requiring_grad(graph), view_bases(graph)
        always = {t.name for t in (*graph.inputs, *graph.buffers)}
        always |= {p.tensor.name for p in graph.parameters}
        self.first_need: dict[str, int] = {}
        """For each kept tensor the first operator, in forward order, that keeps it."""
        self.extra: list[int] = []
        for position, operator in enumerate(graph.operators):
            self.extra.append(0)
            if not any(tensor.name in needing for tensor in operator.outputs):
                continue
            wanted = input_needs_grad(operator, needing)
            saved = family_of(operator).saved(graph.call(operator), wanted)
            self.extra[-1] = saved.extra
            names = [operator.inputs[i] for i in saved.inputs]
            names += [operator.outputs[i].name for i in saved.outputs]
            for root in {roots[name] for name in names if name is not None} - always:
                self.first_need.setdefault(root, position)


def _moments(graph: OperatorGraph, recompute: bool) -> Iterator[_Moment]:
    """What is held after each operator of the forward and of the backward pass."""
    kept = _Kept(graph)
    again = _recomputed(graph) if recompute else {}
    dropped = _dropped(graph, again)
    yield from _forward(graph, kept, dropped)
    yield from _backward(graph, kept, again, dropped)


def _forward(graph: OperatorGraph, kept: _Kept, dropped: frozenset[str]) -> Iterator[_Moment]:
    roots, produced = view_bases(graph), {t.name for op in graph.operators for t in op.outputs}
    uses = Counter(roots[name] for op in graph.operators for name in op.inputs if name is not None)
    uses.update(roots[name] for name in graph.outputs)
    staying: int = 0
    passing: int = 0
    for position, operator in enumerate(graph.operators):
        size = _made(graph, operator)
        for root in size:
            if root in kept.first_need and root not in dropped:
                staying += size[root]
            else:
                passing += size[root]
        if not _runs_again(operator, dropped):
            staying += kept.extra[position]
        yield _Moment(gradients=0, kept=staying, passing=passing)
        for name in filter(None, operator.inputs):
            root = roots[name]
            uses[root] -= 1
            lasting = root in kept.first_need and root not in dropped
            if not uses[root] and root in produced and not lasting:
                passing -= graph.specs[root].bytes


def _runs_again(operator: Operator, dropped: frozenset[str]) -> bool:
    """Whether an operator's extras are dropped because it will run again."""
    return bool(dropped) and all(tensor.name in dropped for tensor in operator.outputs)


def _backward(
    graph: OperatorGraph, kept: _Kept, again: dict[int, range], dropped: frozenset[str]
) -> Iterator[_Moment]:
    needing, roots = tensors_requiring_grad(graph), view_bases(graph)
    parameters = {p.tensor.name for p in graph.parameters if p.trainable}
    freed: dict[int, list[str]] = defaultdict(list)
    for root, position in kept.first_need.items():
        freed[position].append(root)
    staying: int = sum(graph.specs[r].bytes for r in kept.first_need if r not in dropped)
    staying += sum(
        extra
        for position, extra in enumerate(kept.extra)
        if not _runs_again(graph.operators[position], dropped)
    )
    summed: set[str] = set()
    """Tensors whose gradient is there."""
    gradients: int = 0
    passing: int = 0
    for position in reversed(range(len(graph.operators))):
        operator = graph.operators[position]
        if position in again:
            staying += _rerun_bytes(graph, kept, again[position], dropped)
        for name in {name for name in operator.inputs if name in needing}:
            if name not in summed:
                summed.add(name)
                size = graph.specs[name].bytes
                if name in parameters:
                    gradients += size
                elif not family_of(operator).view:
                    passing += size
        scratch = family_of(operator).scratch(graph.call(operator))
        yield _Moment(gradients=gradients, kept=staying, passing=passing + scratch)
        for tensor in operator.outputs:
            if tensor.name in summed and roots[tensor.name] == tensor.name:
                passing -= tensor.spec.bytes
        staying -= kept.extra[position] + sum(graph.specs[root].bytes for root in freed[position])


def _made(graph: OperatorGraph, operator: Operator) -> dict[str, int]:
    """New memory that an operator's outputs take."""
    if family_of(operator).view:
        return {}
    return {tensor.name: graph.specs[tensor.name].bytes for tensor in operator.outputs}


def _recomputed(graph: OperatorGraph) -> dict[int, range]:
    """The layers that run again, by the position of their last operator."""
    return {
        repeat.layer(index)[-1]: repeat.layer(index)
        for repeat in layers(graph)
        for index in range(repeat.count)
    }


def _dropped(graph: OperatorGraph, again: dict[int, range]) -> frozenset[str]:
    """What the layers that run again make and nobody outside of them reads."""
    roots = view_bases(graph)
    names: set[str] = set()
    for layer in again.values():
        inside = {graph.operators[i].name for i in layer}
        for i in layer:
            for tensor in graph.operators[i].outputs:
                readers = {reader.name for reader in graph.consumers[tensor.name]}
                if readers <= inside and tensor.name not in graph.outputs:
                    names.add(tensor.name)
    return frozenset(name for name in names if roots[name] in names)


def _rerun_bytes(graph: OperatorGraph, kept: _Kept, layer: range, dropped: frozenset[str]) -> int:
    """What running a layer again brings back."""
    produced = {t.name for i in layer for t in graph.operators[i].outputs}
    restored = sum(graph.specs[r].bytes for r in kept.first_need if r in dropped and r in produced)
    return restored + sum(kept.extra[i] for i in layer if _runs_again(graph.operators[i], dropped))


def _bytes(graph: OperatorGraph, names: Iterable[str]) -> Bytes:
    return Bytes(sum(graph.specs[name].bytes for name in names))
