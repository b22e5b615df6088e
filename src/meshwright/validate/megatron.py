"""The operators of a GPT as Megatron runs it. Enters: sizes, a tensor degree, a micro-batch.
Leaves: the calls of one layer, of the embedding and of the head on one device, in fp16.

Of a layer, every device of a tensor group holds heads / t heads and 4 hidden / t inner columns;
norms and what is added to the residual are whole everywhere. Score and context products are
batched over heads; softmax and dropout run over the scores (no flash attention in that code).
Megatron's fused scale-mask-softmax needs a multiple of 4 heads times samples; otherwise five
kernels do its work. The vocabulary is padded to a multiple of 128 · t, except at t = 1, where the
rows fit only the odd 50,257 as it is. Reductions over the tensor group, the pipeline and prices are
not known here.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.graph.model import Attributes, Call, Spec

VOCABULARY = 50_257


class MegatronSizes(NamedTuple):
    """What the calls of a layer depend on."""

    hidden: int
    heads: int
    sequence: int
    tensor: int
    micro_batch: int

    @property
    def vocabulary(self) -> int:
        """How many words a device holds."""
        if self.tensor == 1:
            return VOCABULARY
        return -(-VOCABULARY // (128 * self.tensor)) * 128


def layer_calls(sizes: MegatronSizes) -> tuple[Call, ...]:
    """The forward pass of one layer.

    >>> [call.kind for call in layer_calls(MegatronSizes(1024, 16, 1024, 2, 1))][:5]
    ['layer_norm', 'linear', 'bmm', 'softmax', 'dropout']
    """
    h, t = sizes.hidden, sizes.tensor
    rows = (sizes.sequence, sizes.micro_batch)
    whole, batches = _half(*rows, h), sizes.micro_batch * sizes.heads // t
    deep = h // sizes.heads
    queries, keys = _half(batches, sizes.sequence, deep), _half(batches, deep, sizes.sequence)
    scores = _half(batches, sizes.sequence, sizes.sequence)
    inner = _half(*rows, 4 * h // t)
    added = Call(kind="add", inputs=(whole, whole), outputs=(whole,))
    return (
        _norm(whole),
        _linear(whole, 3 * h // t),
        Call(kind="bmm", inputs=(queries, keys), outputs=(scores,)),
        *_softmax(scores, batches),
        Call(kind="dropout", inputs=(scores,), outputs=(scores,), attributes=(("p", 0.1),)),
        Call(kind="bmm", inputs=(scores, queries), outputs=(queries,)),
        _copy(_half(*rows, h // t)),
        _linear(_half(*rows, h // t), h),
        added,
        _norm(whole),
        _linear(whole, 4 * h // t),
        Call(kind="gelu", inputs=(inner,), outputs=(inner,)),
        _linear(inner, h),
        added,
    )


def embedding_calls(sizes: MegatronSizes) -> tuple[Call, ...]:
    """What the first stage does before its layers: look up, add positions, drop."""
    whole = _half(sizes.sequence, sizes.micro_batch, sizes.hidden)
    words = Spec("int64", (sizes.sequence, sizes.micro_batch))
    table = _half(sizes.vocabulary, sizes.hidden)
    return (
        Call(kind="embedding", inputs=(table, words), outputs=(whole,)),
        Call(kind="add", inputs=(whole, whole), outputs=(whole,)),
        Call(kind="dropout", inputs=(whole,), outputs=(whole,), attributes=(("p", 0.1),)),
    )


def head_calls(sizes: MegatronSizes) -> tuple[Call, ...]:
    """What the last stage does behind its layers: logits and, in fp32, the loss."""
    whole = _half(sizes.sequence, sizes.micro_batch, sizes.hidden)
    logits = (sizes.sequence, sizes.micro_batch, sizes.vocabulary)
    half, single = Spec("float16", logits), Spec("float32", logits)
    return (
        _norm(whole),
        _linear(whole, sizes.vocabulary),
        Call(
            kind="_to_copy", inputs=(half,), outputs=(single,), attributes=(("dtype", "float32"),)
        ),
        Call(kind="exp", inputs=(single,), outputs=(single,)),
    )


def layer_parameters(sizes: MegatronSizes) -> int:
    """Weights of one layer on a device; biases and norms, a thousandth, are left out."""
    return 12 * sizes.hidden**2 // sizes.tensor


def word_parameters(sizes: MegatronSizes) -> int:
    """Weights of the embedding, or of the head, on a device."""
    return sizes.hidden * sizes.vocabulary


def _softmax(scores: Spec, batches: int) -> tuple[Call, ...]:
    fused = Call(kind="softmax", inputs=(scores,), outputs=(scores,), attributes=(("dim", -1),))
    if batches % 4 == 0:
        return (fused,)
    single = Spec("float32", scores.shape)
    masked: Attributes = (("value", -10000.0),)
    return (
        Call(
            kind="_to_copy", inputs=(scores,), outputs=(single,), attributes=(("dtype", "float32"),)
        ),
        Call(kind="mul", inputs=(single,), outputs=(single,), attributes=(("other", 0.125),)),
        Call(
            kind="masked_fill",
            inputs=(single, Spec("bool", scores.shape[1:])),
            outputs=(single,),
            attributes=masked,
        ),
        Call(kind="softmax", inputs=(single,), outputs=(single,), attributes=(("dim", -1),)),
        Call(
            kind="_to_copy", inputs=(single,), outputs=(scores,), attributes=(("dtype", "float16"),)
        ),
    )


def _half(*shape: int) -> Spec:
    return Spec("float16", shape)


def _norm(x: Spec) -> Call:
    wide = _half(x.shape[-1])
    normed: Attributes = (("normalized_shape", x.shape[-1:]),)
    return Call(kind="layer_norm", inputs=(x, wide, wide), outputs=(x,), attributes=normed)


def _linear(x: Spec, wide: int) -> Call:
    weight = _half(wide, x.shape[-1])
    return Call(kind="linear", inputs=(x, weight), outputs=(_half(*x.shape[:-1], wide),))


def _copy(x: Spec) -> Call:
    """What lays heads side by side: a reshape that moves its bytes."""
    return Call(kind="reshape", inputs=(x,), outputs=(x,), attributes=(("shape", x.shape),))
