"""Fused attention: scaled_dot_product_attention(q, k, v, mask).

q[..., h, l, d], k[..., s, d], v[..., s, e] give out[..., h, l, e]. Unfused attention is products
and a softmax, each with its own family.

    dim of the output   role        cuts
    batch               sample      q, k, v (and the mask where it is not stretched)
    head                attribute   q, k, v; with fewer key heads than query heads, in key heads
    query               attribute   q and the mask; a causal piece knows its first query
    value               parameter   v along e: the probabilities are computed anew in every part
    key                 reduction   k, v and the mask: parts all-reduce the maximum and the sum of
                                    each query's scores, and add up what their keys give
    inner               -           whole: the softmax needs whole scores
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.broadcasting import broadcast, stretched
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


@final
class Attention(Family):
    """softmax(q kᵀ · scale + mask) v without the scores ever in memory."""

    products = True

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As q, with the last dim of v."""
        q, k, v = (tensor(call, i) for i in range(3))
        if len({len(q.shape), len(k.shape), len(v.shape)}) > 1 or len(q.shape) < 2:
            raise ShapeError(f"q, k, v are {q.shape}, {k.shape}, {v.shape}")
        if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
            raise ShapeError(f"q, k, v are {q.shape}, {k.shape}, {v.shape}")
        if call.get("enable_gqa", False):
            if q.shape[-3] % k.shape[-3]:
                raise ShapeError(f"{q.shape[-3]} query heads on {k.shape[-3]} key heads")
            lead = q.shape[:-2]
        else:
            lead = broadcast(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        return (Spec(q.dtype, (*lead, q.shape[-2], v.shape[-1])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Batch and heads, queries, values, keys."""
        out = call.outputs[0].shape
        rank = len(out)
        splits = []
        for dim in range(rank - 2):
            operands = [tensor(call, i).shape for i in range(3)]
            cut = tuple(stretched(shape, dim, rank) for shape in operands)
            grouped = bool(call.get("enable_gqa", False)) and dim == rank - 3
            extent = operands[1][dim] if grouped else out[dim]
            head = dim == rank - 3 and rank > 3
            splits.append(
                Split(
                    name="head" if head else "sample" if dim == 0 else f"batch{dim}",
                    role="attribute" if head else role_of(dim),
                    extent=extent,
                    inputs=(*cut, *self._mask_cut(call, dim)),
                    outputs=(dim,),
                )
            )
        query = Split(
            name="query",
            role="attribute",
            extent=out[-2],
            inputs=(rank - 2, None, None, *self._mask_cut(call, rank - 2)),
            outputs=(rank - 2,),
        )
        value = Split(
            name="value",
            role="parameter",
            extent=out[-1],
            inputs=(None, None, rank - 1, *(None,) * (len(call.inputs) - 3)),
            outputs=(rank - 1,),
        )
        return (*splits, query, value, self._keys(call, rank))

    def _keys(self, call: Call, rank: int) -> Split:
        mask = call.inputs[3] if len(call.inputs) > 3 else None
        along_mask = None if mask is None or mask.shape[-1] == 1 else len(mask.shape) - 1
        return Split(
            name="key",
            role="reduction",
            extent=tensor(call, 1).shape[-2],
            inputs=(None, rank - 2, rank - 2, *(along_mask,) * (len(call.inputs) - 3)),
            outputs=(None,),
            statistics=math.prod(call.outputs[0].shape[:-1]),
            rounds=(2, 1),
        )

    def _mask_cut(self, call: Call, dim: int) -> tuple[int | None, ...]:
        mask = call.inputs[3] if len(call.inputs) > 3 else None
        if mask is None:
            return (None,) * (len(call.inputs) - 3)
        return (stretched(mask.shape, dim, len(call.outputs[0].shape)),)

    def flops(self, call: Call) -> int:
        """Two products: scores and weighted values."""
        return self._score_flops(call) + self._value_flops(call)

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """Five products: the scores anew, for v one, for q and k one shared and one each."""
        scores, values = self._score_flops(call), self._value_flops(call)
        mask = (0,) * (len(call.inputs) - 3)
        return (values + scores, scores, scores + values, *mask)

    def _score_flops(self, call: Call) -> int:
        q, k = tensor(call, 0).shape, tensor(call, 1).shape
        return _computed(call, 2 * math.prod(call.outputs[0].shape[:-1]) * k[-2] * q[-1])

    def _value_flops(self, call: Call) -> int:
        return _computed(call, 2 * call.outputs[0].elements * tensor(call, 1).shape[-2])

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Operands, result and the logarithm of each row's sum (float32)."""
        rows = Spec("float32", call.outputs[0].shape[:-1])
        return Saved(inputs=tuple(range(len(call.inputs))), outputs=(0,), extra=Bytes(rows.bytes))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A causal piece knows its first query; one of some keys its first key."""
        if split.name == "key":
            keys = integer(call, "keys", tensor(call, 1).shape[-2])
            first = integer(call, "first_key", 0) + start
            return replaced(call.attributes, first_key=first, keys=keys)
        if split.name == "query" and call.get("is_causal", False):
            return replaced(call.attributes, first=integer(call, "first", 0) + start)
        return call.attributes


def _computed(call: Call, flops: int) -> int:
    """What is left of all scores where `attended` says that queries attend to a window of keys."""
    share = call.get("attended", 1.0)
    return round(flops * share) if isinstance(share, float) and share < 1 else flops


KINDS: Mapping[str, Family] = {"scaled_dot_product_attention": Attention()}
