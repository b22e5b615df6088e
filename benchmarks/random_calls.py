"""Calls of random shapes, spread evenly over the logarithms of their sizes.

Enters: how many, a dtype, a seed. Leaves: calls of the kinds that most of a step is made of, none
of which a model had to ask for, so that prices can be read off between those that models use.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from meshwright.graph.counts import forward
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Call, Spec, Value

MOST_FLOPS = 4e12
"""Of one forward pass: about 5 ms of a large GPU's matrix units."""

MULTIPLES = (1, 8, 8, 8, 64, 64, 64, 64)
"""What sizes are multiples of: mostly what matrix units like, sometimes not."""

Draw = Callable[["Sizes"], Call]


class Sizes:
    """Random sizes for the shapes of one dtype."""

    def __init__(self, random: Random, dtype: str) -> None:
        self.random, self.dtype = random, dtype

    def size(self, low: int, high: int) -> int:
        """A size between two others, its logarithm even, a multiple of something."""
        exact = math.exp(self.random.uniform(math.log(low), math.log(high)))
        multiple = self.random.choice([m for m in MULTIPLES if m <= low])
        return max(low, round(exact / multiple) * multiple)

    def spec(self, *shape: int) -> Spec:
        """A tensor of the dtype."""
        return Spec(self.dtype, shape)


def random_calls(
    count: int, dtype: str, seed: int, most_bytes: float = 4e9, most_flops: float = MOST_FLOPS
) -> tuple[Call, ...]:
    """As many calls of each kind as of any other, none larger than allowed."""
    random = Random(seed)
    sizes = Sizes(random, dtype)
    calls: list[Call] = []
    while len(calls) < count:
        draw = DRAWS[len(calls) % len(DRAWS)]
        call = draw(sizes)
        if call.bytes <= most_bytes and forward(call).flops <= most_flops:
            calls.append(call)
    return tuple(calls)


def _call(kind: str, *inputs: Spec | None, **attributes: Value) -> Call:
    ordered = tuple(sorted(attributes.items()))
    unfinished = Call(kind=kind, inputs=inputs, outputs=(), attributes=ordered)
    outputs = family_of(unfinished).outputs(unfinished)
    return Call(kind=kind, inputs=inputs, outputs=outputs, attributes=ordered)


def _linear(s: Sizes) -> Call:
    rows, inner, columns = s.size(8, 32768), s.size(64, 16384), s.size(64, 16384)
    bias = s.spec(columns) if s.random.random() < 0.7 else None
    inputs = (s.spec(rows, inner), s.spec(columns, inner), bias)
    return _call("linear", *inputs[: 2 if bias is None else 3])


def _product_in_batches(s: Sizes) -> Call:
    batch, rows, inner, columns = s.size(1, 256), *(s.size(16, 4096) for _ in range(3))
    return _call("bmm", s.spec(batch, rows, inner), s.spec(batch, inner, columns))


def _attention(s: Sizes) -> Call:
    batch, heads, length = s.size(1, 64), s.size(1, 64), s.size(64, 8192)
    one = s.spec(batch, heads, length, s.random.choice((64, 64, 80, 128)))
    attributes: dict[str, Value] = {"is_causal": True} if s.random.random() < 0.5 else {}
    if s.random.random() < 0.5:
        attributes["dropout_p"] = 0.1
    return _call("scaled_dot_product_attention", one, one, one, **attributes)


def _rows(s: Sizes) -> Spec:
    return s.spec(s.size(8, 65536), s.size(64, 16384))


def _unary(s: Sizes) -> Call:
    return _call(s.random.choice(("gelu", "relu", "silu", "tanh", "exp")), _rows(s))


def _dropout(s: Sizes) -> Call:
    return _call("dropout", _rows(s), p=0.1, train=True)


def _binary(s: Sizes) -> Call:
    x = _rows(s)
    return _call(s.random.choice(("add", "mul", "sub")), x, x)


def _layer_norm(s: Sizes) -> Call:
    x = _rows(s)
    weight = s.spec(x.shape[1])
    return _call("layer_norm", x, weight, weight, normalized_shape=x.shape[1:])


def _rms_norm(s: Sizes) -> Call:
    x = _rows(s)
    return _call("rms_norm", x, s.spec(x.shape[1]), normalized_shape=x.shape[1:], eps=1e-6)


def _softmax(s: Sizes) -> Call:
    return _call("softmax", _rows(s), dim=-1)


def _cross_entropy(s: Sizes) -> Call:
    rows = s.size(8, 32768)
    return _call("cross_entropy_loss", s.spec(rows, s.size(8, 65536)), Spec("int64", (rows,)))


def _embedding(s: Sizes) -> Call:
    indices = Spec("int64", (s.size(1, 64), s.size(16, 2048)))
    return _call("embedding", s.spec(s.size(64, 131072), s.size(64, 8192)), indices)


def _convolution(s: Sizes) -> Call:
    side, kernel = s.size(7, 224), s.random.choice((1, 1, 3, 3, 5, 7))
    channels, out = s.size(8, 1024), s.size(8, 1024)
    stride, padding = s.random.choice((1, 1, 2)), kernel // 2
    return _call(
        "conv2d",
        s.spec(s.size(1, 128), channels, side, side),
        s.spec(out, channels, kernel, kernel),
        stride=(stride, stride),
        padding=(padding, padding),
    )


def _batch_norm(s: Sizes) -> Call:
    side, channels = s.size(7, 112), s.size(8, 2048)
    one = s.spec(channels)
    images = s.spec(s.size(1, 128), channels, side, side)
    return _call("batch_norm", images, one, one, one, one, training=True, momentum=0.1, eps=1e-5)


DRAWS: tuple[Draw, ...] = (
    *(_linear, _product_in_batches, _attention, _linear, _unary, _dropout, _binary, _layer_norm),
    *(_linear, _rms_norm, _softmax, _cross_entropy, _embedding, _convolution, _batch_norm),
)
