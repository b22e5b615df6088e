"""Runtime guards: values for which the model would take another branch are refused. Enters: a graph
and the values that enter a step, whole. Leaves: nothing, or an `InputError` that names the line of
the model whose branch other values take.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.operator_graph import Guard, OperatorGraph


def check_guards(graph: OperatorGraph, values: Mapping[str, Tensor]) -> None:
    """The model does for these values what the graph does."""
    if not graph.guards:
        return
    present = dict(values)
    for operator in graph.checks:
        arguments = tuple(None if name is None else present[name] for name in operator.inputs)
        results = run_operator(operator.kind, arguments, operator.attributes)
        present |= zip((tensor.name for tensor in operator.outputs), results, strict=False)
    for guard in graph.guards:
        _refuse_another(guard, present[guard.tensor])


def _refuse_another(guard: Guard, tensor: Tensor) -> None:
    value = type(guard.value)(tensor.item())
    if value != guard.value:
        raise InputError(
            f"the model branches on data at {guard.line}, where it read {guard.value} when it was "
            f"captured and reads {value} for this batch",
            "give batches that take the same branch (padded alike, say), or capture the model "
            "with an example like this one",
        )
