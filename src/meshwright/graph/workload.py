"""Training workload of a graph: samples, tokens, dtype and model FLOPs (PaLM's MFU). Enters: a
graph. Leaves: its `Workload`: samples, tokens, the dtype of its products and the FLOPs that MFU
counts.

    model FLOPs = F + B + 2 A     F forward FLOPs of products and convolutions, B backward ones of
                                  all but attention, A forward ones of attention
so that what a fused attention computes once more in its backward pass is no model's work; causal
attention counts whole. Both as in PaLM (Chowdhery et al. 2022, appendix B) and Megatron-LM.

Tokens are the indices of samples that an embedding looks up, where positions then attend, recur or
are judged one by one; a recommender's indices are none.
"""

from __future__ import annotations

import math

import msgspec

from meshwright.base.once import once
from meshwright.graph.batch import samples_of
from meshwright.graph.counts import backward, forward, input_needs_grad, tensors_requiring_grad
from meshwright.graph.families import family_of
from meshwright.graph.families.attention import KINDS as ATTENTION
from meshwright.graph.families.losses import KINDS as LOSSES
from meshwright.graph.families.recurrent import KINDS as RECURRENT
from meshwright.graph.operator_graph import OperatorGraph

MIXING = {*ATTENTION, *RECURRENT, "softmax", "_softmax"}
"""Kinds of operators by which positions of a sequence meet."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of a model."""

    samples: int
    """0 if the graph does not tell."""
    sequence: int
    """Tokens of a sample; 0 where there are none."""
    dtype: str
    """In which most FLOPs are computed."""
    model_flops: int
    """Of both passes."""

    @property
    def tokens(self) -> int:
        """Of a step; 0 where there are none."""
        return self.samples * self.sequence


@once
def workload(graph: OperatorGraph) -> Workload:
    """What a step of a graph works on.

    >>> from meshwright.graph.text import parse_graph
    >>> workload(parse_graph('''graph one layer
    ... input x: float32[batch=4, in=8]
    ... parameter w: float32[out=2, in=8]
    ... operator fc: y: float32[batch=4, out=2] = linear(x, w)
    ... output y'''))
    Workload(samples=4, sequence=0, dtype='float32', model_flops=256)
    """
    samples = samples_of(graph) or 0
    by_dtype = _flops(graph)
    return Workload(
        samples=samples,
        sequence=_sequence(graph, samples) if samples else 0,
        dtype=max(by_dtype, key=lambda name: by_dtype[name], default="float32"),
        model_flops=sum(by_dtype.values()),
    )


def _flops(graph: OperatorGraph) -> dict[str, int]:
    """Model FLOPs by the dtype of what products make."""
    needing, by_dtype = tensors_requiring_grad(graph), dict[str, int]()
    for operator in graph.operators:
        if not family_of(operator).products:
            continue
        call, dtype = graph.call(operator), operator.outputs[0].dtype
        flops = forward(call).flops
        if any(tensor.name in needing for tensor in operator.outputs):
            again = operator.kind in ATTENTION
            backward_flops = backward(call, input_needs_grad(operator, needing)).flops
            flops += 2 * flops if again else backward_flops
        by_dtype[dtype] = by_dtype.get(dtype, 0) + flops
    return by_dtype


def _sequence(graph: OperatorGraph, samples: int) -> int:
    """Tokens of a sample, of the longest sequence that is looked up."""
    lengths = [0]
    for operator in graph.operators:
        if operator.kind == "embedding":
            shape = graph.specs[operator.inputs[1] or ""].shape
            if len(shape) > 1 and shape[0] == samples:
                lengths.append(math.prod(shape[1:]))
    mixes = any(operator.kind in MIXING for operator in graph.operators)
    return max(lengths) if mixes or _judged(graph) > samples else 0


def _judged(graph: OperatorGraph) -> int:
    """Classes that a loss compares with what is right."""
    targets = [operator.inputs[1] for operator in graph.operators if operator.kind in LOSSES]
    return max((graph.specs[name].elements for name in targets if name), default=0)
