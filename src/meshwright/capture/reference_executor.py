"""Reference executor: a graph run operator by operator with PyTorch's kernels, on one device.

Enters: a graph and a value for each of its inputs, parameters and buffers. Leaves: its outputs,
through which gradients flow back. Slow and plain: the reference that captures, rewrites and
sharded runs are compared with. Values that enter are never changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.execution.guarding import check_guards
from meshwright.capture.execution.kernels import run_operator
from meshwright.capture.export import exported
from meshwright.capture.source.example import MODEL, Example, Step
from meshwright.graph.operator_graph import OperatorGraph


def execute(graph: OperatorGraph, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of a graph by name; random operators draw in the order of the graph."""
    refuse_missing(graph, values)
    check_guards(graph, values)
    present = dict(values)
    uses = Counter(name for operator in graph.operators for name in operator.inputs)
    uses.update(graph.outputs)
    for operator in graph.operators:
        arguments = tuple(None if name is None else present[name] for name in operator.inputs)
        results = run_operator(operator.kind, arguments, operator.attributes)
        present |= zip((tensor.name for tensor in operator.outputs), results, strict=False)
        for name in filter(None, operator.inputs):
            uses[name] -= 1
            if not uses[name]:
                present.pop(name, None)
    return {name: present[name] for name in graph.outputs}


def refuse_missing(graph: OperatorGraph, values: Mapping[str, Tensor]) -> None:
    """A graph runs only with a value for all that enters it."""
    for tensor in (*graph.inputs, *(p.tensor for p in graph.parameters), *graph.buffers):
        if tensor.name not in values:
            raise InputError(
                f"there is no value for {tensor.name!r} of graph {graph.name!r}",
                "give one for every input, parameter and buffer",
            )


def tensors_of(example: Example) -> list[Tensor]:
    """The tensors that enter one call of an example, in the order of its graph's inputs."""
    leaves = pytree.tree_leaves((example.inputs, dict(example.named), example.targets))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def values_of(example: Example, graph: OperatorGraph) -> dict[str, Tensor]:
    """The values that an example's own model and inputs give to its captured graph."""
    step = Step(example)
    state = {**dict(step.named_parameters()), **dict(step.named_buffers())}
    state = {name.removeprefix(f"{MODEL}."): value for name, value in state.items()}
    if any(buffer.name not in state for buffer in graph.buffers):
        # Constants that the forward pass makes are known to its trace alone.
        constants = exported(example, graph.name).constants
        state = {name.removeprefix(f"{MODEL}."): c for name, c in constants.items()} | state
    names = (tensor.name for tensor in graph.inputs)
    entering = dict(zip(names, tensors_of(example), strict=True))
    known = {tensor.name for tensor in graph.definitions()}
    return {name: value for name, value in (state | entering).items() if name in known}
