"""Counter-based random numbers (SplitMix64), the same however a tensor is sharded. Enters: which
elements of a tensor. Leaves: for each a number, or whether it is kept.

The law of random numbers, whatever the plan, its pieces, copies and layers that run again:

    number of an element = hash(key, its place in the whole tensor)
    key = mix(mix(mix(seed) + step) + name of the operator)

so that a sample has the same mask on any plan, and another one for each operator, step and seed.
`mix` is the finalizer of SplitMix64 (Steele, Lea, Flood 2014), and numbers are what SplitMix64
gives from the state `key` on: of two of 2^64 keys they overlap as good as never. For masks, of
which many are drawn, rows and columns get 32 bits each that way and a round of a 32-bit
multiply-shift hash joins them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from meshwright.graph.pieces import Box

_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)
"""0xBF58476D1CE4E5B9 and 0x94D049BB133111EB as signed numbers."""
_STRIDE = -7046029254386353131
"""0x9E3779B97F4A7C15, 2^64 by the golden ratio."""
_BITS = 53
_JOINING = (0x7FEB352D, -2073254261)
"""Multipliers of a 32-bit hash of low bias (Wellons 2018), the second 0x846CA68B."""


def mixed(number: int) -> int:
    """The finalizer of SplitMix64: 64 bits, each of which depends on all of a number's.

    >>> mixed(1), mixed(2)
    (-2152535657050944081, 7960286522194355700)
    """
    bits = (number * _STRIDE) % (1 << 64)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        bits = ((bits ^ (bits >> shift)) * multiplier) % (1 << 64)
    bits ^= bits >> 31
    return bits - (1 << 64) if bits >> 63 else bits


def key_of(seed: int, step: int, name: str) -> int:
    """The key of one operator in one step."""
    digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())
    return mixed(mixed(mixed(seed) + step) + digest)


class Starts(NamedTuple):
    """The states from which SplitMix64 counts on for a box of a tensor: where the box lies is in
    them, so that what draws depends on its sizes alone.
    """

    elements: int | Tensor
    rows: int | Tensor
    """Of a mask, which the hash joins with its columns."""
    columns: int | Tensor


class LaterKey(Protocol):
    """A key that is not known yet, while an operator is traced."""

    def starts(self, box: Box, shape: Sequence[int]) -> Starts:
        """Where the numbers of a box begin, known when the graph runs."""


Key = int | LaterKey


def splitmix_starts(key: int, box: Box, shape: Sequence[int]) -> Starts:
    """Where the numbers of a box begin.

    >>> splitmix_starts(7, ((1, 3), (2, 6)), (4, 6)) == Starts(15, 8, mixed(7) + 2)
    True
    """
    *outer, (first, _) = box or ((0, 1),)
    rows = sum(low * math.prod(shape[d + 1 : -1]) for d, (low, _) in enumerate(outer))
    elements = sum(low * math.prod(shape[d + 1 :]) for d, (low, _) in enumerate(box))
    return Starts(*map(_wrapped, (key + elements, key + rows, mixed(key) + first)))


def _wrapped(number: int) -> int:
    """As 64 bits with a sign."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _begun(key: Key, box: Box, shape: Sequence[int]) -> Starts:
    return splitmix_starts(key, box, shape) if isinstance(key, int) else key.starts(box, shape)


def uniform(key: Key, box: Box, shape: Sequence[int], device: torch.device) -> Tensor:
    """For each element of a box of a tensor a number between 0 and 1, neither included.

    >>> whole = uniform(7, ((0, 4), (0, 6)), (4, 6), torch.device("cpu"))
    >>> part = uniform(7, ((1, 3), (2, 6)), (4, 6), torch.device("cpu"))
    >>> torch.equal(whole[1:3, 2:6], part)
    True
    """
    start = _begun(key, box, shape).elements
    return (_bits(start, box, shape, device).double() + 0.5) / (1 << _BITS)


def kept(
    key: Key, box: Box, shape: Sequence[int], probability: float, device: torch.device
) -> Tensor:
    """For each element of a box of a tensor whether it is kept, with a probability.

    >>> whole = kept(7, ((0, 4), (0, 6)), (4, 6), 0.5, torch.device("cpu"))
    >>> part = kept(7, ((1, 3), (2, 6)), (4, 6), 0.5, torch.device("cpu"))
    >>> torch.equal(whole[1:3, 2:6], part)
    True
    """
    start = _begun(key, box, shape)
    *outer, along = box or ((0, 1),)
    rows = _half(_bits(start.rows, tuple(outer), shape[:-1], device))
    columns = _half(_bits(start.columns, (along,), (shape[-1] if shape else 1,), device))
    joined = rows[..., None] ^ columns
    for multiplier, shift in zip(_JOINING, (15, 0), strict=True):
        joined *= multiplier
        if shift:
            joined ^= (joined >> shift) & ((1 << (32 - shift)) - 1)
    under = int(probability * 2**32) - 2**31
    mask = joined < under if under < 2**31 else torch.ones_like(joined, dtype=torch.bool)
    return mask if box else mask.reshape(())


def _bits(start: int | Tensor, box: Box, shape: Sequence[int], device: torch.device) -> Tensor:
    """For each element of a box a random whole number of so many bits, its first from `start`."""
    number = torch.zeros((), dtype=torch.int64, device=device)
    for dim, (first, last) in enumerate(box):
        stride = math.prod(shape[dim + 1 :])
        along = torch.arange(last - first, device=device) * stride
        number = number[..., None] + along
    mixed = (number + start) * _STRIDE
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        mixed = (mixed ^ _shifted(mixed, shift)) * multiplier
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 64 - _BITS)


def _half(bits: Tensor) -> Tensor:
    """The upper 32 of some bits, as signed numbers."""
    return ((bits >> (_BITS - 32)) - 2**31).to(torch.int32)


def _shifted(number: Tensor, bits: int) -> Tensor:
    """Shifted to the right, zeros coming in."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
