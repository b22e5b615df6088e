"""Framework memory overhead besides tensors: CUDA context, NCCL buffers, fragmentation. Enters:
figures in bytes, with where they come from. Leaves: a checked `Overhead`, part of a device's
description.

A device without one holds tensors and nothing else: a CPU rank, or a testbed.
"""

from __future__ import annotations

import math

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that counts when a plan has to fit, by who holds it."""

    context: Bytes
    """The process: CUDA's context and the kernels that it has loaded."""
    communicator: Bytes
    """NCCL's buffers (channels times protocols) of each group of devices that talk."""
    unused: float
    """What the allocator holds besides, for each byte of tensors: rounding and fragments."""
    source: str
    """Where the figures come from."""

    def __post_init__(self) -> None:
        for word, size in (("a context", self.context), ("a communicator", self.communicator)):
            if size < 0:
                raise InputError(f"{word} takes {size} B", "give 0 B or more")
        if not (self.unused >= 0 and math.isfinite(self.unused)):
            raise InputError(
                f"the allocator holds {self.unused:g} unused bytes for each of tensors",
                "give a share of 0 or more",
            )
        if not self.source:
            raise InputError("the overhead has no source", "say where its figures come from")

    def held(self, tensors: int, communicators: int) -> Bytes:
        """Bytes beside so many of tensors.

        >>> held = Overhead(context=Bytes(500), communicator=Bytes(100), unused=0.1, source="here")
        >>> held.held(1000, 2)
        800
        """
        return Bytes(
            self.context + communicators * self.communicator + round(tensors * self.unused)
        )
