"""Type inference of sharded tensors over a graph, and erasure of its parallel operators.

Enters: an `OperatorGraph` with parallel operators. Leaves: the type of each tensor by its name, or
the graph on one device. Inputs, parameters and buffers come in one piece. An operator that no rule
speaks of runs on whole tensors only, so all that it reads has to lie in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.notation import Definition, MisfitError
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Spec
from meshwright.graph.operator_graph import Tensor as GraphTensor
from meshwright.rewrite.graphs.kinds import read, write
from meshwright.rewrite.graphs.readings import OperatorReading
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.types import FRONT, PARALLEL, Type, infer, plain


def types_of(
    graph: OperatorGraph, known: Mapping[str, Definition] = DEFINITIONS
) -> dict[str, Type]:
    """The type of every tensor by its name.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph halves
    ... input x: float32[n=4]
    ... operator cut: y: float32[n=4] = partition(x) {axis=0, degree=2}
    ... output y''')
    >>> types_of(graph)["y"][3]
    TypedAxis(size=4, degree=2, before=0, after=0)
    """
    return typed(graph, readings_of(graph, known), known)


def readings_of(
    graph: OperatorGraph, known: Mapping[str, Definition] = DEFINITIONS
) -> dict[str, OperatorReading | None]:
    """What each operator is to rules, by its name; equal calls are read once."""
    seen: dict[Call, OperatorReading | None] = {}
    readings = {}
    for operator in graph.operators:
        call = graph.call(operator)
        if call not in seen:
            seen[call] = read(call, known)
        readings[operator.name] = seen[call]
    return readings


def typed(
    graph: OperatorGraph,
    readings: Mapping[str, OperatorReading | None],
    known: Mapping[str, Definition] = DEFINITIONS,
) -> dict[str, Type]:
    """The types of a graph whose operators have been read; equal tasks are worked out once."""
    types = {
        tensor.name: plain(tensor.shape)
        for tensor in graph.definitions()
        if tensor.name not in graph.producers
    }
    seen: dict[tuple[Call, tuple[Type, ...]], tuple[Type, ...]] = {}
    for operator in graph.operators:
        inputs = tuple(types[name] for name in operator.inputs if name is not None)
        key = (graph.call(operator), inputs)
        if key not in seen:
            seen[key] = _made(operator.name, key[0], readings[operator.name], inputs, known)
        types |= zip((tensor.name for tensor in operator.outputs), seen[key], strict=True)
    return types


def _made(
    name: str,
    call: Call,
    reading: OperatorReading | None,
    inputs: tuple[Type, ...],
    known: Mapping[str, Definition],
) -> tuple[Type, ...]:
    """The types of the outputs of one operator, called so in the message if it cannot run."""
    if reading is None:
        if any(type_ != plain([axis.size for axis in type_[FRONT:]]) for type_ in inputs):
            raise InputError(
                f"operator {name} is of kind {call.kind}, of which no rule speaks, and reads a "
                f"tensor in pieces",
                "combine and reduce what it reads",
            )
        return tuple(plain(spec.shape) for spec in call.outputs)
    try:
        return infer(reading.operator, reading.settings, [inputs[n] for n in reading.order], known)
    except MisfitError as error:
        raise InputError(
            f"operator {name} ({reading.operator}) does not fit what it reads: {error}",
            "change the degrees of its operands",
        ) from None


def erase(graph: OperatorGraph, known: Mapping[str, Definition] = DEFINITIONS) -> OperatorGraph:
    """The graph on one device: parallel operators are taken out, and dims are whole again.

    Only layouts can be taken out: copies over dims, sums of copies, or copies of sums change what
    is computed.

    >>> from meshwright.graph.text import parse_graph
    >>> print(erase(parse_graph('''graph halves
    ... input x: float32[n=4]
    ... operator cut: y: float32[n=4] = partition(x) {axis=0, degree=2}
    ... operator f: zs: float32[n=4] = relu(y)
    ... operator join: z: float32[n=4] = combine(zs) {axis=0, degree=2}
    ... output z''')), end="")
    graph halves
    input x: float32[n=4]
    operator f: z: float32[n=4] = relu(x)
    output z
    """
    types_of(graph, known)
    origin: dict[str, str] = {}
    for operator in graph.operators:
        if operator.kind in PARALLEL:
            _refuse_change(operator)
            source = operator.inputs[0]
            assert source is not None
            origin[operator.outputs[0].name] = origin.get(source, source)
    renamed = _names_kept(graph, origin)
    now = {name: renamed.get(origin.get(name, name), origin.get(name, name))
           for name in graph.tensors}  # fmt: skip
    specs = {name: spec for name, spec in graph.specs.items() if name not in graph.producers}
    operators: list[Operator] = []
    for operator in graph.operators:
        if operator.kind not in PARALLEL:
            operators.append(_whole(graph, operator, now, specs, known))
            specs |= {tensor.name: tensor.spec for tensor in operators[-1].outputs}
    return msgspec.structs.replace(
        graph,
        operators=tuple(operators),
        outputs=tuple(now[name] for name in graph.outputs),
        loss=None if graph.loss is None else now[graph.loss],
    )


def _refuse_change(operator: Operator) -> None:
    axis = dict(operator.attributes)["axis"]
    layout = {"replicate": axis in ("copies", "steps"), "reduce": axis == "sums"}
    if not layout.get(operator.kind, True):
        raise InputError(
            f"operator {operator.name} is a {operator.kind} over {axis}, which is no layout",
            "give a graph that rules made of one for one device",
        )


def _names_kept(graph: OperatorGraph, origin: Mapping[str, str]) -> dict[str, str]:
    """Tensors that take the name of an output which a parallel operator made of them."""
    ends = dict.fromkeys((*graph.outputs, *filter(None, (graph.loss,))))
    renamed: dict[str, str] = {}
    for name in ends:
        source = origin.get(name, name)
        if source in graph.producers and source not in ends:
            renamed.setdefault(source, name)
    return renamed


def _whole(
    graph: OperatorGraph,
    operator: Operator,
    now: Mapping[str, str],
    specs: Mapping[str, Spec],
    known: Mapping[str, Definition],
) -> Operator:
    """An operator on whole tensors: its sizes may have been those of a micro-batch."""
    inputs = tuple(None if name is None else now[name] for name in operator.inputs)
    input_specs = tuple(None if name is None else specs[name] for name in inputs)
    shapes = [tensor.shape for tensor in operator.outputs]
    attributes = operator.attributes
    call = graph.call(operator)
    if input_specs != call.inputs and (reading := read(call, known)) is not None:
        operands = [input_spec for n in reading.order if (input_spec := input_specs[n]) is not None]
        writing = write(reading.operator, reading.settings, operands, known)
        shapes, attributes = [spec.shape for spec in writing.outputs], writing.attributes
    outputs = tuple(
        GraphTensor(
            name=now[tensor.name],
            dtype=tensor.dtype,
            dims=tuple((dim, size) for (dim, _), size in zip(tensor.dims, shape, strict=True)),
        )
        for tensor, shape in zip(operator.outputs, shapes, strict=True)
    )
    return msgspec.structs.replace(operator, inputs=inputs, outputs=outputs, attributes=attributes)
