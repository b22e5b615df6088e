"""Pipeline stage extraction: a run of operators as a graph of its own. Enters: a graph, the names
of its operators that a stage has. Leaves: a graph that can be planned and simulated by itself.

    enters   inputs that operators of the stage read, and what earlier stages made. What carries a
             gradient passes an `add` of a trainable number, so that its gradient is wanted and the
             backward pass is that of the stage
    leaves   the loss or, of a stage without it, the sum of what later stages read: its gradient is
             what they send back
The additional operators are as cheap as a copy of what crosses a cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter, Tensor

GATE, RESULT = "stage-gate", "stage-loss"


class Crossing(NamedTuple):
    """A tensor that goes from one stage to later ones."""

    tensor: str
    bytes: int
    backward: bool
    """Whether its gradient comes back."""


def flowing(graph: OperatorGraph) -> frozenset[str]:
    """The tensors that depend on a trainable parameter and can have a gradient."""
    names = {parameter.tensor.name for parameter in graph.parameters if parameter.trainable}
    for operator in graph.operators:
        if any(name in names for name in operator.inputs):
            names |= {
                tensor.name
                for tensor in operator.outputs
                if tensor.spec.dtype.startswith(("float", "bfloat"))
            }
    return frozenset(names)


def crossings(graph: OperatorGraph, before: Iterable[str]) -> tuple[Crossing, ...]:
    """What crosses the cut behind some operators."""
    early = set(before)
    flows = flowing(graph)
    return tuple(
        Crossing(output.name, output.spec.bytes, output.name in flows)
        for operator in graph.operators
        if operator.name in early
        for output in operator.outputs
        if any(reader.name not in early for reader in graph.consumers[output.name])
    )


def stage_graph(graph: OperatorGraph, names: Iterable[str], title: str) -> OperatorGraph:
    """The operators of a stage as a graph.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, i=8]
    ... parameter w: float32[o=2, i=8]
    ... parameter v: float32[p=2, o=2]
    ... operator y: y: float32[n=4, o=2] = linear(x, w)
    ... operator z: z: float32[n=4, p=2] = linear(y, v)
    ... operator l: l: float32[] = sum(z)
    ... loss l''')
    >>> [str(tensor) for tensor in stage_graph(graph, ["z", "l"], "second").inputs]
    ['y: float32[n=4, o=2]']
    """
    chosen = set(names)
    operators = [operator for operator in graph.operators if operator.name in chosen]
    if not operators:
        raise InputError(f"stage {title!r} has no operator", "give every stage some")
    read = dict.fromkeys(
        name for operator in operators for name in operator.inputs if name is not None
    )
    produced = {tensor.name for operator in operators for tensor in operator.outputs}
    flows = flowing(graph)
    entering = [name for name in read if name in graph.producers and name not in produced]
    gates = [name for name in entering if name in flows]
    gated = [_gate(graph.tensors[name]) for name in gates]
    parameters = [parameter for parameter in graph.parameters if parameter.tensor.name in read]
    parameters += [gate for gate, _ in gated]
    renamed = {name: add.outputs[0].name for name, (_, add) in zip(gates, gated, strict=True)}
    inside = [add for _, add in gated]
    inside += [
        msgspec.structs.replace(
            operator,
            inputs=tuple(
                renamed.get(name, name) if name is not None else None for name in operator.inputs
            ),
        )
        for operator in operators
    ]
    loss, added = _result(graph, chosen, produced & flows)
    return OperatorGraph(
        name=f"{graph.name}, {title}",
        inputs=(
            *(tensor for tensor in graph.inputs if tensor.name in read),
            *(graph.tensors[name] for name in entering),
        ),
        parameters=tuple(parameters),
        buffers=tuple(buffer for buffer in graph.buffers if buffer.name in read),
        operators=(*inside, *added),
        outputs=(loss,),
        loss=loss,
    )


def _gate(tensor: Tensor) -> tuple[Parameter, Operator]:
    """A trainable number, and the operator that adds it to what enters."""
    number = Tensor(name=f"{GATE}.{tensor.name}", dtype=tensor.dtype, dims=(("one", 1),))
    added = msgspec.structs.replace(tensor, name=f"{tensor.name}.{GATE}")
    add = Operator(name=added.name, kind="add", inputs=(tensor.name, number.name), outputs=(added,))
    return Parameter(tensor=number), add


def _result(
    graph: OperatorGraph, chosen: set[str], produced: set[str]
) -> tuple[str, tuple[Operator, ...]]:
    """The loss of a stage, and the operators that make it of what leaves."""
    if graph.loss is not None and graph.producers[graph.loss].name in chosen:
        return graph.loss, ()
    leaving = [
        crossing.tensor
        for crossing in crossings(graph, chosen)
        if crossing.tensor in produced and crossing.backward
    ]
    if not leaving:
        raise InputError(
            "a stage makes nothing that a later one learns from", "cut the graph elsewhere"
        )
    added: list[Operator] = []
    total = ""
    for name in leaving:
        tensor = graph.tensors[name]
        summed = Tensor(name=f"{name}.{RESULT}", dtype=tensor.dtype, dims=())
        added.append(Operator(name=summed.name, kind="sum", inputs=(name,), outputs=(summed,)))
        if total:
            both = Tensor(name=f"{summed.name}.both", dtype=tensor.dtype, dims=())
            added.append(
                Operator(name=both.name, kind="add", inputs=(total, summed.name), outputs=(both,))
            )
            total = both.name
        else:
            total = summed.name
    return total, tuple(added)
