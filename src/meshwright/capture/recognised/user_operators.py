"""User-defined operators: definitions attached to a captured graph. Enters: a captured graph and
definitions. Leaves: the graph in which such operators carry their definition, as `graph.families`
reads it.

A definition tells of the operator that its kernel names (`library::operator`), or else of every
operator of its own name, whatever the library. Shapes have to be those that were traced, and the
kernel has to do what the line says (`capture.trial`): what a user claims is tried, never trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshwright.base.errors import InputError
from meshwright.capture.execution.kernels import NOTES
from meshwright.capture.operators.aten import attribute, overloads
from meshwright.capture.recognised.trial import tried
from meshwright.graph.counts import tensors_requiring_grad
from meshwright.graph.families import BUILT_IN, family_of
from meshwright.graph.family import DEFINITION, PYTHON_KERNEL, ShapeError
from meshwright.graph.notation import Definition, parse_definition
from meshwright.graph.operator_graph import Attributes, Call, Operator, OperatorGraph, Value
from meshwright.rewrite.graphs.kinds import carried


def with_definitions(
    graph: OperatorGraph, operators: Mapping[str, Definition]
) -> tuple[OperatorGraph, tuple[str, ...]]:
    """The graph in which operators carry their definitions, and what could not be tried out."""
    if not operators:
        return graph, ()
    marked = tuple(_with_its_definition(operator, operators) for operator in graph.operators)
    defined = msgspec.structs.replace(graph, operators=marked)
    new = [
        operator
        for operator, before in zip(marked, graph.operators, strict=True)
        if operator is not before
    ]
    return defined, _untried(defined, new)


def _with_its_definition(operator: Operator, operators: Mapping[str, Definition]) -> Operator:
    """An operator with the definition that tells of it; a saved graph's have been tried before."""
    definition = definition_of(operator.kind, operators)
    carried_line = dict(operator.attributes).get(DEFINITION)
    if definition is None or carried_line == definition.line:
        return operator
    if carried_line is not None:
        raise InputError(
            f"operator {operator.name!r} is defined as {str(carried_line)!r} in the graph, and "
            f"here as {definition.line!r}",
            "capture the model anew, or correct the line",
        )
    return _marked(operator, definition)


def definition_of(kind: str, operators: Mapping[str, Definition]) -> Definition | None:
    """The definition that tells of a kind, if there is one.

    >>> from meshwright.graph.notation import parse_definitions
    >>> operators = parse_definitions("twice(x)[i..] = 2 * x[i..]")
    >>> definition_of("mylib.twice", operators) is operators["twice"]
    True
    """
    if kind in BUILT_IN:
        return None
    named = [definition for definition in operators.values() if _tells_of(definition, kind)]
    return named[0] if named else None


def definitions_in(graph: OperatorGraph) -> dict[str, Definition]:
    """The definitions that a graph's operators carry, each with its kernel."""
    definitions = {}
    for operator in graph.operators:
        attributes = dict(operator.attributes)
        if DEFINITION in attributes:
            definition = parse_definition(str(attributes[DEFINITION]))
            torch_operator = operator.kind.replace(".", "::") if "." in operator.kind else ""
            kernel = str(attributes.get(PYTHON_KERNEL, torch_operator))
            definitions[definition.name] = msgspec.structs.replace(definition, kernel=kernel)
    return definitions


def _tells_of(definition: Definition, kind: str) -> bool:
    if "::" in definition.kernel:
        return carried(definition)[0] == kind
    return definition.name == kind.rpartition(".")[2]


def _marked(operator: Operator, definition: Definition) -> Operator:
    """An operator with its definition, and all attributes that the line names."""
    values: dict[str, Value] = {k: v for k, v in operator.attributes if k not in NOTES}
    for name in definition.parameters:
        if name not in values:
            values[name] = _default(operator, name, definition)
    further = sorted(values.keys() - set(definition.parameters))
    if further:
        raise InputError(
            f"operator {operator.name!r} has the attribute {further[0]!r}, of which the definition "
            f"of {definition.name!r} does not tell",
            f"write {definition.name}[{further[0]}](...) and say what it does",
        )
    notes = {DEFINITION: definition.line}
    if definition.kernel and "::" not in definition.kernel:
        notes[PYTHON_KERNEL] = definition.kernel
    attributes: Attributes = tuple(sorted({**values, **notes}.items()))
    return msgspec.structs.replace(operator, attributes=attributes)


def _default(operator: Operator, name: str, definition: Definition) -> Value:
    for overload in overloads(operator.kind):
        for argument in overload._schema.arguments:
            if argument.name == name and argument.has_default_value():
                return attribute(argument.default_value)
    raise InputError(
        f"the definition of {definition.name!r} has an attribute {name!r}, which operator "
        f"{operator.name!r} ({operator.kind}) lacks",
        "call it as the operator does, or leave it out",
    )


def _untried(graph: OperatorGraph, operators: Sequence[Operator]) -> tuple[str, ...]:
    """Refuses what does not do what its line says; warnings about what could not be tried."""
    needing = tensors_requiring_grad(graph)
    calls: dict[Call, bool] = {}
    for operator in operators:
        call = graph.call(operator)
        _require_shapes(operator, call)
        learns = any(tensor.name in needing for tensor in operator.outputs)
        calls[call] = calls.get(call, False) or learns
    warnings: dict[str, None] = {}
    for call, learns in calls.items():
        why = tried(call, learns=learns)
        if why is not None:
            warnings[
                f"the definition of {call.kind} was not tried out ({why}): its splits are taken "
                "from the line alone"
            ] = None
    return tuple(warnings)


def _require_shapes(operator: Operator, call: Call) -> None:
    """Refuse a line that says another shape than was traced."""
    try:
        specs = family_of(call).outputs(call)
    except ShapeError as error:
        raise InputError(
            f"operator {operator.name!r} ({call.kind}) does not fit its definition: {error}",
            "correct the line",
        ) from None
    if specs != call.outputs:
        seen = ", ".join(str(list(spec.shape)) for spec in call.outputs)
        raise InputError(
            f"operator {operator.name!r} ({call.kind}) gives {seen}, and by its definition "
            f"{list(specs[0].shape)}",
            "correct the line",
        )
