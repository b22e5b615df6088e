"""Loads the model of a plan, with the batch, shapes and dtypes that the plan has.

Enters: a plan and where its model comes from. Leaves: an `Example` that fits the plan's graph, or a
sentence that says what does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.load import load_example
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.capture.reference_executor import tensors_of
from meshwright.capture.source.example import Example
from meshwright.graph.counts import is_differentiable
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan


def example_of_plan(plan: Plan, source: str) -> Example:
    """The model with weights and inputs of the plan's shapes, in the plan's dtypes."""
    return example_of_graph(plan.graph, plan.batch, source)


def example_of_graph(graph: OperatorGraph, batch: int | None, source: str) -> Example:
    """The same for a graph, of which inputs, parameters and buffers are looked at."""
    example = load_example(source, batch, torch.device("cpu"))
    if batch is None and _misfit(example, graph) and graph.inputs[0].shape:
        # The plan was not saved by a verb, which would have said the batch; what is tried is
        # compared with the plan below, so that a wrong guess is never run.
        example = load_example(source, graph.inputs[0].shape[0], torch.device("cpu"))
    misfit = _misfit(example, graph)
    if misfit:
        raise InputError(f"{source!r} is not what was planned: {misfit}", "plan this model anew")
    cast_model_as_planned(example.model, graph)
    return _with_planned_inputs(example, graph)


def _misfit(example: Example, graph: OperatorGraph) -> str:
    """The first input whose shape is not the plan's, in words."""
    tensors = tensors_of(example)
    if len(tensors) != len(graph.inputs):
        return f"it takes {len(tensors)} tensors, and the plan {len(graph.inputs)}"
    for value, tensor in zip(tensors, graph.inputs, strict=True):
        if tuple(value.shape) != tensor.shape:
            return (
                f"input {tensor.name!r} has shape {tuple(value.shape)}, and in the plan "
                f"{tensor.shape}"
            )
    return ""


def cast_batch_as_planned(tensors: Sequence[Tensor], graph: OperatorGraph) -> tuple[Tensor, ...]:
    """A batch whose real tensors have the dtypes of the graph's inputs, and its complex ones.

    What else differs stays as it is: a step refuses it.
    """
    if len(tensors) != len(graph.inputs) or not all(
        isinstance(tensor, Tensor) for tensor in tensors
    ):
        return tuple(tensors)
    pairs = zip(tensors, graph.inputs, strict=True)
    return tuple(_in_dtype(tensor, torch_dtype(planned.dtype)) for tensor, planned in pairs)


def _in_dtype(tensor: Tensor, planned: torch.dtype) -> Tensor:
    both = tensor.dtype, planned
    real = all(dtype.is_floating_point for dtype in both)
    return tensor.to(planned) if real or all(dtype.is_complex for dtype in both) else tensor


def _with_planned_inputs(example: Example, graph: OperatorGraph) -> Example:
    arguments = example.inputs, dict(example.named), example.targets
    cast = iter(cast_batch_as_planned(tensors_of(example), graph))
    inputs, named, targets = pytree.tree_map_only(Tensor, lambda _: next(cast), arguments)
    return msgspec.structs.replace(example, inputs=inputs, named=named, targets=targets)


def cast_model_as_planned(model: nn.Module, graph: OperatorGraph) -> None:
    """Give every parameter and buffer the dtype that the plan has for it, in place.

    Others stay as they are: `model.to(dtype)` would make all alike, and real what is complex.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for planned in graph.parameters:
        for name in (planned.tensor.name, *planned.also):
            if name in parameters and is_differentiable(planned.tensor.dtype):
                parameter = parameters[name]
                parameter.data = parameter.data.to(torch_dtype(planned.tensor.dtype))
    modules = dict(model.named_modules(remove_duplicate=False))
    for buffer in graph.buffers:
        path, _, last = buffer.name.rpartition(".")
        value = modules[path]._buffers.get(last) if path in modules else None
        if isinstance(value, Tensor) and is_differentiable(buffer.dtype):
            modules[path]._buffers[last] = value.to(torch_dtype(buffer.dtype))
