"""Image resampling and im2col: upsample_*, grid_sampler_*; max pooling with indices.

Samples and channels may be cut. Positions of an output read inputs that depend on both sizes, so
they stay whole, but for a grid's own positions, each of which says where it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from meshwright.graph.families.convolution import per_dim
from meshwright.graph.families.pooling import Pooling, sample_channel_splits
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    along,
    integers,
    tensor,
)
from meshwright.graph.operator_graph import Call, Spec


@final
class Upsample(Family):
    """Each position a mixture of `taps` neighbours along each of the last dims."""

    def __init__(self, spatial: int, taps: int) -> None:
        self._spatial, self._taps = spatial, taps

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for, or the input's times the factors, rounded down."""
        x = tensor(call, 0)
        sizes = x.shape[-self._spatial :]
        if len(x.shape) != self._spatial + 2:
            raise ShapeError(f"x is {x.shape}, not samples of {self._spatial} spatial dims")
        if call.get("output_size") is not None:
            return (Spec(x.dtype, (*x.shape[:2], *integers(call, "output_size"))),)
        factors = [float(word) for word in str(call.get("scale_factors", "")).split()]
        if len(factors) != self._spatial:
            raise ShapeError("neither a size nor factors are given")
        grown = (math.floor(size * factor) for size, factor in zip(sizes, factors, strict=True))
        return (Spec(x.dtype, (*x.shape[:2], *grown)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Samples and channels."""
        return sample_channel_splits(call, self._spatial)

    def flops(self, call: Call) -> int:
        """A product and a sum for each neighbour."""
        taps: int = self._taps**self._spatial
        return 2 * taps * call.outputs[0].elements if taps > 1 else 0


@final
class GridSampler(Family):
    """x[n, c, ...] read at grid[n, ..., places], one place for each output position."""

    def __init__(self, spatial: int) -> None:
        self._spatial = spatial

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """Channels of x at the positions of the grid."""
        x, grid = tensor(call, 0), tensor(call, 1)
        rank = self._spatial + 2
        if not len(x.shape) == len(grid.shape) == rank or x.shape[0] != grid.shape[0]:
            raise ShapeError(f"x is {x.shape} and the grid {grid.shape}")
        return (Spec(x.dtype, (*x.shape[:2], *grid.shape[1:-1])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Samples, channels and positions."""
        positions = (along(dim, call, (None, dim - 1)) for dim in range(2, self._spatial + 2))
        return (along(0, call, (0, 0)), along(1, call, (1, None)), *positions)

    def flops(self, call: Call) -> int:
        """A product and a sum for each of two neighbours along each dim."""
        return 2 * (1 << self._spatial) * call.outputs[0].elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The image and the grid."""
        return Saved(inputs=(0, 1))


@final
class Columns(Family):
    """im2col lays the windows of an image out as columns, col2im adds columns up to an image.

    A channel of the image is as many rows of the columns as a window has elements.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A row for each channel and element of a window, a column for each window; or back."""
        x = tensor(call, 0)
        window = math.prod(integers(call, "kernel_size"))
        if call.kind == "col2im":
            lead, rows = x.shape[:-2], x.shape[-2]
            if rows % window:
                raise ShapeError(f"{rows} rows are not made of windows of {window} elements")
            return (Spec(x.dtype, (*lead, rows // window, *integers(call, "output_size"))),)
        lead, channels, image = x.shape[:-3], x.shape[-3], x.shape[-2:]
        return (Spec(x.dtype, (*lead, channels * window, math.prod(self._windows(call, image)))),)

    def _windows(self, call: Call, image: tuple[int, ...]) -> list[int]:
        """How many windows there are along each dim."""
        keys = ("kernel_size", "dilation", "padding", "stride")
        dims = zip(image, *(per_dim(integers(call, key), 2) for key in keys), strict=True)
        return [
            (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
            for size, kernel, dilation, padding, stride in dims
        ]

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Samples and channels."""
        x, out = tensor(call, 0).shape, call.outputs[0].shape
        channel = len(x) - (2 if call.kind == "col2im" else 3)
        return tuple(
            Split(
                name="sample" if dim == 0 and channel else "channel",
                role="sample" if dim == 0 and channel else "attribute",
                extent=min(x[dim], out[dim]),
                inputs=(dim,),
                outputs=(dim,),
            )
            for dim in range(channel + 1)
        )

    def flops(self, call: Call) -> int:
        """An addition for each element of the columns, if they are added up."""
        return tensor(call, 0).elements if call.kind == "col2im" else 0


@final
class Maxima(Family):
    """The largest element of each window and its place in the whole image, so that none is cut."""

    def __init__(self, spatial: int, *, adaptive: bool) -> None:
        self._spatial, self._pooling = spatial, None if adaptive else Pooling(spatial, mean=False)

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for, or that of as many windows as fit."""
        x = tensor(call, 0)
        if self._pooling is not None:
            (values,) = self._pooling.outputs(call)
        else:
            size = per_dim(integers(call, "output_size"), self._spatial)
            values = Spec(x.dtype, (*x.shape[: -self._spatial], *size))
        return values, Spec("int64", values.shape)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Samples and channels."""
        return sample_channel_splits(call, self._spatial)

    def flops(self, call: Call) -> int:
        """A comparison for each input element."""
        return tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The input, for its shape, and the places."""
        return Saved(inputs=(0,), outputs=(1,))


_DIMS = (1, 2, 3)

KINDS: Mapping[str, Family] = {
    **{f"upsample_nearest{n}d": Upsample(n, 1) for n in _DIMS},
    **{f"_upsample_nearest_exact{n}d": Upsample(n, 1) for n in _DIMS},
    "upsample_linear1d": Upsample(1, 2),
    "upsample_bilinear2d": Upsample(2, 2),
    "_upsample_bilinear2d_aa": Upsample(2, 4),
    "upsample_trilinear3d": Upsample(3, 2),
    "upsample_bicubic2d": Upsample(2, 4),
    "_upsample_bicubic2d_aa": Upsample(2, 8),
    **{f"grid_sampler_{n}d": GridSampler(n) for n in (2, 3)},
    **{kind: Columns() for kind in ("im2col", "col2im")},
    **{f"adaptive_max_pool{n}d": Maxima(n, adaptive=True) for n in _DIMS},
    **{f"max_pool{n}d_with_indices": Maxima(n, adaptive=False) for n in _DIMS},
}
