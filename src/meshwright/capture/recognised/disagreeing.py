"""Shape inference against PyTorch: operators whose families disagree become opaque. Enters: a
captured graph. Leaves: the same graph with such operators kept opaque.

What PyTorch traced is the truth. Where a family expects other shapes, it does not know this use
of its kind, and what it says of costs and splits would be wrong too. Such an operator, and what
it computes, stays in the graph under its full name, "aten.KIND", of which no family tells.
"""

from __future__ import annotations

import msgspec

from meshwright.graph.families import family_of
from meshwright.graph.family import ShapeError
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph


def with_opaque_mismatches(graph: OperatorGraph) -> OperatorGraph:
    """The graph with every operator opaque whose family expects another result."""
    verdicts: dict[Call, bool] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        call = graph.call(operator)
        if call not in verdicts:
            verdicts[call] = _agrees(call)
        kind = operator.kind if verdicts[call] else f"aten.{operator.kind}"
        operators.append(msgspec.structs.replace(operator, kind=kind))
    if all(verdicts.values()):
        return graph
    return msgspec.structs.replace(graph, operators=tuple(operators))


def _agrees(call: Call) -> bool:
    """Whether the family expects what was traced.

    Left to `check` are kinds of other libraries, whose families their users gave, and products of
    mixed dtypes: no device runs those, so the example inputs are wrong.
    """
    if "." in call.kind:
        return True
    family = family_of(call)
    if family.products and len({spec.dtype for spec in call.inputs[:2] if spec is not None}) > 1:
        return True
    try:
        return family.outputs(call) == call.outputs
    except ShapeError:
        return False
