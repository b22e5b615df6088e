"""What software reaches of a device: the constants of the roofline in `cost.operator`, and which
software it is. Enters: nothing, or fitted numbers. Leaves: `Rates` and `Software`. What they are
applied to is not known here.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import fields

from meshwright.base.errors import InputError
from meshwright.base.units import Seconds


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a device and its software; by default those of PyTorch on recent GPUs."""

    best: float = 0.8
    """The share of the peak rate that a large product reaches."""
    half: float = 96.0
    """The extent at which a 16-bit product reaches half of what it would at a large one."""
    half_plain: float = 24.0
    """The same for other products, which run on plain cores. With it Inception-v3 and ResNet-50
    train at 143 and 192 images a second on a P100, 39 and 53 on a K80, where TensorFlow's
    benchmarks of 2017 (tensorflow.org/performance/benchmarks) measured 142, 219, 30 and 52."""
    odd: float = 0.27
    """What is left of the rate if a 16-bit product has an odd extent."""
    unaligned: float = 0.6
    """What is left of the rate if a 16-bit product has an even extent that 8 does not divide."""
    streaming: float = 0.85
    """The share of the memory bandwidth that a large element-wise kernel reaches."""
    scanning: float = 0.85
    """The same for softmax and dropout, which reduce rows and draw random numbers."""
    launch: Seconds = Seconds(2e-6)
    """The least time of a kernel."""
    narrow: float = 0.8
    """The share of the peak rate of `Software.products` that a large product with weights reaches;
    scaling and casting are in it."""
    attention: float = 1.0
    """What fused attention reaches of what a large product does, counting all scores, also those
    that a causal mask leaves out."""
    half_head: float = 96.0
    """The width of heads at which fused attention reaches half of what it would with wide ones."""
    ragged: float = 0.6
    """What is left of the rate of attention that is not fused if the width of its heads is even and
    8 does not divide it."""
    grouped: float = 1.0
    """What grouped products (experts) reach of what one large product does."""
    scores: float = 5.0
    """How often attention that is not fused reads or writes each score in a forward pass."""
    fused: float = 0.5
    """The share of the bytes of element-wise kernels that is left where they are fused."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"the rate {field.name!r} is {value:g}", "give one above 0")


class Software(msgspec.Struct, frozen=True, kw_only=True):
    """How a framework runs kernels on a device; by default PyTorch, eagerly."""

    fuses: bool = False
    """Whether element-wise kernels are fused: torch.compile, Megatron's own kernels, XLA."""
    flash: bool = True
    """Whether attention is one kernel that never writes its scores."""
    wide: bool = False
    """Whether gradients of 16-bit parameters are held in float32 (Megatron's main gradients), and
    losses are computed from a float32 copy of their 16-bit scores."""
    products: str = ""
    """The precision of products with weights where it is not that of their tensors: "fp8"."""
