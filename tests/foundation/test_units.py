"""Quantities: what is printed reads back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.foundation.errors import InputError
from meshwright.foundation.integers import divisors, factorizations, from_digits, to_digits
from meshwright.foundation.units import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)


@given(st.floats(1e-9, 1e3))
def test_seconds_read_back_to_four_digits(value: float) -> None:
    assert parse_seconds(format_seconds(value)) == pytest.approx(value, rel=1e-3)


@given(st.integers(1, 1 << 50))
def test_bytes_read_back_to_four_digits(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=1e-3)


@given(st.integers(0, 40))
def test_powers_of_two_read_back_exactly(power: int) -> None:
    assert parse_bytes(format_bytes(1 << power)) == 1 << power


@given(st.floats(1.0, 1e15))
def test_bandwidth_reads_back_to_four_digits(value: float) -> None:
    assert parse_bandwidth(format_bandwidth(value)) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize("text", ["", "8", "GiB", "8 gib", "8 GiB/s", "1e B", "nan GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InputError, match="8 GiB"):
        parse_bytes(text)


@given(st.integers(1, 2000))
def test_divisors(number: int) -> None:
    assert list(divisors(number)) == [d for d in range(1, number + 1) if number % d == 0]


@given(st.integers(1, 60), st.lists(st.integers(1, 12), max_size=3))
def test_factorizations(number: int, limits: list[int]) -> None:
    for factors in factorizations(number, limits):
        product = 1
        for factor, limit in zip(factors, limits, strict=True):
            assert limit % factor == 0
            product *= factor
        assert product == number


@given(st.lists(st.integers(1, 6), max_size=5), st.data())
def test_digits_are_a_bijection(radices: list[int], data: st.DataObject) -> None:
    product = 1
    for radix in radices:
        product *= radix
    value = data.draw(st.integers(0, product - 1))
    assert from_digits(to_digits(value, radices), radices) == value
