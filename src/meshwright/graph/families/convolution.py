"""Convolutions over 1, 2 or 3 spatial dims, plain and transposed, grouped, dilated.

    dim of the output   role        cuts
    sample              sample      x along its first dim
    height, width ...   attribute   x with a halo
    channel             parameter   weight and bias by output channel, where there is one group;
                                    with g groups x, weight and bias together, in g units
    input channel       reduction   x and weight, where there is one group; bias to one part

Each output element takes 2 x (input channels / groups) x window flops, and so does each gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.graph.family import (
    Family,
    Halo,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    integers,
    other_factors,
    replaced,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec

SPATIAL_NAMES: Mapping[int, tuple[str, ...]] = {
    1: ("length",),
    2: ("height", "width"),
    3: ("depth", "height", "width"),
}


def per_dim(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """One value for each spatial dim; a single one stands for all.

    >>> per_dim((3,), 2)
    (3, 3)
    """
    return values * rank if len(values) == 1 else values


def window_count(size: int, halo: Halo, ceil: bool = False) -> int:
    """How many windows fit into a padded dim; `ceil` lets the last begin inside and hang over.

    >>> window_count(7, Halo(kernel=2, stride=2)), window_count(7, Halo(kernel=2, stride=2), True)
    (3, 4)
    """
    room = size + halo.before + halo.after - (halo.kernel - 1) * halo.dilation - 1
    if room < 0:
        raise ShapeError(f"a window of {halo.kernel} does not fit a dim of size {size}")
    if not ceil:
        return room // halo.stride + 1
    count = -(-room // halo.stride) + 1
    return count - 1 if (count - 1) * halo.stride >= size + halo.before else count


def padding_of_piece(
    halos: tuple[Halo, ...], moved: int, halo: Halo, start: int, stop: int, size: int
) -> tuple[int, ...]:
    """The `edges` of a piece that is cut along spatial dim `moved`."""
    edges = [edge for dim_halo in halos for edge in (dim_halo.before, dim_halo.after)]
    edges[2 * moved : 2 * moved + 2] = halo.reads(start, stop, size)[2:]
    return tuple(edges)


@final
class Convolution(Family):
    """x[n, c, ...] with weight[o, c / groups, ...] gives out[n, o, ...]; n may lack."""

    products = True

    def __init__(self, spatial: int) -> None:
        self._spatial = spatial

    def halos(self, call: Call) -> tuple[Halo, ...]:
        """How the window slides along each spatial dim."""
        rank = self._spatial
        kernel = tensor(call, 1).shape[2:]
        stride = per_dim(integers(call, "stride", 1), rank)
        dilation = per_dim(integers(call, "dilation", 1), rank)
        return tuple(
            Halo(kernel=k, stride=s, dilation=d, before=before, after=after)
            for k, s, d, (before, after) in zip(
                kernel, stride, dilation, self._padding(call, kernel, dilation), strict=True
            )
        )

    def _padding(
        self, call: Call, kernel: tuple[int, ...], dilation: tuple[int, ...]
    ) -> list[tuple[int, int]]:
        edges, padding = call.get("edges"), call.get("padding", 0)
        if isinstance(edges, tuple):
            return list(zip(edges[::2], edges[1::2], strict=True))
        if padding == "valid":
            return [(0, 0)] * self._spatial
        if padding == "same":
            total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
            return [(t // 2, t - t // 2) for t in total]
        return [(p, p) for p in per_dim(integers(call, "padding", 0), self._spatial)]

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As many channels as the weight has rows, and one element for each window."""
        x, weight = tensor(call, 0), tensor(call, 1)
        channel = len(x.shape) - self._spatial - 1
        if channel not in (0, 1) or len(weight.shape) != self._spatial + 2:
            raise ShapeError(f"x is {x.shape} and weight {weight.shape}: too many or too few dims")
        groups = integer(call, "groups", 1)
        if x.shape[channel] != weight.shape[1] * groups or weight.shape[0] % groups:
            raise ShapeError(f"x is {x.shape}, weight {weight.shape}, groups {groups}")
        sizes = zip(x.shape[channel + 1 :], self.halos(call), strict=True)
        windows = tuple(window_count(size, halo) for size, halo in sizes)
        return (Spec(x.dtype, (*x.shape[:channel], weight.shape[0], *windows)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Sample, spatial dims with a halo, channels, input channels."""
        x, bias = tensor(call, 0).shape, len(call.inputs) - 2
        channel = len(x) - self._spatial - 1
        whole: tuple[int | None, ...] = (None,) * (1 + bias)
        splits = [
            Split(name="sample", role="sample", extent=x[0], inputs=(0, *whole), outputs=(0,))
        ] * channel
        splits += spatial_splits(call, self.halos(call), channel + 1)
        return (*splits, *channel_splits(call, channel, weight_rows=0, weight_columns=1))

    def flops(self, call: Call) -> int:
        """Two for each weight of the window of each output element."""
        weight = tensor(call, 1).shape
        return 2 * call.outputs[0].elements * math.prod(weight[1:])

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """A convolution each for x and weight; the bias is only added, which nobody counts."""
        return (self.flops(call), self.flops(call), 0)[: len(call.inputs)]

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of either factor's gradient the other factor."""
        return other_factors(wanted, 0, 1)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """Explicit edges for a cut with a halo, fewer groups for a cut between groups."""
        dim = split.inputs[0]
        if split.halo is None or dim is None:
            return piece_of_groups(call, split, start, stop)
        x = tensor(call, 0).shape
        moved = dim - (len(x) - self._spatial)
        edges = padding_of_piece(self.halos(call), moved, split.halo, start, stop, x[dim])
        return replaced(call.attributes, edges=edges, padding=0)


@final
class TransposedConvolution(Family):
    """x[n, c, ...] with weight[c, o / groups, ...]: the adjoint of a convolution."""

    products = True

    def __init__(self, spatial: int) -> None:
        self._spatial = spatial

    def halos(self, call: Call) -> tuple[Halo, ...]:
        """How each input is spread along each spatial dim, and what is cut off."""
        defaults = {"stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}
        stride, dilation, padding, more = (
            per_dim(integers(call, key, default), self._spatial)
            for key, default in defaults.items()
        )
        edges = call.get("edges")
        if not isinstance(edges, tuple):
            pairs = zip(padding, more, strict=True)
            edges = tuple(edge for pad, rest in pairs for edge in (pad, pad - rest))
        return tuple(
            Halo(
                kernel=kernel,
                stride=stride[i],
                dilation=dilation[i],
                before=edges[2 * i],
                after=edges[2 * i + 1],
                transposed=True,
            )
            for i, kernel in enumerate(tensor(call, 1).shape[2:])
        )

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The sizes that a convolution with the same window would have read."""
        x, weight = tensor(call, 0), tensor(call, 1)
        channel = len(x.shape) - self._spatial - 1
        groups = integer(call, "groups", 1)
        if channel not in (0, 1) or x.shape[channel : channel + 1] != weight.shape[:1]:
            raise ShapeError(f"x is {x.shape}, weight {weight.shape}, groups {groups}")
        sizes = tuple(
            (size - 1) * halo.stride
            + halo.dilation * (halo.kernel - 1)
            + 1
            - halo.before
            - halo.after
            for size, halo in zip(x.shape[channel + 1 :], self.halos(call), strict=True)
        )
        return (Spec(x.dtype, (*x.shape[:channel], weight.shape[1] * groups, *sizes)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Sample, spatial dims with a halo, channels, input channels."""
        x = tensor(call, 0).shape
        channel = len(x) - self._spatial - 1
        rest = (None,) * (len(call.inputs) - 1)
        sample = Split(name="sample", role="sample", extent=x[0], inputs=(0, *rest), outputs=(0,))
        spatial = spatial_splits(call, self.halos(call), channel + 1)
        channels = channel_splits(call, channel, weight_rows=1, weight_columns=0)
        return (*(sample,) * channel, *spatial, *channels)

    def flops(self, call: Call) -> int:
        """Two for each weight of the window of each input element."""
        return 2 * tensor(call, 0).elements * math.prod(tensor(call, 1).shape[1:])

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """A convolution each for x and weight; the bias is only added, which nobody counts."""
        return (self.flops(call), self.flops(call), 0)[: len(call.inputs)]

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Of either factor's gradient the other factor."""
        return other_factors(wanted, 0, 1)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """What is cut off for a cut with a halo, fewer groups for a cut between groups."""
        dim = split.inputs[0]
        if split.halo is None or dim is None:
            return piece_of_groups(call, split, start, stop)
        x = tensor(call, 0).shape
        moved = dim - (len(x) - self._spatial)
        edges = padding_of_piece(self.halos(call), moved, split.halo, start, stop, x[dim])
        return replaced(call.attributes, edges=edges, padding=0, output_padding=0)


def spatial_splits(call: Call, halos: tuple[Halo, ...], first: int) -> list[Split]:
    """Cuts along spatial dims, of which `first` is the first."""
    named = zip(SPATIAL_NAMES[len(halos)], halos, strict=True)
    return [
        Split(
            name=name,
            role="attribute",
            extent=call.outputs[0].shape[dim],
            inputs=(dim, *(None,) * (len(call.inputs) - 1)),
            outputs=(dim,),
            halo=halo,
        )
        for dim, (name, halo) in enumerate(named, first)
    ]


def channel_splits(
    call: Call, channel: int, *, weight_rows: int, weight_columns: int
) -> tuple[Split, ...]:
    """Cuts by output channel and by input channel, or between groups if there are several."""
    bias = len(call.inputs) - 2
    groups = integer(call, "groups", 1)
    if groups > 1:
        between = Split(
            name="channel",
            role="parameter",
            extent=groups,
            inputs=(channel, 0, *(0,) * bias),
            outputs=(channel,),
        )
        return (between,)
    output = Split(
        name="channel",
        role="parameter",
        extent=call.outputs[0].shape[channel],
        inputs=(None, weight_rows, *(0,) * bias),
        outputs=(channel,),
    )
    inner = Split(
        name="input-channel",
        role="reduction",
        extent=tensor(call, 0).shape[channel],
        inputs=(channel, weight_columns, *(None,) * bias),
        outputs=(None,),
        once=(2,) * bias,
    )
    return (output, inner)


def piece_of_groups(call: Call, split: Split, start: int, stop: int) -> Attributes:
    """The groups that are left in a piece."""
    if split.role != "parameter" or integer(call, "groups", 1) == 1:
        return call.attributes
    return replaced(call.attributes, groups=stop - start)


KINDS: Mapping[str, Family] = {
    **{f"conv{n}d": Convolution(n) for n in SPATIAL_NAMES},
    **{f"conv_transpose{n}d": TransposedConvolution(n) for n in SPATIAL_NAMES},
}
