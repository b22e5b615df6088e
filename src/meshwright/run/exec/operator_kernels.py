"""Operator kernels of a rank: random operators, normalisations, all others as captured. Enters: a
piece, and what its device knows. Leaves: a function of its operands.

Most pieces run as `capture.pieces` says. Here are those that have to know more: random ones their
place and the step, normalisations where their statistics are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional

from meshwright.capture.execution.dropless_experts import Through, routed
from meshwright.capture.execution.kernels import run_operator
from meshwright.capture.execution.shard_kernels import Operands, attending, prepared_call
from meshwright.capture.execution.sharded_softmax import JointReductions, attention
from meshwright.graph.family import replaced
from meshwright.graph.operator_graph import Call
from meshwright.graph.randomness import draws
from meshwright.lower.shard_tasks import MemberPiece
from meshwright.run.exec.random_bits import Key, LaterKey, kept, key_of
from meshwright.run.exec.random_operators import drawing
from meshwright.run.exec.sync_batch_norm import Norm, normalised

Kernel = Callable[[Operands], tuple[Tensor, ...]]


class DrawMoment(NamedTuple):
    """What changes from run to run."""

    seed: int
    """Of all random numbers."""
    step: int
    training: bool = True
    """Whether operators are in training mode."""
    again: bool = False
    """Whether a layer runs again."""
    later: Callable[[str], LaterKey] | None = None
    """The key of an operator by its name, while a graph is traced: seed and step enter later."""


class OperatorContext(NamedTuple):
    """What an operator's piece may have to know."""

    name: str
    """The operator's, which tells its random numbers from others'."""
    whole: Call
    """The operator that it is a piece of."""
    micro_batches: int
    """How many make up the whole."""
    together: JointReductions
    """What all-reduces statistics over the devices that share them."""
    through: Through | None
    """What takes tokens to experts on other devices, if there are any."""
    moment: Callable[[], DrawMoment]
    device: torch.device
    exact: bool
    """Whether random numbers depend on their places alone: copies draw the same, and runs again."""
    apart: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """Where a normalisation that shares its running statistics writes what it finds of them."""


def kernel(piece: MemberPiece, around: OperatorContext) -> Kernel:
    """What gives the results of a piece."""
    run = _kernel(piece, around)
    if not piece.silent:
        return run

    def silenced(operands: Operands) -> tuple[Tensor, ...]:
        # They add nothing, but their gradients are what they would be.
        return run(
            tuple(
                counting_nothing(operand) if operand is not None and i in piece.silent else operand
                for i, operand in enumerate(operands)
            )
        )

    return silenced


def counting_nothing(tensor: Tensor) -> Tensor:
    """Zeros, -inf or not, with the gradient of what they stand for.

    >>> mask = torch.tensor([-torch.inf, 1.0], requires_grad=True)
    >>> counting_nothing(mask).tolist(), torch.autograd.grad(counting_nothing(mask).sum(), mask)
    ([0.0, 0.0], (tensor([1., 1.]),))
    """
    zeros: Tensor = _Nothing.apply(tensor)  # type: ignore[no-untyped-call]
    return zeros


class _Nothing(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Tensor:
        return arriving[0]


def _kernel(piece: MemberPiece, around: OperatorContext) -> Kernel:
    call = piece.call
    match call.kind:
        case "dropout" if draws(call):
            return _dropout(piece, around) if around.exact else _drawing(call, "train", around)
        case "alpha_dropout" | "feature_dropout" | "feature_alpha_dropout" if draws(call):
            return _dropout(piece, around)
        case "scaled_dot_product_attention" if draws(call):
            if around.exact or piece.summing:
                return _attention(piece, around)
            return _drawing(call, "dropout_p", around)
        case _ if draws(call):
            return _random(piece, around)
        case "batch_norm" if call.get("training", True):
            return _batch_norm(piece, around)
        case "routed_experts" if around.through is not None:
            return _routed_experts(call, around.through)
        case _ if not any(spec is not None for spec in call.inputs):
            return _made_there(call, around.device)
        case _:
            return prepared_call(call, around.together)


def _routed_experts(call: Call, through: Through) -> Kernel:
    """Experts of which other devices hold some."""
    attributes = dict(call.attributes)
    return lambda operands: (routed(run_operator, operands, attributes, through),)


def _made_there(call: Call, device: torch.device) -> Kernel:
    """What makes tensors of nothing has them on the rank's device; a graph names no devices."""
    prepared = prepared_call(call)
    return lambda operands: tuple(tensor.to(device) for tensor in prepared(operands))


def _drawing(call: Call, key: str, around: OperatorContext) -> Kernel:
    """The library's own operator, with its own random numbers; in evaluation without any."""
    still = msgspec.structs.replace(
        call, attributes=replaced(call.attributes, **{key: False if key == "train" else 0.0})
    )
    drawing, still_run = prepared_call(call), prepared_call(still)
    return lambda operands: (drawing if around.moment().training else still_run)(operands)


def _random(piece: MemberPiece, around: OperatorContext) -> Kernel:
    """What draws, whatever the mode; an operator that has modes draws in training alone."""
    call = piece.call
    draw = drawing(piece, around.whole, around.device)
    modes = {"train": False, "training": False}
    still = {key: off for key, off in modes.items() if call.get(key) is not None}
    if not still:
        return lambda operands: draw(operands, _drawn(around))
    quiet = prepared_call(
        msgspec.structs.replace(call, attributes=replaced(call.attributes, **still))
    )
    return lambda operands: (
        draw(operands, _drawn(around)) if around.moment().training else quiet(operands)
    )


def _drawn(around: OperatorContext) -> Key:
    """A key for one operator in one step."""
    now = around.moment()
    if now.later is not None:
        return now.later(around.name)
    return key_of(now.seed, now.step, around.name)


def _number(call: Call, key: str, default: float) -> float:
    value = call.get(key, default)
    assert isinstance(value, int | float)
    return float(value)


def _dropout(piece: MemberPiece, around: OperatorContext) -> Kernel:
    """By place; a channel is dropped as a whole where the kind says so."""
    kind, probability = piece.call.kind, _number(piece.call, "p", 0.5)
    box, shape = piece.outputs[0], around.whole.outputs[0].shape
    if kind.startswith("feature"):
        spatial = len(shape) - 2
        box, shape = (*box[:2], *((0, 1),) * spatial), (*shape[:2], *(1,) * spatial)

    def run(operands: Operands) -> tuple[Tensor, ...]:
        (x,) = operands
        assert x is not None
        if not around.moment().training:
            return (x,)
        mask = kept(_drawn(around), box, shape, 1 - probability, x.device)
        if kind.endswith("alpha_dropout"):
            return (_self_normed(x, mask.to(x.dtype), probability),)
        return (x * mask / (1 - probability) if probability < 1 else x * 0,)

    return run


SELU_LIMIT = -1.7580993408473766
"""What a SELU tends to for small inputs, which takes the place of what alpha dropout drops."""


def _self_normed(x: Tensor, mask: Tensor, probability: float) -> Tensor:
    """Dropped to SELU's limit, then scaled and shifted to mean 0 and variance 1 (Klambauer et al.
    2017).
    """
    if probability == 1:
        return x * 0
    scale: float = ((SELU_LIMIT**2 * probability + 1) * (1 - probability)) ** -0.5
    shift = -scale * SELU_LIMIT * probability
    return scale * (x * mask + SELU_LIMIT * (1 - mask)) + shift


def _attention(piece: MemberPiece, around: OperatorContext) -> Kernel:
    """Attention with its weights in the open, so that each can be dropped by its place."""
    call = piece.call
    probability = _number(call, "dropout_p", 0.0)
    query, key = around.whole.inputs[0], around.whole.inputs[1]
    assert query is not None
    assert key is not None
    assert piece.inputs[1] is not None
    box = (*piece.outputs[0][:-1], piece.inputs[1][-2])
    shape = (*query.shape[:-1], key.shape[-2])

    def dropped(shares: Tensor) -> Tensor:
        if not around.moment().training:
            return shares
        return (
            shares
            * kept(_drawn(around), box, shape, 1 - probability, shares.device)
            / (1 - probability)
        )

    options = attending(call, dropped)

    def run(operands: Operands) -> tuple[Tensor, ...]:
        q, k, v, mask = (*operands, None)[:4]
        assert q is not None
        assert k is not None
        assert v is not None
        return (attention(q, k, v, mask, options, around.together),)

    return run


def _batch_norm(piece: MemberPiece, around: OperatorContext) -> Kernel:
    call = piece.call
    share, epsilon = _number(call, "momentum", 0.1), _number(call, "eps", 1e-5)

    def followed(operands: Operands) -> tuple[Tensor | None, Tensor | None, float]:
        """The running statistics that are read or written, and which share of these is new."""
        mean, variance = (*operands, None, None, None, None)[3:5]
        now = around.moment()
        if now.training and now.again:
            return None, None, share
        if not now.training or around.apart is None or mean is None or variance is None:
            return mean, variance, share
        return *around.apart(mean, variance), 1.0

    def plain(operands: Operands) -> tuple[Tensor, ...]:
        x, weight, bias = (*operands, None, None, None, None)[:3]
        assert x is not None
        mean, variance, momentum = followed(operands)
        training = around.moment().training
        return (
            functional.batch_norm(x, mean, variance, weight, bias, training, momentum, epsilon),
        )

    def shared(operands: Operands) -> tuple[Tensor, ...]:
        x, weight, bias = (*operands, None, None, None, None)[:3]
        assert x is not None
        if not around.moment().training:
            return plain(operands)
        dims = (0, *range(2, x.dim()))
        count = _count(around, dims)
        output, mean, variance = normalised(x, Norm(dims, count, epsilon, around.together.summed))
        *running, momentum = followed(operands)
        _follow(running, mean, variance * count / max(1, count - 1), momentum)
        return (_scaled(output, weight, bias),)

    return shared if piece.summing else plain


def _follow(running: list[Tensor | None], mean: Tensor, variance: Tensor, momentum: float) -> None:
    """Update running statistics, as the library does."""
    with torch.no_grad():
        for statistic, now in zip(running, (mean, variance), strict=True):
            if statistic is not None:
                statistic.lerp_(now.reshape(statistic.shape).to(statistic.dtype), momentum)


def _count(around: OperatorContext, dims: tuple[int, ...]) -> int:
    """Elements that a mean is over, on all devices."""
    whole = around.whole.inputs[0]
    assert whole is not None
    return math.prod(whole.shape[dim] for dim in dims) // around.micro_batches


def _scaled(tensor: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """With weight and bias, one number for each channel."""
    shape = (-1, *(1,) * (tensor.dim() - 2))
    if weight is not None:
        tensor = tensor * weight.view(shape)
    return tensor if bias is None else tensor + bias.view(shape)
