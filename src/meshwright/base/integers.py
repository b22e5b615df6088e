"""Integers: parsing, validation, divisors, ordered factorizations, mixed-radix digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from meshwright.base.errors import InputError, shown

MOST = 10**12
"""The largest count that is taken from anyone: devices, sizes of axes, repetitions."""


def parse_whole(text: str, most: int = MOST) -> int:
    """A whole number from text, 0 up to `most`.

    >>> parse_whole(" 16 ")
    16
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal()):
        raise InputError(f"{shown(text)} is not a whole number", "write digits only, as '16'")
    # The length first: Python refuses to read thousands of digits.
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(most)) or int(digits) > most:
        raise InputError(f"{shown(text)} is too large a number", f"give at most {most}")
    return int(digits)


def require_whole(value: object, what: str, most: int = MOST) -> None:
    """Refuse what is not a whole number from 1 to `most`.

    >>> require_whole(2.5, "axis 'data' has size")
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: axis 'data' has size 2.5; give a whole number.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{what} {shown(value)}", "give a whole number")
    if value < 1:
        raise InputError(f"{what} {shown(value)}", "give 1 or more")
    if value > most:
        raise InputError(f"{what} {shown(value)}", f"give at most {most}")


def prime_factors(number: int) -> tuple[int, ...]:
    """The primes that multiply to a number, in increasing order.

    >>> prime_factors(12), prime_factors(1)
    ((2, 2, 3), ())
    """
    primes, prime = [], 2
    while prime * prime <= number:
        while number % prime == 0:
            primes.append(prime)
            number //= prime
        prime += 1
    return (*primes, number) if number > 1 else tuple(primes)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors in increasing order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return (*small, *large)


def factorizations(number: int, limits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Ordered factorizations of `number`, the i-th factor dividing `limits[i]`, lexicographically.

    >>> list(factorizations(4, (4, 2)))
    [(2, 2), (4, 1)]
    """
    if not limits:
        if number == 1:
            yield ()
        return
    for factor in divisors(number):
        if limits[0] % factor == 0:
            for rest in factorizations(number // factor, limits[1:]):
                yield (factor, *rest)


def set_bits(number: int) -> tuple[int, ...]:
    """The places of the bits that are set, the lowest first.

    >>> set_bits(0b101)
    (0, 2)
    """
    return tuple(place for place in range(number.bit_length()) if number >> place & 1)


def to_digits(value: int, radices: Sequence[int]) -> tuple[int, ...]:
    """Mixed-radix digits of `value`, the first radix the most significant.

    >>> to_digits(5, (2, 3))
    (1, 2)
    """
    digits = []
    for radix in reversed(radices):
        value, digit = divmod(value, radix)
        digits.append(digit)
    return tuple(reversed(digits))


def from_digits(digits: Sequence[int], radices: Sequence[int]) -> int:
    """The inverse of `to_digits`.

    >>> from_digits((1, 2), (2, 3))
    5
    """
    value = 0
    for digit, radix in zip(digits, radices, strict=True):
        value = value * radix + digit
    return value
