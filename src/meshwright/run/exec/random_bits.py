"""Random numbers that do not depend on who draws them. Enters: which elements of a tensor.
Leaves: for each a number, or whether it is kept.

A number is a hash of a key and of the element's place in the whole tensor, so that a piece draws
what the whole would have drawn there, copies draw the same, and a layer that runs again does too.
The hash is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.graph.pieces import Box

_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)
"""0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as signed numbers."""
_STRIDE = -7046029254386353131
"""0x9E3779B97F4A7C15, 2^64 by the golden ratio."""
_BITS = 53


def uniform(key: int, box: Box, shape: Sequence[int], device: torch.device) -> Tensor:
    """For each element of a box of a tensor a number between 0 and 1, neither included.

    >>> whole = uniform(7, ((0, 4), (0, 6)), (4, 6), torch.device("cpu"))
    >>> part = uniform(7, ((1, 3), (2, 6)), (4, 6), torch.device("cpu"))
    >>> torch.equal(whole[1:3, 2:6], part)
    True
    """
    return (_bits(key, box, shape, device).double() + 0.5) / (1 << _BITS)


def kept(
    key: int, box: Box, shape: Sequence[int], probability: float, device: torch.device
) -> Tensor:
    """For each element of a box of a tensor whether it is kept, with a probability.

    >>> whole = kept(7, ((0, 4), (0, 6)), (4, 6), 0.5, torch.device("cpu"))
    >>> part = kept(7, ((1, 3), (2, 6)), (4, 6), 0.5, torch.device("cpu"))
    >>> torch.equal(whole[1:3, 2:6], part)
    True
    """
    return _bits(key, box, shape, device) < int(probability * 2**_BITS)


def _bits(key: int, box: Box, shape: Sequence[int], device: torch.device) -> Tensor:
    """For each element of a box a random whole number of so many bits."""
    number = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (first, last) in enumerate(box):
        stride = math.prod(shape[dim + 1 :])
        along = torch.arange(first, last, device=device) * stride
        number = number[..., None] + along
    mixed = (number + key) * _STRIDE
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        mixed = (mixed ^ _shifted(mixed, shift)) * multiplier
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 64 - _BITS)


def _shifted(number: Tensor, bits: int) -> Tensor:
    """Shifted to the right, zeros coming in."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
