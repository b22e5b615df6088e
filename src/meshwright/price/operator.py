"""Seconds of an operator on a device, forward and backward, and where each figure comes from.

Enters: a call, a device and, if there is one, a table of measured calls. Leaves: `OperatorPrice`.
With F flops and B bytes of a pass (`graph.counts`), the estimate is a roofline,
    time = launch · kernels + max( F / (peak · efficiency),  B / (bandwidth · streaming) )
where the efficiency of products falls with sizes that leave matrix units idle:
    efficiency = best · Π over product dims of  d / (d + half)  · alignment.
A measured call overrides it. Between measured calls of the same kind and dtype the estimate is
corrected by what those nearest to it were measured at,
    price = estimate · exp( Σ w_i log(measured_i / estimate_i) / Σ w_i ),   w_i = 1 / distance_i²
with distances between the logarithms of flops, bytes and the extents of each role. The stated
error is the weighted spread of those corrections. How several operators overlap is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

from meshwright.cluster.model import Device
from meshwright.foundation.units import Seconds
from meshwright.graph.counts import Counts, backward, forward, is_real
from meshwright.graph.families import family_of
from meshwright.graph.model import Call
from meshwright.graph.pieces import splits_of
from meshwright.price.table import MeasuredCall, PriceTable

Source = Literal["measured", "interpolated", "estimated"]

NEAREST = 6
"""How many measured calls an interpolation looks at."""

PEAKS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The name of a dtype's peak rate in a device's description."""

STREAMING = 0.85
"""The share of the memory bandwidth that a large element-wise kernel reaches."""

LAUNCH = Seconds(2e-6)
"""The least time of a kernel."""

BEST = 0.8
"""The share of the peak rate that a large product reaches."""

HALF = 96
"""The extent of a role at which a product reaches half of what it would at a large one."""

UNALIGNED = 0.6
"""What is left of the rate if a 16-bit product has an extent that eight does not divide."""


class PassPrice(NamedTuple):
    """One pass of an operator."""

    seconds: Seconds
    source: Source
    error: float | None = None
    """The spread among the measured calls it was read off, as a share; None if there are none."""


class OperatorPrice(NamedTuple):
    """Both passes of an operator."""

    forward: PassPrice
    backward: PassPrice


NOTHING = PassPrice(Seconds(0.0), "estimated")


class OperatorPricer:
    """Prices calls on one device, each once."""

    def __init__(self, device: Device, table: PriceTable | None = None) -> None:
        self.device = device
        self._peaks = dict(device.peak)
        self._known: dict[tuple[Call, tuple[bool, ...]], OperatorPrice] = {}
        self._alike: dict[object, list[_Point]] = {}
        self._measured: dict[Call, MeasuredCall] = {}
        for row in table.rows if table is not None else ():
            self._measured[row.call] = row
            self._alike.setdefault(_class(row.call), []).append(self._point(row))

    def price(self, call: Call, wanted: tuple[bool, ...] | None = None) -> OperatorPrice:
        """Both passes of a call, the backward one for the gradients that are wanted."""
        key = (call, all_gradients(call) if wanted is None else wanted)
        if key not in self._known:
            self._known[key] = self._price(*key)
        return self._known[key]

    def estimate(self, counts: Counts, call: Call, kernels: int) -> Seconds:
        """The roofline of one pass."""
        if not counts.bytes and not counts.flops:
            return Seconds(0.0)
        dtype = _dtype(call)
        peak = self._peaks.get(PEAKS.get(dtype, "fp32")) or max(self._peaks.values(), default=1e12)
        rate = peak * (efficiency(call) if family_of(call.kind).products else 1.0)
        moving = counts.bytes / (self.device.memory_bandwidth * STREAMING)
        return Seconds(LAUNCH * kernels + max(counts.flops / rate, moving))

    def _price(self, call: Call, wanted: tuple[bool, ...]) -> OperatorPrice:
        if family_of(call.kind).view:
            return OperatorPrice(NOTHING, NOTHING)
        there, back = self._estimates(call, wanted)
        row = self._measured.get(call)
        if row is not None:
            _, everything = self._estimates(call, all_gradients(call))
            share = back / everything if everything else 0.0
            backward_seconds = Seconds((row.backward or 0.0) * share)
            return OperatorPrice(
                PassPrice(row.forward, "measured", 0.0),
                PassPrice(backward_seconds, "measured", 0.0),
            )
        near = self._neighbours(call)
        return OperatorPrice(
            _corrected(there, [(weight, point.forward) for weight, point in near]),
            _corrected(back, [(weight, point.backward) for weight, point in near]),
        )

    def _estimates(self, call: Call, wanted: tuple[bool, ...]) -> tuple[Seconds, Seconds]:
        gradients = max(1, sum(wanted)) if family_of(call.kind).products else 1
        return (
            self.estimate(forward(call), call, 1),
            self.estimate(backward(call, wanted), call, gradients),
        )

    def _neighbours(self, call: Call) -> list[tuple[float, _Point]]:
        """The measured calls nearest to a call, with their weights."""
        here = features(call)
        by_distance = sorted(
            (
                (_distance(here, point.features), i, point)
                for i, point in enumerate(self._alike.get(_class(call), ()))
            ),
        )
        return [(1 / (d * d + 1e-3), point) for d, _, point in by_distance[:NEAREST]]

    def _point(self, row: MeasuredCall) -> _Point:
        there, back = self._estimates(row.call, all_gradients(row.call))
        return _Point(
            features(row.call),
            math.log(row.forward / there) if there and row.forward > 0 else None,
            math.log(row.backward / back) if back and row.backward else None,
        )


class _Point(NamedTuple):
    """A measured call: where it lies, and the logarithms of measured over estimated."""

    features: Mapping[str, float]
    forward: float | None
    backward: float | None


def all_gradients(call: Call) -> tuple[bool, ...]:
    """Gradients for every input that can have one.

    >>> from meshwright.graph.model import Spec
    >>> table, rows = Spec("float32", (10, 4)), Spec("int64", (3,))
    >>> all_gradients(Call(kind="embedding", inputs=(table, rows), outputs=()))
    (True, False)
    """
    return tuple(spec is not None and is_real(spec.dtype) for spec in call.inputs)


def efficiency(call: Call) -> float:
    """The share of the peak rate that a product reaches, by its extents and their alignment."""
    extents = extents_of(call)
    share = BEST
    for extent in extents.values():
        share *= extent / (extent + HALF)
    narrow = _dtype(call) in ("float16", "bfloat16")
    if narrow and any(extent % 8 for extent in extents.values()):
        share *= UNALIGNED
    return share


def extents_of(call: Call) -> dict[str, int]:
    """The extents of a call's splits, multiplied by what they do to a kernel.

    Samples and attributes, which play the same part in every kernel, are its rows.

    >>> from meshwright.graph.model import Spec
    >>> x, w, y = Spec("float32", (8, 16, 3)), Spec("float32", (5, 3)), Spec("float32", (8, 16, 5))
    >>> extents_of(Call(kind="linear", inputs=(x, w), outputs=(y,)))
    {'rows': 128, 'parameter': 5, 'reduction': 3}
    """
    extents: dict[str, int] = {}
    for split in splits_of(call):
        name = "rows" if split.role in ("sample", "attribute") else split.role
        extents[name] = extents.get(name, 1) * split.extent
    return extents


def features(call: Call) -> dict[str, float]:
    """What tells calls of one kind apart, as logarithms to base 2."""
    counts = forward(call)
    sizes = {"flops": counts.flops, "bytes": counts.bytes, **extents_of(call)}
    return {name: math.log2(max(1, size)) for name, size in sizes.items()}


def _distance(here: Mapping[str, float], there: Mapping[str, float]) -> float:
    names = here.keys() | there.keys()
    return math.sqrt(sum((here.get(n, 0.0) - there.get(n, 0.0)) ** 2 for n in names))


def _class(call: Call) -> tuple[object, ...]:
    """What calls must share to be compared: kind, dtype and every flag, but no size."""
    flags = tuple(
        (key, value)
        for key, value in call.attributes
        if isinstance(value, bool | str) or value is None
    )
    return call.kind, _dtype(call), flags


def _dtype(call: Call) -> str:
    """The dtype that a call computes in: that of its first real tensor."""
    specs = [spec for spec in (*call.inputs, *call.outputs) if spec is not None]
    return next((spec.dtype for spec in specs if is_real(spec.dtype)), "float32")


def _corrected(estimate: Seconds, near: list[tuple[float, float | None]]) -> PassPrice:
    """The estimate moved by what was measured nearby."""
    known = [(weight, ratio) for weight, ratio in near if ratio is not None]
    if not estimate or not known:
        return PassPrice(estimate, "estimated")
    total = sum(weight for weight, _ in known)
    mean = sum(weight * ratio for weight, ratio in known) / total
    spread = math.sqrt(sum(w * (ratio - mean) ** 2 for w, ratio in known) / total)
    return PassPrice(Seconds(estimate * math.exp(mean)), "interpolated", spread)
