"""Pooling over 1, 2 or 3 spatial dims: max, average, adaptive average.

No parameters, so every dim of the output is sample or attribute; spatial dims are cut with a halo.
An adaptive pooling whose windows do not overlap is cut at its windows; one to a single element is
a mean, which spatial cuts turn into a sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import msgspec

from meshwright.graph.families.convolution import (
    SPATIAL_NAMES,
    padding_of_piece,
    per_dim,
    window_count,
)
from meshwright.graph.family import (
    Family,
    Halo,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integers,
    replaced,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


def sample_channel_splits(call: Call, spatial: int) -> tuple[Split, ...]:
    """Sample and channel, of which every pooling treats each element alone."""
    lead = len(tensor(call, 0).shape) - spatial
    names = ("sample", "channel")[2 - lead :]
    return tuple(
        Split(
            name=name,
            role="sample" if name == "sample" else "attribute",
            extent=call.outputs[0].shape[dim],
            inputs=(dim,),
            outputs=(dim,) * len(call.outputs),
        )
        for dim, name in enumerate(names)
    )


@final
class Pooling(Family):
    """One number for each window: its maximum or its mean."""

    def __init__(self, spatial: int, *, mean: bool) -> None:
        self._spatial, self._mean = spatial, mean

    def halos(self, call: Call) -> tuple[Halo, ...]:
        """How the window slides along each spatial dim; by default by its own size."""
        return tuple(
            msgspec.structs.replace(halo, after=self._overhang(size, halo, windows))
            for size, halo, windows in zip(
                tensor(call, 0).shape[-self._spatial :],
                self._windows(call),
                call.outputs[0].shape[-self._spatial :],
                strict=True,
            )
        )

    def _overhang(self, size: int, halo: Halo, windows: int) -> int:
        """The padding after a dim, and what the last window of ceil mode needs beyond it."""
        return max(halo.after, halo.reads(0, windows, size)[3])

    def _windows(self, call: Call) -> tuple[Halo, ...]:
        """The windows as the attributes give them."""
        rank = self._spatial
        kernel = per_dim(integers(call, "kernel_size"), rank)
        stride = per_dim(integers(call, "stride", ()) or kernel, rank)
        dilation = per_dim(integers(call, "dilation", 1), rank)
        padding = per_dim(integers(call, "padding", 0), rank)
        edges = integers(call, "edges", tuple(p for p in padding for _ in range(2)))
        return tuple(
            Halo(
                kernel=kernel[i],
                stride=stride[i],
                dilation=dilation[i],
                before=edges[2 * i],
                after=edges[2 * i + 1],
            )
            for i in range(rank)
        )

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """One element for each window."""
        x = tensor(call, 0)
        lead = len(x.shape) - self._spatial
        if lead not in (1, 2):
            raise ShapeError(f"x is {x.shape}: too many or too few dims")
        ceil = bool(call.get("ceil_mode", False))
        sizes = zip(x.shape[lead:], self._windows(call), strict=True)
        windows = (window_count(size, halo, ceil) for size, halo in sizes)
        return (Spec(x.dtype, (*x.shape[:lead], *windows)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim of the output.

        A mean in ceil mode divides windows that hang over by how much of them lies inside, and one
        with a divisor of its own by that: their spatial dims stay whole.
        """
        own_divisor = call.get("divisor_override") is not None
        if self._mean and (own_divisor or call.get("ceil_mode", False)):
            return sample_channel_splits(call, self._spatial)
        lead = len(tensor(call, 0).shape) - self._spatial
        spatial = tuple(
            Split(
                name=name,
                role="attribute",
                extent=call.outputs[0].shape[dim],
                inputs=(dim,),
                outputs=(dim,),
                halo=halo,
            )
            for dim, (name, halo) in enumerate(
                zip(SPATIAL_NAMES[self._spatial], self.halos(call), strict=True), lead
            )
        )
        return sample_channel_splits(call, self._spatial) + spatial

    def flops(self, call: Call) -> int:
        """One for each element of each window."""
        return call.outputs[0].elements * math.prod(halo.kernel for halo in self._windows(call))

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The input, for its shape if nothing else; of a maximum also where it was (int64)."""
        if self._mean:
            return Saved(inputs=(0,))
        where = Spec("int64", call.outputs[0].shape)
        return Saved(inputs=(0,), extra=where.bytes)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """Explicit edges for a cut with a halo."""
        dim = split.inputs[0]
        if split.halo is None or dim is None:
            return call.attributes
        x = tensor(call, 0).shape
        moved = dim - (len(x) - self._spatial)
        edges = padding_of_piece(self.halos(call), moved, split.halo, start, stop, x[dim])
        return replaced(call.attributes, edges=edges, padding=0, ceil_mode=False)


@final
class AdaptiveMean(Family):
    """Windows chosen so that the output has a given size."""

    def __init__(self, spatial: int) -> None:
        self._spatial = spatial

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The size asked for."""
        x = tensor(call, 0)
        size = per_dim(integers(call, "output_size"), self._spatial)
        return (Spec(x.dtype, x.shape[: -self._spatial] + size),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Spatial dims at windows that do not overlap; none where they do."""
        x, out = tensor(call, 0).shape, call.outputs[0].shape
        lead = len(x) - self._spatial
        splits = list(sample_channel_splits(call, self._spatial))
        to_one = all(size == 1 for size in out[lead:])
        for dim, name in enumerate(SPATIAL_NAMES[self._spatial], lead):
            if to_one:
                splits.append(
                    Split(
                        name=name,
                        role="reduction",
                        extent=x[dim],
                        inputs=(dim,),
                        outputs=(None,),
                    )
                )
            elif x[dim] % out[dim] == 0:
                splits.append(
                    Split(
                        name=name,
                        role="attribute",
                        extent=out[dim],
                        inputs=(dim,),
                        outputs=(dim,),
                    )
                )
        return tuple(splits)

    def flops(self, call: Call) -> int:
        """One for each input element."""
        return tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The input, unless it is a plain mean."""
        to_one = all(size == 1 for size in call.outputs[0].shape[-self._spatial :])
        return Saved() if to_one else Saved(inputs=(0,))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A smaller output, or a larger divisor than the piece itself has elements."""
        lead = len(tensor(call, 0).shape) - self._spatial
        dim = split.inputs[0]
        if dim is None or dim < lead:
            return call.attributes
        if split.role == "reduction":
            total = math.prod(tensor(call, 0).shape[lead:])
            return replaced(call.attributes, divisor=call.get("divisor", total))
        size = list(per_dim(integers(call, "output_size"), self._spatial))
        size[dim - lead] = stop - start
        return replaced(call.attributes, output_size=tuple(size))


KINDS: Mapping[str, Family] = {
    **{f"max_pool{n}d": Pooling(n, mean=False) for n in SPATIAL_NAMES},
    **{f"avg_pool{n}d": Pooling(n, mean=True) for n in SPATIAL_NAMES},
    **{f"adaptive_avg_pool{n}d": AdaptiveMean(n) for n in SPATIAL_NAMES},
}
