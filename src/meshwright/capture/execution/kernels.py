"""Kernel dispatch: what PyTorch runs for each kind of operator.

Enters: a kind, tensors and attributes. Leaves: the results that the graph's families tell of.
ATen's own operators run by their schema (`aten`); the table below holds the kinds whose call
differs from ATen's. A user's operator may name a Python function (`python_kernel`), which is called
with its tensors and then, by name, its other attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from torch import Tensor, contiguous_format
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.execution.dropless_experts import routed
from meshwright.capture.operators import aten
from meshwright.capture.operators.autograd_functions import apply_function
from meshwright.capture.operators.ctc import ctc_losses
from meshwright.capture.source.function import loaded_function
from meshwright.capture.source.model_source import parse_source
from meshwright.capture.zoo.grouped_products import grouped_mm
from meshwright.graph.family import DEFINITION, PYTHON_KERNEL
from meshwright.graph.operator_graph import Attributes, Value

NOTES = {"independent", DEFINITION, PYTHON_KERNEL}
"""Attributes that say something of an operator and are no argument of it."""

Arguments = Sequence[Tensor | None]
Kernel = Callable[[Arguments, Mapping[str, Value]], object]


def run_operator(kind: str, inputs: Arguments, attributes: Attributes) -> tuple[Tensor, ...]:
    """The results of one operator.

    >>> import torch
    >>> run_operator("relu", (torch.tensor([-1.0, 1.0]),), ())
    (tensor([0., 1.]),)
    """
    kept = tuple((key, value) for key, value in attributes if key not in NOTES)
    named = dict(attributes).get(PYTHON_KERNEL)
    kernel = python_kernel(str(named)) if named else KERNELS.get(kind.removeprefix("aten."))
    result = aten.call(kind, inputs, kept) if kernel is None else kernel(inputs, dict(kept))
    return tuple(aten.tensors_in(result))


@cache
def python_kernel(source: str) -> Kernel:
    """The function of a file or module that runs a user's operator."""
    try:
        function = loaded_function(parse_source(source))
    except InputError as error:
        raise error.at(f"kernel {source!r}") from None

    def run(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
        return function(*inputs, **attributes)

    return run


def prepared_operator(
    kind: str, present: Sequence[bool], attributes: Attributes
) -> Callable[[Arguments], tuple[Tensor, ...]]:
    """What gives the results of one operator, again and again; `present` says which inputs it has.

    >>> import torch
    >>> prepared_operator("relu", (True,), ())((torch.tensor([-1.0, 1.0]),))
    (tensor([0., 1.]),)
    """
    if kind.removeprefix("aten.") in KERNELS or PYTHON_KERNEL in dict(attributes):
        return lambda inputs: run_operator(kind, inputs, attributes)
    kept = tuple((key, value) for key, value in attributes if key not in NOTES)
    run = aten.prepared(kind, present, kept)

    def prepared(inputs: Arguments) -> tuple[Tensor, ...]:
        result = run(inputs)
        return (result,) if isinstance(result, Tensor) else tuple(aten.tensors_in(result))

    return prepared


def _on_copied_statistics(kind: str) -> Kernel:
    """With copies of the running statistics, which ATen updates in place."""

    def kernel(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
        copies = [None if t is None else t.clone() for t in inputs[3:]]
        return aten.call(kind, (*inputs[:3], *copies), tuple(attributes.items()))

    return kernel


def _embedding_bag(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """Bags of equal size as the rows of a matrix, or ATen's call; only the sums of the bags."""
    table, indices, _, weights = (*inputs, None, None)[:4]
    assert table is not None
    assert indices is not None
    if indices.dim() == 1:
        return next(aten.tensors_in(aten.call("embedding_bag", inputs, tuple(attributes.items()))))
    modes = ("sum", "mean", "max")
    mode, padding = attributes.get("mode", 0), attributes.get("padding_idx")
    assert isinstance(mode, int)
    assert padding is None or isinstance(padding, int)
    return functional.embedding_bag(
        indices,
        table,
        mode=modes[mode],
        scale_grad_by_freq=bool(attributes.get("scale_grad_by_freq", False)),
        per_sample_weights=weights,
        include_last_offset=False,
        padding_idx=padding,
    )


def _grouped_product(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """Ours: ATen's takes neither float64 nor, on meta tensors, float32."""
    return grouped_mm(*inputs)


def _routed_experts(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """Ours: a mixture of experts."""
    return routed(run_operator, inputs, attributes)


def _own_function(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    tensors = [tensor for tensor in inputs if tensor is not None]
    return apply_function(tensors, str(attributes["function"]), str(attributes["arguments"]))


def _ctc_losses(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """By its function: the operator that is traced has no derivative."""
    return ctc_losses(*inputs, **attributes)  # type: ignore[arg-type]


def _linear_relu(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """Ours: what a graph says of two operators that run as one."""
    return aten.call("relu", tuple(aten.tensors_in(aten.call("linear", inputs, ()))), ())


def _of_gates(kind: str) -> Kernel:
    """With gates as rows again where a graph has them as a dim of their own."""

    def kernel(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
        pairs = tuple(attributes.items())
        return aten.call(kind, stacked(inputs, 1 + STATES[kind]), pairs)

    return kernel


STATES = {"lstm": 2, "gru": 1, "lstm_cell": 2, "gru_cell": 1}
"""Kinds of recurrent layers with how many states they have."""


def stacked(inputs: Arguments, first: int) -> tuple[Tensor | None, ...]:
    """Operands of a recurrent layer with the gates of its weights as rows."""
    apart = inputs[first]
    if apart is None or apart.dim() < 3:
        return tuple(inputs)
    weights = (None if weight is None else weight.flatten(0, 1) for weight in inputs[first:])
    return (*inputs[:first], *weights)


def _view(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """A reshape: a graph says nothing of strides, so ours may not allow a view."""
    size = attributes["size"]
    assert isinstance(size, tuple)
    return aten.call("reshape", inputs, (("shape", size),))


def _strided(kind: str) -> Kernel:
    """Of elements that lie row by row, as they did when this was traced."""

    def kernel(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
        x, *rest = inputs
        assert x is not None
        # A clone, since a part of a larger tensor may be contiguous and begin further on.
        return aten.call(
            kind, (x.clone(memory_format=contiguous_format), *rest), tuple(attributes.items())
        )

    return kernel


def _conjugate(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """Values, not a mark on a view: what travels between devices has to be written out."""
    return aten.call("conj_physical", inputs, ())


def _pairs(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
    """As pairs that lie together, whatever the strides."""
    (x,) = inputs
    assert x is not None
    return aten.call("view_as_complex", (x.contiguous(),), ())


def _written(view: str) -> Kernel:
    """A part of a copy written over: ATen's own has no derivative for complex numbers."""

    def kernel(inputs: Arguments, attributes: Mapping[str, Value]) -> object:
        x, value = inputs
        pairs = tuple(attributes.items())
        if x is None or not x.is_complex():
            return aten.call(f"{view}_scatter", inputs, pairs)
        copy = x.clone()
        (part,) = aten.tensors_in(aten.call(view, (copy,), pairs))
        part.copy_(value)
        return copy

    return kernel


KERNELS: Mapping[str, Kernel] = {
    "_conj": _conjugate,
    **{kind: _strided(kind) for kind in ("as_strided", "as_strided_scatter")},
    "_grouped_mm": _grouped_product,
    "batch_norm": _on_copied_statistics("batch_norm"),
    "embedding_bag": _embedding_bag,
    "instance_norm": _on_copied_statistics("instance_norm"),
    "_unsafe_view": _view,
    "linear_relu": _linear_relu,
    "ctc_losses": _ctc_losses,
    **{kind: _of_gates(kind) for kind in STATES},
    **{f"{view}_scatter": _written(view) for view in ("diagonal", "select", "slice")},
    "own_function": _own_function,
    "routed_experts": _routed_experts,
    "view": _view,
    "view_as_complex": _pairs,
}
