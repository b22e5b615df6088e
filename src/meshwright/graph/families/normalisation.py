"""Normalisations: layer_norm, rms_norm, group_norm, instance_norm, batch_norm.

kind         sample, attribute          parameter                  whole
layer, rms   dims that are not normed   -                          dims that are normed
group        sample                     channel, in groups         dims inside a group
instance     sample, unless statistics  channel                    spatial
             are followed over samples
batch        sample, spatial, if the    channel                    -
parts sum their statistics
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.families.convolution import SPATIAL_NAMES
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    along,
    integer,
    integers,
    replaced,
    tensor,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec

_FLOPS_PER_ELEMENT = 8
"""Mean, variance (3), normalise (2), scale, shift."""


def _of_channels(call: Call) -> tuple[int | None, ...]:
    """Where what is there for each channel has its channels: weight, bias, running statistics."""
    return tuple(None if spec is None else 0 for spec in call.inputs[1:])


def statistics_bytes(numbers: int) -> Bytes:
    """Means and inverse deviations are kept in float32."""
    return Spec("float32", (numbers,)).bytes


@final
class LayerNorm(Family):
    """The last dims are normed together; `statistics` numbers are kept for each row."""

    def __init__(self, *, statistics: int) -> None:
        self._statistics = statistics

    def _leading(self, call: Call) -> int:
        """How many dims are not normed."""
        return len(tensor(call, 0).shape) - len(integers(call, "normalized_shape"))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input; ATen's own kind tells mean and inverse deviation too."""
        x, normed = tensor(call, 0), integers(call, "normalized_shape")
        if x.shape[self._leading(call) :] != normed:
            raise ShapeError(f"x is {x.shape}, its last dims are not {normed}")
        if call.kind != "native_layer_norm":
            return (x,)
        statistics = Spec(x.dtype, x.shape[: self._leading(call)] + (1,) * len(normed))
        return x, statistics, statistics

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The dims that are not normed."""
        rest = (None,) * (len(call.inputs) - 1)
        return tuple(along(dim, call, (dim, *rest)) for dim in range(self._leading(call)))

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Input, weight and statistics."""
        rows = Spec("float32", tensor(call, 0).shape[: self._leading(call)])
        extra = statistics_bytes(self._statistics * rows.elements)
        return Saved(inputs=tuple(range(len(call.inputs)))[:2], extra=extra)


@final
class GroupNorm(Family):
    """Channels are normed in groups, together with all spatial dims."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        x, groups = tensor(call, 0), integer(call, "num_groups")
        if len(x.shape) < 2 or x.shape[1] % groups:
            raise ShapeError(f"x is {x.shape}, its channels do not make {groups} groups")
        return (x,)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Sample, and channels in groups."""
        rest = len(call.inputs) - 1
        between = Split(
            name="channel",
            role="parameter",
            extent=integer(call, "num_groups"),
            inputs=(1, *_of_channels(call)),
            outputs=(1,),
        )
        return (along(0, call, (0, *(None,) * rest)), between)

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Input, weight, two statistics for each group of each sample."""
        numbers = 2 * tensor(call, 0).shape[0] * integer(call, "num_groups")
        inputs = tuple(range(len(call.inputs)))[:2]
        return Saved(inputs=inputs, extra=statistics_bytes(numbers))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """The groups that are left."""
        if split.name != "channel":
            return call.attributes
        return replaced(call.attributes, num_groups=stop - start)


@final
class InstanceNorm(Family):
    """instance_norm(x, weight, bias, running mean, running variance): each channel of each sample
    by itself, unless it is normed by running statistics.

    Running statistics that are followed are means over all samples, which then stay whole.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        x = tensor(call, 0)
        for spec in call.inputs[1:]:
            if spec is not None and spec.shape != x.shape[1:2]:
                raise ShapeError(f"x is {x.shape}, but a channel operand is {spec.shape}")
        return (x,)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Sample and channel."""
        rest = len(call.inputs) - 1
        follows = bool(call.get("use_input_stats", True)) and any(call.inputs[3:])
        channel = Split(
            name="channel",
            role="parameter",
            extent=tensor(call, 0).shape[1],
            inputs=(1, *_of_channels(call)),
            outputs=(1,),
        )
        samples = along(0, call, (0, *(None,) * rest))
        return (channel,) if follows else (samples, channel)

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Input, weight, two statistics for each channel of each sample."""
        numbers = 2 * tensor(call, 0).shape[0] * tensor(call, 0).shape[1]
        inputs = tuple(range(len(call.inputs)))[:2]
        return Saved(inputs=inputs, extra=statistics_bytes(numbers))


@final
class BatchNorm(Family):
    """batch_norm(x, weight, bias, running mean, running variance): normed over all but channels.

    In training the statistics are those of the batch: parts of a batch sum theirs.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """As the input."""
        x = tensor(call, 0)
        for spec in call.inputs[1:]:
            if spec is not None and spec.shape != x.shape[1:2]:
                raise ShapeError(f"x is {x.shape}, but a channel operand is {spec.shape}")
        return (x,)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim."""
        x, channel_dims = tensor(call, 0).shape, _of_channels(call)
        statistics = 2 * x[1] if call.get("training", True) else 0
        names = ("sample", "channel", *SPATIAL_NAMES.get(len(x) - 2, ()))
        return tuple(
            Split(
                name=name,
                role="parameter" if dim == 1 else "sample" if dim == 0 else "attribute",
                extent=x[dim],
                inputs=(dim, *(channel_dims if dim == 1 else (None,) * len(channel_dims))),
                outputs=(dim,),
                statistics=0 if dim == 1 else statistics,
            )
            for dim, name in enumerate(names)
        )

    def flops(self, call: Call) -> int:
        """A few for each element."""
        return _FLOPS_PER_ELEMENT * tensor(call, 0).elements

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Input, weight, two statistics for each channel."""
        inputs = tuple(range(len(call.inputs)))[:2]
        return Saved(inputs=inputs, extra=statistics_bytes(2 * tensor(call, 0).shape[1]))


KINDS: Mapping[str, Family] = {
    "layer_norm": LayerNorm(statistics=2),
    "native_layer_norm": LayerNorm(statistics=2),
    "rms_norm": LayerNorm(statistics=1),
    "group_norm": GroupNorm(),
    "instance_norm": InstanceNorm(),
    "batch_norm": BatchNorm(),
}
