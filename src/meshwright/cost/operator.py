"""Operator cost model: roofline (Williams et al. 2009), corrected by measured calls.

Enters: a call, a device and, if there is one, a table of measured calls. Leaves: `OperatorPrice`.
With F flops and B bytes of a pass (`graph.counts`), the estimate is a roofline,
    time = launch · kernels + max( F / (peak · efficiency),  B / (bandwidth · streaming) )
where the efficiency of products falls with sizes that leave matrix units idle:
    efficiency = best · Π over extents e of  e / (e + half)  · alignment.
The constants are those of the device's `Rates`, and its `Software` says which of them hold: kernels
that are fused move a share of their bytes; products with weights may run in a narrower precision;
attention that is not fused moves its scores besides.
A measured call overrides it. Between measured calls that are alike (kind, dtype, flags, alignment)
the estimate is multiplied by exp(c), with c read off the nearest of them: y_i is the logarithm of
measured over estimated, z_i the difference of features (logarithms of sizes), w_i = 1 / |z_i|², and
    c = the value at z = 0 of the line that minimises  Σ w_i (y_i - c - β·z_i)² + ridge · |β|².
The stated error is the weighted spread of the y_i about it. How operators overlap is not known
here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Device
from meshwright.cluster.rates import Rates
from meshwright.cost.extents import GROUPED, convolution_window, extents_of, group_count
from meshwright.cost.profile_table import MeasuredCall, PriceTable
from meshwright.graph.counts import Counts, backward, forward, is_differentiable
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import ITEM_BYTES, Call, Value
from meshwright.graph.pieces import representative

DEFAULT = Rates()

Source = Literal["measured", "interpolated", "estimated"]
Pass = Literal["forward", "backward"]

NEAREST = 16
"""How many measured calls an interpolation looks at."""

RIDGE = 0.05
"""What holds the slopes of an interpolation back."""

PEAKS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""The name of a dtype's peak rate in a device's description."""

UNKNOWN_PEAK = 1e12
"""FLOPs in a second of a device whose description has no peak at all."""

SCANNING = frozenset({"softmax", "_softmax", "log_softmax", "_log_softmax", "dropout"})
"""Kinds that reach another share of the memory bandwidth than plain element-wise ones."""

ATTENTION = "scaled_dot_product_attention"

EVEN = 2
"""The alignment of an even extent that 8 does not divide."""

WEIGHTED = frozenset({"linear", "addmm", GROUPED})
"""Kinds of products with weights, which `Software.products` narrows."""

FOUR_BITS = "fp4"
"""`Software.products` of recipes in 4 bits."""

MATRIX_UNITS = ("float16", "bfloat16")
"""Dtypes whose products run on matrix units."""

BACKWARD_SCORES = 2.0
"""How many times as often the backward pass of attention that is not fused moves its scores."""

BACKWARD_LAUNCHES = 2.0
"""How many times as long the host needs for an operator's backward pass."""

SHORTEST = Seconds(2e-6)
"""Shorter passes are compared as if they took this long: about the least that a kernel takes."""


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
        self.device, self.rates = device, device.reached
        self._peaks = dict(device.peak)
        self._known: dict[tuple[Call, tuple[bool, ...]], OperatorPrice] = {}
        self.sums: dict[object, dict[tuple[int, ...], tuple[int, int]]] = {}
        """What rooms above have added up for calls in a row, by these and by how they are cut."""
        self._measured = {row.call: row for row in table.rows} if table is not None else {}
        points: dict[object, list[_Point]] = {}
        for row in self._measured.values():
            points.setdefault(_class(row.call), []).append(self._point(row))
        self._alike = {key: _Alike(group) for key, group in points.items()}

    @property
    def estimates(self) -> bool:
        """Whether every price is the roofline's."""
        return not self._measured

    def price(self, call: Call, wanted: tuple[bool, ...] | None = None) -> OperatorPrice:
        """Both passes of a call, the backward one for the gradients that are wanted."""
        key = (representative(call), all_gradients(call) if wanted is None else wanted)
        if key not in self._known:
            self._known[key] = self._price(*key)
        return self._known[key]

    def launching(self, call: Call, wanted: tuple[bool, ...]) -> tuple[Seconds, Seconds]:
        """What the host takes to launch both passes, views and all: there once for each part of
        the call, back twice.
        """
        parts = len(family_of(call).stages(call, wanted)) or 1
        forth = Seconds(self.rates.dispatch * parts)
        return forth, Seconds(BACKWARD_LAUNCHES * forth if any(wanted) else 0.0)

    def ideal(self, counts: Counts, call: Call) -> Seconds:
        """The least that one pass takes at the peak rates of the device."""
        moving = counts.bytes / self.device.memory_bandwidth
        return Seconds(max(counts.flops / self._peak(call), moving))

    def _narrowed(self, call: Call) -> bool:
        narrow = bool(self.device.running.products) and _dtype(call) in MATRIX_UNITS
        return narrow and call.kind in WEIGHTED

    def _peak(self, call: Call) -> float:
        name = PEAKS.get(_dtype(call), "fp32")
        known = self._peaks.get(self.device.running.products if self._narrowed(call) else name)
        return known or max(self._peaks.values(), default=UNKNOWN_PEAK)

    def _price(self, call: Call, wanted: tuple[bool, ...]) -> OperatorPrice:
        if family_of(call).view:
            return OperatorPrice(NOTHING, NOTHING)
        forward_time, backward_time = self._estimates(call, wanted)
        row = self._measured.get(call)
        if row is not None:
            _, everything = self._estimates(call, all_gradients(call))
            share = backward_time / everything if everything else 0.0
            backward_seconds = Seconds((row.backward or 0.0) * share)
            return OperatorPrice(
                PassPrice(row.forward, "measured", 0.0),
                PassPrice(backward_seconds, "measured", 0.0),
            )
        stages = family_of(call).stages(call, wanted)
        if stages and _class(call) not in self._alike:
            return _one_after_the_other([self.price(*stage) for stage in stages])
        return OperatorPrice(
            self._corrected(call, "forward", forward_time),
            self._corrected(call, "backward", backward_time),
        )

    def _corrected(self, call: Call, which: Pass, estimate: Seconds) -> PassPrice:
        """The estimate moved by what was measured nearby."""
        alike = self._alike.get(_class(call)) if self._alike and estimate else None
        correction = alike.correction(features(call), which) if alike else None
        if correction is None:
            return PassPrice(estimate, "estimated")
        moved, spread = correction
        seconds = Seconds(max(estimate, SHORTEST) * math.exp(moved))
        return PassPrice(seconds, "interpolated", spread)

    def _estimates(self, call: Call, wanted: tuple[bool, ...]) -> tuple[Seconds, Seconds]:
        """The rooflines of both passes."""
        stages = family_of(call).stages(call, wanted)
        if stages:
            passes = [self._estimates(*stage) for stage in stages]
            return Seconds(sum(pair[0] for pair in passes)), Seconds(
                sum(pair[1] for pair in passes)
            )
        rates, software = self.rates, self.device.running
        products = family_of(call).products
        rate = self._peak(call) * (self._reached(call) if products else 1.0)
        share = rates.scanning if call.kind in SCANNING else rates.streaming
        bandwidth = self.device.memory_bandwidth * share
        left = rates.fused if software.fuses and not products else 1.0
        written = self._score_bytes(call) if call.kind == ATTENTION else 0.0
        added = self._added_bytes(call, wanted) / bandwidth

        def estimate(counts: Counts, kernels: int, passes: float) -> Seconds:
            if not counts.bytes and not counts.flops:
                return Seconds(0.0)
            moving = counts.bytes * left / bandwidth
            scores = passes * written / bandwidth
            return Seconds(rates.launch * kernels + max(counts.flops / rate, moving) + scores)

        forward_counts, backward_counts = forward(call), backward(call, wanted)
        forth, again = (
            estimate(forward_counts, 1, 1.0),
            estimate(backward_counts, max(1, sum(wanted)), BACKWARD_SCORES),
        )
        if software.keeps < 1 and call.kind != ATTENTION and any(wanted):
            # What is not kept is computed again; of attention the result is kept.
            again = Seconds(again + (1 - software.keeps) * forth)
        return forth, Seconds(again + added)

    def _reached(self, call: Call) -> float:
        """The share of its peak that a product reaches on this device."""
        rates = self.rates
        share = efficiency(call, rates)
        if call.kind == ATTENTION:
            if not self.device.running.flash and alignment(call) == EVEN:
                share *= rates.ragged / rates.unaligned
            return share * rates.attention
        if self._narrowed(call):
            four = self.device.running.products == FOUR_BITS
            share *= (rates.narrowest if four else rates.narrow) / rates.best
        if call.kind == GROUPED and group_count(call) > 1:
            share *= rates.grouped * (rates.joined if self.device.running.joins else 1.0)
        return share

    def _score_bytes(self, call: Call) -> float:
        """What attention that is not fused moves of its scores in a forward pass."""
        keys = call.inputs[1]
        if self.device.running.flash or keys is None:
            return 0.0
        out = call.outputs[0]
        count = math.prod(out.shape[:-1]) * keys.shape[-2]
        return self.rates.scores * count * ITEM_BYTES[out.dtype]

    def _added_bytes(self, call: Call, wanted: tuple[bool, ...]) -> float:
        """What adding the gradient of a weight to that of earlier micro-batches moves."""
        software = self.device.running
        weight = call.inputs[1] if call.kind in WEIGHTED and len(call.inputs) > 1 else None
        if not software.adds or weight is None or not wanted[1]:
            return 0.0
        item = ITEM_BYTES[weight.dtype]
        held = max(4, item) if software.wide else item
        return float(weight.elements * (item + 2 * held))

    def _point(self, row: MeasuredCall) -> _Point:
        forward_time, backward_time = self._estimates(row.call, all_gradients(row.call))
        return _Point(
            features(row.call),
            _ratio(row.forward, forward_time),
            _ratio(row.backward, backward_time),
        )


def _one_after_the_other(stages: Sequence[OperatorPrice]) -> OperatorPrice:
    """The price of several kernels; of what they add up to nothing was measured."""

    def added(passes: Iterable[PassPrice]) -> PassPrice:
        return PassPrice(Seconds(sum(price.seconds for price in passes)), "estimated")

    return OperatorPrice(
        added(stage.forward for stage in stages), added(stage.backward for stage in stages)
    )


class _Point(NamedTuple):
    """A measured call: where it lies, and the logarithms of measured over estimated."""

    features: Mapping[str, float]
    forward: float
    backward: float
    """Not a number where nothing was measured."""


class _Alike:
    """Measured calls that can be compared, as arrays."""

    def __init__(self, points: Sequence[_Point]) -> None:
        self._names = sorted({name for point in points for name in point.features})
        self._places = np.array([self._place(point.features) for point in points])
        self._ratios = {
            "forward": np.array([point.forward for point in points]),
            "backward": np.array([point.backward for point in points]),
        }

    def correction(self, features: Mapping[str, float], which: Pass) -> tuple[float, float] | None:
        """The logarithm by which an estimate is off at some place, and the spread about it."""
        apart = self._places - self._place(features)
        squares = (apart**2).sum(axis=1)
        known = np.flatnonzero(np.isfinite(self._ratios[which]))
        near = known[np.argsort(squares[known], kind="stable")[:NEAREST]]
        if not len(near):
            return None
        weights = 1 / (squares[near] + 0.05)
        weights /= weights.sum()
        ratios, places = self._ratios[which][near], apart[near]
        mean, middle = weights @ ratios, weights @ places
        centred = places - middle
        spread = (centred * weights[:, None]).T @ centred
        pull = (centred * weights[:, None]).T @ (ratios - mean)
        slopes = np.linalg.solve(spread + RIDGE * np.eye(len(self._names)), pull)
        # A line must not lead far beyond what was measured nearby.
        value = float(np.clip(mean - middle @ slopes, ratios.min() - 0.1, ratios.max() + 0.1))
        return value, float(np.sqrt(weights @ (ratios - value) ** 2))

    def _place(self, features: Mapping[str, float]) -> npt.NDArray[np.float64]:
        return np.array([features.get(name, 0.0) for name in self._names])


def _ratio(measured: Seconds | None, estimated: Seconds) -> float:
    if measured is None or not estimated:
        return math.nan
    return math.log(max(measured, SHORTEST) / max(estimated, SHORTEST))


def all_gradients(call: Call) -> tuple[bool, ...]:
    """Gradients for every input that can have one.

    >>> from meshwright.graph.operator_graph import Spec
    >>> table, rows = Spec("float32", (10, 4)), Spec("int64", (3,))
    >>> all_gradients(Call(kind="embedding", inputs=(table, rows), outputs=()))
    (True, False)
    """
    return tuple(spec is not None and is_differentiable(spec.dtype) for spec in call.inputs)


def efficiency(call: Call, rates: Rates = DEFAULT) -> float:
    """The share of the peak rate that a product reaches, by its extents and their alignment."""
    share = rates.best
    half = half_rate_extent(call, rates)
    for name, extent in extents_of(call).items():
        head = call.kind == ATTENTION and name == "parameter" and half == rates.half
        share *= extent / (extent + (rates.half_head if head else half))
    return share * {1: rates.odd, EVEN: rates.unaligned, 8: 1.0}[alignment(call)]


def half_rate_extent(call: Call, rates: Rates) -> float:
    """The extent at which a product reaches half of what it would at a large one."""
    return rates.half if _dtype(call) in MATRIX_UNITS else rates.half_plain


def alignment(call: Call) -> int:
    """8, 2 or 1: what divides the extents along which a 16-bit product reads its matrices."""
    if _dtype(call) not in MATRIX_UNITS or not family_of(call).products:
        return 8
    extents = extents_of(call)
    windows = {"parameter": 1, "reduction": convolution_window(call)}
    inner = [extents[role] // window for role, window in windows.items() if role in extents]
    return min((8 if e % 8 == 0 else 2 if e % 2 == 0 else 1 for e in inner), default=8)


def features(call: Call) -> dict[str, float]:
    """What tells calls of one kind apart, as logarithms to base 2."""
    counts = forward(call)
    sizes = {"flops": counts.flops, "bytes": counts.bytes, **extents_of(call)}
    logarithms = {name: math.log2(max(1, size)) for name, size in sizes.items()}
    for index, spec in enumerate(call.inputs[:3]):
        for dim, size in enumerate(spec.shape if spec is not None else ()):
            # Dims count for less than what they add up to.
            logarithms[f"input {index} dim {dim}"] = 0.5 * math.log2(max(1, size))
    return logarithms


def _class(call: Call) -> tuple[object, ...]:
    """What calls must share to be compared: everything that picks another kernel, but no size."""
    flags = tuple((key, _flag(key, value)) for key, value in call.attributes)
    ranks = tuple(None if spec is None else len(spec.shape) for spec in call.inputs)
    return call.kind, _dtype(call), flags, alignment(call), ranks


def _flag(key: str, value: Value) -> Value:
    """An attribute where it picks a kernel: strides as they are, of other numbers whether any."""
    if key in ("stride", "dilation") or isinstance(value, bool | str):
        return value
    return bool(value) if isinstance(value, int | float) else None


def _dtype(call: Call) -> str:
    """The dtype that a call computes in: that of its first real tensor."""
    for spec in (*call.inputs, *call.outputs):
        if spec is not None and is_differentiable(spec.dtype):
            return spec.dtype
    return "float32"
