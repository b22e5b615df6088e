"""Translation of a graph's calls into operators of the rule language.

Enters: a `Call` all of whose inputs are there. Leaves: the operator that rules know it by, its
settings, and which inputs are its operands; None for what no rule speaks of. Whether the operands
fit is told by the law of the operator, not here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from meshwright.graph.notation import MisfitError
from meshwright.graph.operator_graph import Call, Value
from meshwright.rewrite.language.terms import COPIES, SUMS, Setting
from meshwright.rewrite.language.types import DIMS, PARALLEL

Settings = tuple[Setting, ...]

_SHORT: Mapping[str, str] = {"replicate": COPIES, "reduce": SUMS}
KEYS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PARALLEL, ("axis", "degree")),
    "pipeline": ("axis", "count"), "batch": ("axis", "count"),
    "halo": ("axis", "before", "after"),
}  # fmt: skip
"""The attributes of parallel kinds, in the order of their settings."""

DEFAULT_EPS = 1e-5
"""Of layer_norm, as in ATen's schema."""


class OperatorReading(NamedTuple):
    """An operator of the rule language; its operands are the inputs in this order."""

    operator: str
    settings: Settings = ()
    order: tuple[int, ...] = (0,)


def normal(operator: str, settings: Settings, rank: int) -> Settings:
    """Settings with their short forms spelt out and dims counted from the front.

    >>> normal("replicate", (2,), 3), normal("transpose", (-1, 0), 3)
    (('copies', 2), (0, 2))
    """
    if operator in _SHORT and len(settings) == 1:
        settings = (_SHORT[operator], *settings)
    dims = DIMS.get(operator, ())
    normalised = tuple(
        value + rank if number in dims and isinstance(value, int) and value < 0 else value
        for number, value in enumerate(settings)
    )
    return (min(normalised), max(normalised)) if operator == "transpose" else normalised  # type: ignore[type-var]


def _all(operator: str, call: Call, *settings: Setting) -> OperatorReading:
    return OperatorReading(operator, settings, tuple(range(len(call.inputs))))


def _says_only(call: Call, *settings: str, **meant: Value) -> bool:
    """Whether all attributes but these settings have the values that the operator means."""
    return all(
        key in settings or (key in meant and value == meant[key]) for key, value in call.attributes
    )


def _parallel(call: Call) -> OperatorReading:
    settings = tuple(call[key] for key in KEYS[call.kind])
    return OperatorReading(call.kind, normal(call.kind, settings, len(_shapes(call)[0])))


def _one_dtype(call: Call) -> bool:
    return len({spec.dtype for spec in call.inputs if spec is not None}) == 1


def _shapes(call: Call) -> list[tuple[int, ...]]:
    return [spec.shape for spec in call.inputs if spec is not None]


def _pointwise(call: Call) -> OperatorReading | None:
    """Of equal shapes, or with one number for each place of the last dim."""
    if call.attributes or len(call.inputs) != 2 or not _one_dtype(call):
        return None
    one, other = map(len, _shapes(call))
    broadcast = {"add": "bias", "mul": "scale"}.get(call.kind)
    if one == other or broadcast is None:
        return _all(call.kind, call)
    if min(one, other) != 1:
        return None
    return OperatorReading(broadcast, (), (0, 1) if other == 1 else (1, 0))


def _linear(call: Call) -> OperatorReading | None:
    return None if call.attributes else _all(("linear", "linear_bias")[len(call.inputs) - 2], call)


def _product(call: Call) -> OperatorReading | None:
    return None if call.attributes else _all("matmul", call)


def _convolution(call: Call) -> OperatorReading | None:
    """One group, no dilation."""
    if not _says_only(call, "stride", "padding", groups=1, dilation=(1, 1)):
        return None
    stride, padding = call.get("stride", (1, 1)), call.get("padding", (0, 0))
    if not isinstance(stride, tuple) or not isinstance(padding, tuple):
        return None
    operator = ("conv2d", "conv2d_bias")[len(call.inputs) - 2]
    return _all(operator, call, *stride, *padding)


def _table(call: Call) -> OperatorReading | None:
    meant: dict[str, Value] = {"sparse": False, "scale_grad_by_freq": False}
    if call.kind == "embedding_bag":
        if len(_shapes(call)[1]) != 2:
            return None
        meant |= {"mode": 0, "padding_idx": None, "include_last_offset": False}
    else:
        meant |= {"padding_idx": -1}
    order = (1, 0, *range(2, len(call.inputs)))
    return OperatorReading(call.kind, (), order) if _says_only(call, **meant) else None


def _experts(call: Call) -> OperatorReading | None:
    return None if call.attributes else _all("experts", call)


def _softmax(call: Call) -> OperatorReading | None:
    last = len(_shapes(call)[0]) - 1
    fits = _says_only(call, "dim", dtype=None) and call.get("dim") in (-1, last)
    return OperatorReading("softmax") if fits else None


def _norm(call: Call) -> OperatorReading | None:
    """Over the last dim, with all weights; rms_norm without eps depends on the dtype."""
    if not _says_only(call, "normalized_shape", "eps", cudnn_enable=True):
        return None
    eps = call.get("eps", DEFAULT_EPS if call.kind == "layer_norm" else None)
    one = call.get("normalized_shape") == _shapes(call)[0][-1:]
    return _all(call.kind, call, eps) if one and isinstance(eps, float) else None


def _attention(call: Call) -> OperatorReading | None:
    """Without mask and dropout, as many heads of keys as of queries: causal or not, and scale."""
    if not _says_only(call, "is_causal", "scale", dropout_p=0.0, enable_gqa=False):
        return None
    scale = call.get("scale")
    scale = 1 / math.sqrt(_shapes(call)[0][-1]) if scale is None else scale
    return _all("attention", call, (call.get("is_causal", False), scale))


def _concat(call: Call) -> OperatorReading | None:
    dim = _dim(call.get("dim", 0), len(_shapes(call)[0]))
    return _all("concat", call, dim) if _one_dtype(call) else None


def _split(call: Call) -> OperatorReading:
    dim = _dim(call.get("dim", 0), len(_shapes(call)[0]))
    return OperatorReading("split", (dim, *(spec.shape[dim] for spec in call.outputs[:-1])))


def _dim(value: Value, rank: int) -> int:
    if not isinstance(value, int):
        raise MisfitError(f"{value} is no dim")
    return value % max(rank, 1)


def _moved(call: Call) -> OperatorReading | None:
    """transpose, t, and a permute that swaps two dims."""
    rank = len(_shapes(call)[0])
    match call.kind:
        case "t":
            pair = [0, 1]
        case "transpose":
            pair = [_dim(call[key], rank) for key in ("dim0", "dim1")]
        case _:
            dims = call["dims"]
            order = [_dim(dim, rank) for dim in dims] if isinstance(dims, tuple) else []
            pair = [dim for dim, origin in enumerate(order) if origin != dim]
    one, other = min(pair, default=0), max(pair, default=0)
    return OperatorReading("transpose", (one, other)) if len(pair) == 2 and one != other else None


def _reshaped(call: Call) -> OperatorReading | None:
    """Two neighbours that become one dim, or one that becomes two; the first that fits."""
    before, after = _shapes(call)[0], call.outputs[0].shape
    if 0 in before or abs(len(before) - len(after)) != 1:
        return None
    long, short = max(before, after, key=len), min(before, after, key=len)
    first = _said(call, len(before))
    for dim in range(len(short)):
        joined = (*long[:dim], long[dim] * long[dim + 1], *long[dim + 2 :])
        if joined == short and first in (None, dim):
            if len(before) > len(after):
                return OperatorReading("flatten", (dim,))
            return OperatorReading("unflatten", (dim, after[dim]))
    return None


def _said(call: Call, rank: int) -> int | None:
    """The dim that flatten and unflatten name, which shapes with ones leave open."""
    key = {"flatten": "start_dim", "unflatten": "dim"}.get(call.kind)
    return None if key is None else _dim(call.get(key, 0), rank)


def _sum(call: Call) -> OperatorReading | None:
    rank = len(_shapes(call)[0])
    real = call.inputs[0] is not None and call.inputs[0].dtype.startswith(("float", "bfloat"))
    dims = call.get("dim")
    if not real or not isinstance(dims, tuple) or len(dims) != 1:
        return None
    if not _says_only(call, "dim", keepdim=False, dtype=None):
        return None
    names = {rank - 2: "sum_rows", 0: "sum_first", rank - 1: "sum_last"}
    name = names.get(dims[0] % max(rank, 1))
    return OperatorReading(name) if name else None


READERS: Mapping[str, Callable[[Call], OperatorReading | None]] = {
    **dict.fromkeys(PARALLEL, _parallel),
    **dict.fromkeys(("add", "sub", "mul"), _pointwise),
    **dict.fromkeys(("matmul", "mm", "bmm"), _product),
    **dict.fromkeys(("embedding", "embedding_bag"), _table),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    **dict.fromkeys(("transpose", "t", "permute"), _moved),
    **dict.fromkeys(("flatten", "unflatten", "view", "reshape"), _reshaped),
    "linear": _linear,
    "conv2d": _convolution,
    "_grouped_mm": _experts,
    "softmax": _softmax,
    "scaled_dot_product_attention": _attention,
    "cat": _concat,
    "sum": _sum,
}
"""Kinds whose operator has another name or other settings."""
