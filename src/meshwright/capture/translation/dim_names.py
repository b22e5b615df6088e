"""Readable names for the dims of tensors. Enters: an operator and the names of its inputs' dims.
Leaves: the names of its outputs' dims.

Names help people; nothing is decided by them. A kind that is not named here keeps the names of
dims whose place and size it keeps, and numbers the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from meshwright.graph.operator_graph import Call

Names = tuple[str, ...]

FEATURE, CHANNEL, BATCH = "feature", "channel", "batch"
IMAGE = ("height", "width")
JOINED, PART = "*", "/"
"""Of a dim made of several, and of a piece of one: a flattened (a, b) is a*b."""


def numbered(rank: int) -> Names:
    """Names that say no more than the place.

    >>> numbered(2)
    ('d0', 'd1')
    """
    return tuple(f"d{index}" for index in range(rank))


def input_dims(shape: Sequence[int], *, whole: bool) -> Names:
    """Names for what a user gives, samples first; `whole` numbers are indices, not features.

    >>> input_dims((8, 3, 224, 224), whole=False)
    ('batch', 'channel', 'height', 'width')
    >>> input_dims((8, 512), whole=True)
    ('batch', 'position')
    """
    match len(shape):
        case 1:
            return (BATCH,)
        case 2:
            return (BATCH, "position" if whole else FEATURE)
        case 3 if not whole:
            return (BATCH, "position", FEATURE)
        case 4 if not whole:
            return (BATCH, CHANNEL, *IMAGE)
        case rank:
            return (BATCH, *numbered(rank)[1:]) if rank else ()


_VECTOR = (FEATURE,)
_PARAMETERS: dict[str, tuple[Names | None, ...]] = {
    "linear": (None, ("out", "in"), ("out",)),
    "conv1d": (None, ("out", "in", "kernel"), ("out",)),
    "conv2d": (None, ("out", "in", "kernel_height", "kernel_width"), ("out",)),
    "embedding": (("row", FEATURE),),
    "embedding_bag": (("row", FEATURE),),
    "layer_norm": (None, _VECTOR, _VECTOR),
    "rms_norm": (None, _VECTOR),
    "batch_norm": (None, *((CHANNEL,),) * 4),
    "group_norm": (None, (CHANNEL,), (CHANNEL,)),
    "_grouped_mm": (None, ("expert", "in", "out")),
}


def parameter_dims(kind: str, position: int, rank: int) -> Names:
    """Names for a parameter or buffer that a kind reads at this position.

    >>> parameter_dims("linear", 1, 2)
    ('out', 'in')
    """
    known = _PARAMETERS.get(kind, ())
    names = known[position] if position < len(known) else None
    return names if names is not None and len(names) == rank else numbered(rank)


def output_dims(call: Call, inputs: Sequence[Names | None]) -> tuple[Names, ...]:
    """Names for every output of an operator, unique within each."""
    rule = _RULES.get(call.kind, _kept)
    pairs = [(rule(call, inputs, spec.shape), len(spec.shape)) for spec in call.outputs]
    # A rule may not know the form of this call, as that of a product with a vector.
    return tuple(_unique(names if len(names) == rank else numbered(rank)) for names, rank in pairs)


Rule = Callable[[Call, Sequence[Names | None], tuple[int, ...]], Names]


def _kept(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    """The name of the first input whose dim has this size, counted from the back, then the front.

    From the back, because that is how operands broadcast.
    """
    kept = list(numbered(len(shape)))
    for place, size in enumerate(shape):
        for spec, names in zip(call.inputs, inputs, strict=True):
            if spec is None or names is None:
                continue
            from_back = len(spec.shape) - len(shape) + place
            fitting = [
                i for i in (from_back, place) if 0 <= i < len(names) and spec.shape[i] == size
            ]
            if fitting:
                kept[place] = names[fitting[0]]
                break
    return tuple(kept)


def _placed(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    """As the first input, whose dims stay in place though some change their size."""
    first = inputs[0] or ()
    return first if len(first) == len(shape) else numbered(len(shape))


def _product(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    first, second = inputs[0] or (), inputs[1] or ()
    names = (*first[:-1], *second[-1:])
    return names if len(names) == len(shape) else numbered(len(shape))


def _linear(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    return (*(inputs[0] or ())[:-1], FEATURE)


def _convolution(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    first = inputs[0] or numbered(len(shape))
    return (first[0], CHANNEL, *first[2:])


def _lookup(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    indices = inputs[1] or ()
    return (*indices[: len(shape) - 1], FEATURE)


def _transpose(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    names = list(inputs[0] or numbered(len(shape)))
    first, second = call.get("dim0", 0), call.get("dim1", 1)
    assert isinstance(first, int)
    assert isinstance(second, int)
    names[first], names[second] = names[second], names[first]
    return tuple(names)


def _permute(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    names, order = inputs[0] or numbered(len(shape)), call.get("dims")
    assert isinstance(order, tuple)
    return tuple(names[place] for place in order)


def _reshaped(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    """Joins and cuts names along with the dims, group by group of equal size.

    Dims of size 1 that are left over when the old dims are used up are new: numbered. A shape with
    a 0 in it falls into no groups.
    """
    spec, names = call.inputs[0], inputs[0]
    if spec is None or names is None or math.prod(spec.shape) != math.prod(shape):
        return numbered(len(shape))
    regrouped: list[str] = []
    old, new = list(zip(names, spec.shape, strict=True)), list(shape)
    while new:
        before, after = [], [new.pop(0)]
        if old:
            before.append(old.pop(0))
        while math.prod(n for _, n in before) != math.prod(after):
            if math.prod(n for _, n in before) < math.prod(after) and old:
                before.append(old.pop(0))
            elif new:
                after.append(new.pop(0))
            else:
                return numbered(len(shape))
        regrouped += _regrouped([name for name, _ in before], len(after), len(regrouped))
    return tuple(regrouped)


def _regrouped(names: list[str], parts: int, place: int) -> list[str]:
    """As many names as parts for dims that together are what these names were."""
    words = [word for name in names for word in name.split(JOINED)]
    stems = {word.rpartition(PART)[0] for word in words}
    if len(words) > 1 and len(stems) == 1 and "" not in stems:
        words = [*stems]
    if parts == len(words):
        return words
    stem = JOINED.join(words) or f"d{place}"
    if parts == 1:
        return [stem]
    return [f"{stem}{PART}{part}" for part in range(parts)]


def _without_reduced(call: Call, inputs: Sequence[Names | None], shape: tuple[int, ...]) -> Names:
    names, dims = inputs[0] or (), call.get("dim")
    reduced = dims if isinstance(dims, tuple) else (dims,)
    if call.get("keepdim", False):
        return names
    gone = {place % len(names) for place in reduced if isinstance(place, int) and names}
    left = tuple(name for place, name in enumerate(names) if place not in gone)
    return left if len(left) == len(shape) else numbered(len(shape))


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("matmul", "mm", "bmm", "_grouped_mm", "scaled_dot_product_attention"), _product
    ),
    **dict.fromkeys(("conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"), _convolution),
    **dict.fromkeys(("embedding", "embedding_bag"), _lookup),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "_unsafe_view"), _reshaped),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "select", "squeeze"), _without_reduced),
    **dict.fromkeys(("cat", "chunk", "split", "split_with_sizes", "slice", "topk"), _placed),
    **dict.fromkeys(("index_select", "narrow", "repeat_interleave"), _placed),
    "linear": _linear,
    "transpose": _transpose,
    "permute": _permute,
}


def _unique(names: Names) -> Names:
    unique: list[str] = []
    for name in names:
        alike = (f"{name}_{count}" for count in itertools.count(2))
        unique.append(next(n for n in itertools.chain((name,), alike) if n not in unique))
    return tuple(unique)
