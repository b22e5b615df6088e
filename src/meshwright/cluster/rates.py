"""Roofline constants of a device and its software (efficiencies, launch times). Enters: nothing, or
fitted numbers. Leaves: `Rates` and `Software`. What they are applied to is not known here.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import fields

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds

SELECTIVE = 0.4
"""The share of saved tensors that torchtitan's selective checkpointing keeps (every other product
and attention), read off the peaks of four published rows (decision 0025)."""

HIDDEN_TENSOR, HIDDEN_EXCHANGE = 0.6, 0.75
"""The shares of tensor-parallel collectives and of exchanges of tokens that Megatron hides where it
is told to: read off published steps with tensor 4 and 8, and of DeepSeek-V3 (decision 0025)."""


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
    dispatch: Seconds = Seconds(0.0)
    """What the host needs to launch an operator's forward pass; the device waits for launches."""
    narrow: float = 0.8
    """The share of the peak rate of `Software.products` that a large product with weights reaches;
    scaling and casting are in it."""
    narrowest: float = 0.8
    """The same in 4 bits, where recipes leave some products in 16."""
    attention: float = 1.0
    """What fused attention reaches of what a large product does, counting all scores, also those
    that a causal mask leaves out."""
    half_head: float = 96.0
    """The width of heads at which fused attention reaches half of what it would with wide ones."""
    ragged: float = 0.6
    """What is left of the rate of attention that is not fused if the width of its heads is even and
    8 does not divide it."""
    grouped: float = 1.0
    """What products of several groups (experts) reach of what one of a group's rows does; a single
    group is a plain product."""
    joined: float = 1.6
    """How many times as fast grouped products are where they, what is between them and scaling are
    one kernel (`Software.joins`)."""
    scores: float = 5.0
    """How often attention that is not fused reads or writes each score in a forward pass."""
    fused: float = 0.5
    """The share of the bytes of element-wise kernels that is left where they are fused."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "dispatch" else math.ulp(0.0)
            if not (value >= least and math.isfinite(value)):
                raise InputError(f"the rate {field.name!r} is {value:g}", "give one above 0")


class JudgedSteps(msgspec.Struct, frozen=True, kw_only=True):
    """How far predictions were from steps measured on this very machine, each predicted without it
    ('meshwright calibrate --steps').
    """

    share: float
    """All were within it."""
    steps: int

    def __post_init__(self) -> None:
        if not (self.share >= 0 and math.isfinite(self.share)) or self.steps < 1:
            raise InputError(
                f"{self.steps} steps were within a share of {self.share:g}",
                "give 1 step or more, and a share of 0 or more",
            )


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
    joins: bool = False
    """Whether grouped products, what is between them and scaling are one kernel (Megatron-Bridge
    since 26.06)."""
    adds: bool = False
    """Whether kernels of their own add up the gradients of micro-batches (DeepSpeed), instead of
    the products that make them (Megatron)."""
    dispatched: int = 0
    """To how many experts a token goes, where what several experts of one machine shall have is
    sent there once (DeepEP, HybridEP); 0 where it is sent to each."""
    hidden_exchange: float = 0.0
    """The share of the exchange of tokens that another micro-batch's computing hides (Megatron's
    --overlap-moe-expert-parallel-comm)."""
    hidden_tensor: float = 0.0
    """The share of tensor-parallel gathers and scatters inside a machine that products hide
    (Megatron's --tp-comm-overlap, torchtitan's async TP)."""
    scatters: bool = False
    """Whether what goes to the next stage of a pipeline is cut along the tensor axis where all its
    devices have it, and gathered inside the machine (Megatron's scatter-gather, DeepSpeed's
    partitioned activations)."""
    keeps: float = 1.0
    """The share of what autograd saves for the backward pass that is kept, where some operators run
    again and others do not (selective activation checkpointing): what is not kept is computed
    again."""
    gradient_bytes: float = 0.0
    """Bytes that gradients of a 16-bit parameter take; 0: 4 where they are `wide`, or 2."""

    def __post_init__(self) -> None:
        for name in ("hidden_exchange", "hidden_tensor"):
            share = getattr(self, name)
            if not 0 <= share < 1:
                raise InputError(f"the share {name!r} is {share:g}", "give one from 0 to below 1")
        if not 0 < self.keeps <= 1:
            raise InputError(f"the share 'keeps' is {self.keeps:g}", "give one up to 1")
        for name in ("dispatched", "gradient_bytes"):
            if getattr(self, name) < 0:
                raise InputError(f"{name!r} is {getattr(self, name):g}", "give 0 or more")
