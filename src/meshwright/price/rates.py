"""What a device reaches of what it could: the constants of the roofline in `operator`.

Enters: nothing, or fitted numbers. Leaves: `Rates`. What they are applied to is not known here.
"""

from __future__ import annotations

import msgspec

from meshwright.foundation.units import Seconds


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of a device and its software; by default those of PyTorch on recent GPUs."""

    best: float = 0.8
    """The share of the peak rate that a large product reaches."""
    half: float = 96
    """The extent at which a 16-bit product reaches half of what it would at a large one."""
    half_plain: float = 24
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
    dispatch: Seconds = Seconds(0.0)
    """What the host needs for a kernel, where it does not run ahead of the device."""
