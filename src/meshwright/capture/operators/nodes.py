"""Facts of one `torch.fx` node: kind, aliasing, dtype and shape, module path, source line. Enters:
a node of `torch.fx`. Leaves: plain facts.

Knows neither the program around the node nor the graph that it becomes part of.
"""

from __future__ import annotations

import operator
import re
from pathlib import Path

import torch
from torch import fx
from torch._ops import OpOverload

from meshwright.base.errors import InputError
from meshwright.capture.operators.aten import kind_of, tensors_in
from meshwright.capture.operators.node_names import layer_path
from meshwright.capture.operators.source_lines import is_user_file
from meshwright.graph.operator_graph import Spec

_LOCATION = re.compile(r'File "([^"]+)", line (\d+)')


def is_tensor(value: object) -> bool:
    """Whether an argument is a node that gives one tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def kind_of_node(node: fx.Node) -> str | None:
    """The kind of operator that a node calls, if it calls one."""
    return kind_of(node.target) if isinstance(node.target, OpOverload) else None


def mutated_node(node: fx.Node) -> fx.Node | None:
    """The node whose memory an operator writes into: its first argument, or its `out`."""
    if not isinstance(node.target, OpOverload):
        return None
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written = node.kwargs.get(argument.name) or node.args[place]
            assert isinstance(written, fx.Node)
            return written
    return None


def source_of_view(node: fx.Node) -> fx.Node | None:
    """The node whose memory a node shares: what it is a view of, or what it has written.

    Schemas do not tell: `reshape` is a view or a copy, as strides allow. Fake tensors do.
    """
    first = mutated_node(node) or (node.args[0] if node.args else None)
    if not isinstance(first, fx.Node):
        return None
    # One of several results shares with what all of them are views of.
    giver = first.args[0] if node.target is operator.getitem else first
    shares = isinstance(giver, fx.Node) and not _memory(node).isdisjoint(_memory(giver))
    return first if shares else None


def root_of_view(node: fx.Node) -> fx.Node:
    """The node whose memory a node shares by however many views."""
    source = source_of_view(node)
    return node if source is None else root_of_view(source)


def _memory(node: fx.Node) -> set[int]:
    """The storages of a node's results."""
    tensors = (value for value in tensors_in(node.meta.get("val")) if torch.is_tensor(value))
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def spec_of(node: fx.Node, value: torch.Tensor) -> Spec:
    """Dtype and shape of a node's result."""
    if not all(isinstance(size, int) for size in value.shape):
        raise InputError(
            f"the shape ({', '.join(map(str, value.shape))}) of {node.name!r} depends on data"
            f"{place(node)}",
            "select with a mask or with torch.where, which keep the shape",
        )
    return Spec(str(value.dtype).removeprefix("torch."), tuple(value.shape))


def stride_order(node: fx.Node) -> tuple[int, ...]:
    """The order of dims in which what `as_strided` reads lies in memory, row by row.

    A graph says nothing of strides, so that anything but the elements of one tensor is refused.
    """
    source = node.args[0]
    assert isinstance(source, fx.Node)
    whole, read = source.meta["val"], node.meta["val"]
    order = tuple(sorted(range(whole.dim()), key=lambda dim: -whole.stride(dim)))
    steps = [(n - 1) * step for n, step in zip(read.shape, read.stride(), strict=True)]
    inside = read.numel() > 0 and read.storage_offset() + sum(steps) < whole.numel()
    if not whole.permute(order).is_contiguous() or whole.storage_offset() or not inside:
        raise unsupported(
            node,
            "as_strided on memory that is not all of one tensor",
            "call contiguous() first, or use unfold, slices and transposes",
        )
    return order


def layer_of(node: fx.Node, root: str) -> str:
    """The path of the module call that a node stands in."""
    stack = node.meta.get("nn_module_stack") or {}
    return layer_path([path for path, _ in stack.values()], root)


def place(node: fx.Node) -> str:
    """Where the user's model calls it: ' at FILE:LINE', or nothing if only PyTorch's modules do."""
    lines = _LOCATION.findall(node.meta.get("stack_trace") or "")
    user_lines = [line for line in lines if is_user_file(Path(line[0]))]
    return f" at {user_lines[-1][0]}:{user_lines[-1][1]}" if user_lines else ""


def unsupported(node: fx.Node, what: str, remedy: str) -> InputError:
    """The sentence about something in the user's model that has no graph."""
    return InputError(f"the model uses {what}{place(node)}, which is not captured", remedy)
