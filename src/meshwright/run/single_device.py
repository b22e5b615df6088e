"""The single-device reference: the same steps on one device. Enters: an example with its first
weights, and batches. Leaves: losses, first gradients and weights of plain eager PyTorch.

It knows nothing of plans but which of them must give other numbers, and uses no part of the
executor: it judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example, Step
from meshwright.capture.zoo.grouped_products import grouped_mm
from meshwright.graph.randomness import draws
from meshwright.plan.plan import Plan

Batch = tuple[Tensor, ...]
Update = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Trained(NamedTuple):
    """What is there after some steps, wherever they ran."""

    losses: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    """Of the first step, by parameter."""
    parameters: Mapping[str, Tensor]


WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}


@contextmanager
def double_by_default() -> Iterator[None]:
    """What is made without a dtype, such as a whole number times a real one, is of float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Doubled(TorchFunctionMode):
    """Computes in float64 what a model's own code asks to be float32.

    Models cast to float32 for exactness, as norms and rotary embeddings do; in a model of float64
    that would lose half of the digits. Constants of float32 (class weights of a loss) are widened
    where they meet float64, and grouped products computed by ours: PyTorch's have no float64. What
    is made without a dtype is float64 too.
    """

    def __enter__(self) -> Doubled:
        self._default = double_by_default()
        self._default.__enter__()
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._default.__exit__(*raised)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call, with the wider dtype for the narrower."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        doubled = any(tensor.dtype == torch.float64 for tensor in tensors)
        written = getattr(func, "__name__", "").endswith("_")
        wider = partial(_wider, tensors=doubled and not written)
        positional, named = pytree.tree_map(wider, (tuple(args), dict(kwargs or {})))
        match func:
            case Tensor.float:
                return Tensor.double(*positional, **named)
            case torch._grouped_mm if doubled:
                return grouped_mm(*positional, named["offs"])
            case _:
                return func(*positional, **named)


def _wider(value: Any, *, tensors: bool) -> Any:
    if isinstance(value, torch.dtype):
        return WIDER.get(value, value)
    return (
        value.double()
        if tensors and isinstance(value, Tensor) and value.dtype == torch.float32
        else value
    )


def train_on_one_device(
    example: Example, batches: Iterable[Batch], update: Update, device: torch.device
) -> Trained:
    """Train the example's own model, a step for each batch; it keeps what it has learnt.

    A batch has a tensor for each of the example's, in their order.
    """
    step = Step(example).to(device)
    _unsynchronise(step)
    example_leaves, form = pytree.tree_flatten(
        (example.inputs, dict(example.named), example.targets)
    )
    optimizer = update(step.model.parameters())
    losses, gradients = list[float](), dict[str, Tensor]()
    for batch in batches:
        tensors = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor))
        leaves = [
            _given(next(tensors), leaf, device) if isinstance(leaf, Tensor) else leaf
            for leaf in example_leaves
        ]
        optimizer.zero_grad()
        loss = _forward_and_backward(step, pytree.tree_unflatten(leaves, form))
        _make_dense(step.model)
        gradients = gradients or _gradients(step.model)
        optimizer.step()
        losses.append(loss.item())
    parameters = {name: parameter.detach() for name, parameter in step.model.named_parameters()}
    return Trained(tuple(losses), gradients, parameters)


def _forward_and_backward(step: Step, arguments: tuple[Any, ...]) -> Tensor:
    try:
        loss: Tensor = step(*arguments)
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        # Whatever the model's own code raises.
        raise InputError(
            f"plain PyTorch cannot train the model on one device: {type(error).__name__}: {error}",
            "mend the model, which a plan may train all the same, or run it without a comparison",
        ) from error
    return loss


def _given(tensor: Tensor, example: Tensor, device: torch.device) -> Tensor:
    """A tensor of a batch: a copy, since a model may write into it, that needs a gradient where the
    example does, since reentrant checkpoints ask.
    """
    return tensor.detach().to(device, copy=True).requires_grad_(example.requires_grad)


def _unsynchronise(model: nn.Module) -> None:
    """SyncBatchNorm asks all ranks, of which one alone trains here: it has the whole batch."""
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm):
            module.forward = partial(_BatchNorm.forward, module)  # type: ignore[method-assign]


def _make_dense(model: nn.Module) -> None:
    """Sparse gradients (`Embedding(sparse=True)`) as dense ones, which all optimizers take."""
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """A gradient for each parameter that could have one; zeros where nothing depends on it."""
    return {
        name: torch.zeros_like(parameter)
        if parameter.grad is None
        else parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def refuse_incomparable(plan: Plan) -> None:
    """One device must compute the same numbers, but for rounding."""
    drawing = [operator for operator in plan.graph.operators if draws(operator)]
    if drawing:
        raise InputError(
            f"operator {drawing[0].name!r} draws random numbers, on one device others than on many",
            "compare without dropout (a probability of 0) and without noise",
        )
    normalising = [
        operator
        for operator in plan.graph.operators
        if operator.kind == "batch_norm" and dict(operator.attributes).get("training", True)
    ]
    if normalising and plan.options.micro_batches > 1:
        raise InputError(
            f"operator {normalising[0].name!r} normalises each of {plan.options.micro_batches} "
            "micro-batches by itself, and one device the whole batch",
            "compare a plan with one micro-batch",
        )
