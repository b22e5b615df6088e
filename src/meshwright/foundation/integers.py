"""Whole numbers as products: divisors, ordered factorizations and mixed-radix digits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors in increasing order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
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
