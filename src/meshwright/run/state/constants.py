"""Non-persistent buffers and constant tensors of a model (rotary frequencies, masks). Enters: a
module and the graph that was captured of it. Leaves: their values by the names of the graph.

What a `forward` makes anew in every call is known to its trace alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from meshwright.base.errors import InputError
from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.counts import is_differentiable
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.operator_graph import Tensor as Described


def constants_of(model: nn.Module, graph: OperatorGraph) -> dict[str, Tensor]:
    """The constants of a graph that the module holds, in the dtypes of the graph.

    >>> import torch
    >>> from meshwright.graph.text import parse_graph
    >>> model = nn.Module()
    >>> model.register_buffer("angles", torch.tensor([0.5, 0.25]), persistent=False)
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=2]
    ... buffer angles: float32[n=2]
    ... operator y: y: float32[n=2] = mul(x, angles)
    ... output y''')
    >>> constants_of(model, graph)
    {'angles': tensor([0.5000, 0.2500])}
    """
    state, buffers = model.state_dict(), dict(model.named_buffers(remove_duplicate=False))
    held = {
        buffer.name: buffers.get(buffer.name, _attribute(model, buffer.name))
        for buffer in graph.buffers
        if buffer.name not in state
    }
    return cast_constants(
        {name: value for name, value in held.items() if value is not None and not value.is_meta},
        graph,
    )


def cast_constants(values: Mapping[str, Tensor], graph: OperatorGraph) -> dict[str, Tensor]:
    """Constants in the dtypes of the graph, if they have its shapes."""
    buffers = {buffer.name: buffer for buffer in graph.buffers}
    return {
        name: _as_described(value, buffers[name])
        for name, value in values.items()
        if name in buffers
    }


def _as_described(value: Tensor, buffer: Described) -> Tensor:
    if tuple(value.shape) != buffer.shape:
        raise InputError(
            f"constant {buffer.name!r} of the model has shape {tuple(value.shape)}, and in the "
            f"plan {buffer.shape}",
            "give the model that was captured",
        )
    value = value.detach()
    return value.to(torch_dtype(buffer.dtype)) if is_differentiable(buffer.dtype) else value


def _attribute(model: nn.Module, name: str) -> Tensor | None:
    """A tensor that a module keeps without having registered it."""
    path, _, last = name.rpartition(".")
    modules = dict(model.named_modules(remove_duplicate=False))
    value = vars(modules[path]).get(last) if path in modules else None
    return value if isinstance(value, Tensor) else None
