"""Sharded softmax, log-softmax, cross-entropy (vocabulary-parallel) and attention.

Enters: a piece of the scores, and what all-reduces over the devices that hold the others. Leaves:
this device's piece of the result, through which gradients flow back. With x the scores of a row,
    m = max x,  s = Σ exp(x - m)           two all-reduces of a number for each row
    softmax       p = exp(x - m) / s       dx = p (g - Σ g p)        one all-reduce
    log-softmax   y = x - m - log s        dx = g - p Σ g            one all-reduce
    cross-entropy l = -Σ k y               dx = g (p Σ k - k)        none: Σ k is known beforehand
where k is how much each class counts (1 for the target). l is left as a pending sum, each device
having the terms of its classes: vocabulary-parallel cross-entropy as in Megatron (Shoeybi et al.
2019), but that the score of the target need not travel. Attention along keys is this softmax and a
pending sum too, as in ring attention (Liu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function

Reduced = Callable[[Tensor], Tensor]
"""An all-reduce over the devices that hold the other pieces. It may write into what it is given."""


class JointReductions(NamedTuple):
    """How the pieces of an operator talk to each other inside it."""

    summed: Reduced
    largest: Reduced


def _as_it_is(data: Tensor) -> Tensor:
    return data


ALONE = JointReductions(_as_it_is, _as_it_is)
"""Of an operator that is whole."""


def in_float32(x: Tensor) -> Tensor:
    """Statistics are summed in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _log_softmax(x: Tensor, dim: int, together: JointReductions, safe: bool = False) -> Tensor:
    real = in_float32(x)
    largest = together.largest(real.amax(dim, keepdim=True))
    if safe:
        largest = largest.masked_fill(largest == -torch.inf, 0)
    shifted = real - largest
    total = together.summed(shifted.exp().sum(dim, keepdim=True))
    # The largest adds 1, unless all are -inf.
    return shifted.sub_((total.clamp_(min=1) if safe else total).log_())


class _LogSoftmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, together: JointReductions) -> Tensor:
        output = _log_softmax(x, dim, together).to(x.dtype)
        ctx.save_for_backward(output)
        ctx.told = dim, together
        return output

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None, None]:
        (output,) = ctx.saved_tensors
        dim, together = ctx.told
        gradient = in_float32(arriving[0])
        total = together.summed(gradient.sum(dim, keepdim=True))
        return (gradient - in_float32(output).exp() * total).to(output.dtype), None, None


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, together: JointReductions, safe: bool) -> Tensor:
        output = _log_softmax(x, dim, together, safe).exp_().to(x.dtype)
        ctx.save_for_backward(output)
        ctx.told = dim, together
        return output

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None, None, None]:
        (output,) = ctx.saved_tensors
        dim, together = ctx.told
        gradient = in_float32(arriving[0])
        total = together.summed((gradient * output).sum(dim, keepdim=True))
        return (output * (gradient - total)).to(output.dtype), None, None, None


def softmax(x: Tensor, dim: int, together: JointReductions, *, log: bool = False) -> Tensor:
    """A piece of a softmax along a dim that is cut."""
    function, more = (_LogSoftmax, ()) if log else (_Softmax, (False,))
    output: Tensor = function.apply(x, dim, together, *more)  # type: ignore[no-untyped-call]
    return output


def safe_softmax(x: Tensor, dim: int, together: JointReductions) -> Tensor:
    """A piece of a softmax that is 0, not NaN, where all scores are -inf, as in PyTorch's attention
    of a query that may see no key.
    """
    if together is ALONE:
        return torch._safe_softmax(x, dim)
    softmax: Tensor = _Softmax.apply(x, dim, together, True)  # type: ignore[no-untyped-call]
    return softmax


class Counted(NamedTuple):
    """How much each class of this device counts in the loss of each row; classes are dim 1."""

    dense: Tensor | None
    """For all classes, or for every row the same: broadcast to the scores."""
    target: Tensor | None
    """For each row the number of its target among this device's classes, with classes as dim 1."""
    share: Tensor | None
    """How much the target counts, 0 where it is another device's; with classes as dim 1."""
    total: Tensor
    """Σ k over the classes of all devices, with classes as dim 1."""


AT_ONCE = 1 << 22
"""Scores that are held in float32 at a time, at most, but for a single row."""


def _rows_at_once(x: Tensor) -> Iterator[slice]:
    """Rows of the scores, so few that a copy of theirs in float32 is small."""
    each = max(1, AT_ONCE // max(1, x[:1].numel()))
    return (slice(first, first + each) for first in range(0, x.shape[0], each))


def _in_rows(x: Tensor, rows: slice) -> Tensor:
    """The same rows of something with classes as dim 1, or with one row for all."""
    return x if x.shape[0] == 1 else x[rows]


class _CrossEntropy(Function):
    """Keeps the scores, as they are, and two numbers of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counted: Counted, together: JointReductions) -> Tensor:
        largest = together.largest(in_float32(x.amax(1, keepdim=True)))
        total = torch.zeros_like(largest)
        for rows in _rows_at_once(x):
            total[rows] = (x[rows] - largest[rows]).exp_().sum(1, keepdim=True)
        log_total = together.summed(total).log_()
        loss = torch.zeros_like(largest)
        if counted.dense is not None:
            for rows in _rows_at_once(x):
                log_shares = (x[rows] - largest[rows]).sub_(log_total[rows])
                loss[rows] -= log_shares.mul_(_in_rows(counted.dense, rows)).sum(1, keepdim=True)
        if counted.target is not None and counted.share is not None:
            terms = x.gather(1, counted.target) - largest - log_total
            # A class of another device stands in for its target, and its score may be -inf.
            loss -= (terms * counted.share).masked_fill_(counted.share == 0, 0)
        ctx.save_for_backward(x, largest, log_total)
        ctx.counted = counted
        return loss.squeeze(1).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None, None]:
        x, largest, log_total = ctx.saved_tensors
        counted: Counted = ctx.counted
        gradient = in_float32(arriving[0]).unsqueeze(1)
        x_gradient = torch.empty_like(x)
        for rows in _rows_at_once(x):
            chunk = (x[rows] - largest[rows]).sub_(log_total[rows]).exp_()
            chunk.mul_(_in_rows(counted.total, rows))
            if counted.dense is not None:
                chunk.sub_(_in_rows(counted.dense, rows))
            if counted.target is not None and counted.share is not None:
                chunk.scatter_add_(1, counted.target[rows], -counted.share[rows])
            x_gradient[rows] = chunk.mul_(gradient[rows])
        return x_gradient, None, None


def cross_entropy(x: Tensor, counted: Counted, together: JointReductions) -> Tensor:
    """What the classes of a piece add to the loss of each row."""
    losses: Tensor = _CrossEntropy.apply(x, counted, together)  # type: ignore[no-untyped-call]
    return losses


class Attending(NamedTuple):
    """How queries attend to a piece of the keys."""

    rate: float
    """By which scores are multiplied."""
    causal: bool
    first_query: int
    first_key: int
    dropped: Callable[[Tensor], Tensor]
    """What drops shares at random."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    attending: Attending,
    together: JointReductions,
) -> Tensor:
    """What this device's keys add to the attention of its queries, with the scores in the open."""
    heads = q.shape[-3] // k.shape[-3] if q.dim() > 2 else 1
    if heads > 1:
        k, v = k.repeat_interleave(heads, -3), v.repeat_interleave(heads, -3)
    scores, masked = (q * attending.rate) @ k.transpose(-1, -2), mask is not None
    if attending.causal:
        queries = torch.arange(
            attending.first_query, attending.first_query + q.shape[-2], device=q.device
        )
        keys = torch.arange(attending.first_key, attending.first_key + k.shape[-2], device=q.device)
        mask = queries[:, None] >= keys
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    if masked:
        shares = safe_softmax(scores, -1, together)
    else:
        shares = scores.softmax(-1) if together is ALONE else softmax(scores, -1, together)
    return attending.dropped(shares) @ v
