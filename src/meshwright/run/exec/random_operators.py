"""Sharding-invariant random operators by inverse transform sampling. Enters: a piece of one.
Leaves: a function of its operands and a key.

Each element is made of a uniform number u that depends on its place alone (`randomness`), by the
inverse of its distribution, so that any plan draws the same:

    rand u · uniform a + (b - a) u · bernoulli u < p · exponential -log(u) / rate · randn Φ⁻¹(u)
    multinomial, without replacement: the largest of weight / -log(u) (Efraimidis, Spirakis 2006)

They are not the numbers that PyTorch's generator draws. What is not in the table runs as PyTorch's,
seeded by the key and by where the piece lies: copies draw the same, other parts others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.capture.execution.shard_kernels import Operands, prepared_call
from meshwright.graph.operator_graph import Call, Value
from meshwright.graph.pieces import Box
from meshwright.lower.shard_tasks import MemberPiece
from meshwright.run.exec.random_bits import Key, uniform

Drawing = Callable[[Operands, Key], tuple[Tensor, ...]]
"""From operands and a key to results."""


class Draw(NamedTuple):
    """What an element's value depends on."""

    u: Tensor
    """A uniform number for each."""
    operands: tuple[Tensor, ...]
    told: Mapping[str, Value]

    def number(self, key: str, default: float) -> float:
        """An attribute that is a plain number."""
        value = self.told.get(key, default)
        assert isinstance(value, int | float)
        return float(value)


def drawing(piece: MemberPiece, whole: Call, device: torch.device) -> Drawing:
    """What draws for a piece."""
    call = piece.call
    if call.kind == "multinomial":
        return _classes(piece, whole)
    inverse = INVERSES.get(call.kind)
    if inverse is None:
        return _seeded(piece)
    box, shape = piece.outputs[0], whole.outputs[0].shape
    dtype: torch.dtype = getattr(torch, call.outputs[0].dtype)
    attributes = dict(call.attributes)

    def run(operands: Operands, key: Key) -> tuple[Tensor, ...]:
        tensors = tuple(operand for operand in operands if operand is not None)
        u = uniform(key, box, shape, device)
        return (inverse(Draw(u, tensors, attributes)).to(dtype),)

    return run


def _normal(draw: Draw) -> Tensor:
    return math.sqrt(2) * torch.erfinv(2 * draw.u - 1)


def _written_normal(draw: Draw) -> Tensor:
    return draw.number("mean", 0.0) + draw.number("std", 1.0) * _normal(draw)


def _read_normal(draw: Draw) -> Tensor:
    """With operands for its mean, its deviation or both."""
    operands = list(draw.operands)
    mean = draw.number("mean", 0.0) if "mean" in draw.told else operands.pop(0).double()
    deviation = operands.pop(0).double() if operands else draw.number("std", 1.0)
    return mean + deviation * _normal(draw)


def _bernoulli(draw: Draw) -> Tensor:
    chance = draw.number("p", 0.5) if "p" in draw.told else draw.operands[-1].double()
    return draw.u < chance


def _whole(draw: Draw) -> Tensor:
    low, high = draw.number("low", 0), draw.number("high", 1)
    return (low + (high - low) * draw.u).floor()


def _rrelu(draw: Draw) -> Tensor:
    (x,) = draw.operands
    low, high = draw.number("lower", 0.125), draw.number("upper", 1 / 3)
    slope = (low + (high - low) * draw.u).to(x.dtype)
    return torch.where(x < 0, x * slope, x)


INVERSES: Mapping[str, Callable[[Draw], Tensor]] = {
    "rand": lambda draw: draw.u,
    "rand_like": lambda draw: draw.u,
    "randn": _normal,
    "randn_like": _normal,
    "randint": _whole,
    "randint_like": _whole,
    "randperm": lambda draw: draw.u.argsort(),
    "bernoulli": _bernoulli,
    "uniform": lambda draw: (
        draw.number("from", 0) + (draw.number("to", 1) - draw.number("from", 0)) * draw.u
    ),
    "normal": _read_normal,
    "normal_functional": _written_normal,
    "log_normal": lambda draw: torch.exp(
        draw.number("mean", 1.0) + draw.number("std", 2.0) * _normal(draw)
    ),
    "exponential": lambda draw: -draw.u.log() / draw.number("lambd", 1.0),
    "cauchy": lambda draw: (
        draw.number("median", 0.0) + draw.number("sigma", 1.0) * torch.tan(math.pi * (draw.u - 0.5))
    ),
    "geometric": lambda draw: (draw.u.log() / math.log1p(-draw.number("p", 0.5))).ceil(),
    "rrelu": _rrelu,
}
"""Values from uniform numbers, by kind."""


def _classes(piece: MemberPiece, whole: Call) -> Drawing:
    """Classes for each row of weights; those drawn once are the first of a weighted race."""
    attributes = dict(piece.call.attributes)
    count = attributes["num_samples"]
    assert isinstance(count, int)
    weights = whole.inputs[0]
    assert weights is not None
    again = bool(attributes.get("replacement", False))
    last = count if again else weights.shape[-1]
    box = (*piece.outputs[0][:-1], (0, last))
    shape = (*weights.shape[:-1], last)

    def run(operands: Operands, key: Key) -> tuple[Tensor, ...]:
        (row_weights,) = operands
        assert row_weights is not None
        u = uniform(key, box, shape, row_weights.device)
        if not again:
            return ((row_weights.double() / -u.log()).topk(count).indices,)
        total = row_weights.double().cumsum(-1)
        return (
            torch.searchsorted(total, u * total[..., -1:]).clamp(max=row_weights.shape[-1] - 1),
        )

    return run


def _seeded(piece: MemberPiece) -> Drawing:
    """PyTorch's own operator, with a generator that stands where it stood afterwards."""
    prepared, place = prepared_call(piece.call), _place(piece.outputs[0])

    def run(operands: Operands, key: Key) -> tuple[Tensor, ...]:
        if not isinstance(key, int):
            raise TypeError("PyTorch's own generator is seeded for it")
        devices = {
            operand.device for operand in operands if operand is not None and operand.is_cuda
        }
        with torch.random.fork_rng([*devices]):
            torch.manual_seed((key * 1_000_003 + place) % (1 << 63))
            return prepared(operands)

    return run


def _place(box: Box) -> int:
    """A number that tells boxes apart."""
    number = 0
    for first, _ in box:
        number = number * 1_000_003 + first
    return number % (1 << 31)
