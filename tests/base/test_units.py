"""Quantities: what is printed reads back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.integers import (
    divisors,
    factorizations,
    from_digits,
    parse_whole,
    require_whole,
    to_digits,
)
from meshwright.base.names import require_name
from meshwright.base.quantities import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_ops,
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


NINES = "99999999999999999999999999 ... 99999999999999999999999999"
SENTENCES = [
    (lambda: parse_bytes("1e400B"), "'1e400B' is out of range; give a size such as '8 GiB'."),
    (
        lambda: parse_bytes("1e9999999999999999999B"),
        "'1e9999999999999999999B' is out of range; give a size such as '8 GiB'.",
    ),
    (
        lambda: parse_bytes("1KB"),
        "'1KB' has the unit 'KB'; did you mean 'kB' or 'KiB'? Give a size with a unit, as '8 GiB'.",
    ),
    (
        lambda: parse_ops("1 tflops"),
        "'1 tflops' has the unit 'tflops'; did you mean 'TFLOPS'? Give a compute rate with a "
        "unit, as '312 TFLOP/s'.",
    ),
    (
        lambda: parse_bytes("9" * 200_000 + " x y"),
        f"'{NINES[:26]} ... {'9' * 22} x y' is not a size; write a number and a unit, as '8 GiB'.",
    ),
    (
        lambda: parse_whole("9" * 5000),
        f"'{NINES}' is too large a number; give at most 1000000000000.",
    ),
    (lambda: parse_whole("101", 100), "'101' is too large a number; give at most 100."),
    (lambda: parse_whole("-1"), "'-1' is not a whole number; write digits only, as '16'."),
    (lambda: parse_whole("٣"), "'٣' is not a whole number; write digits only, as '16'."),
    (lambda: require_whole(True, "size"), "size True; give a whole number."),
    (
        lambda: require_whole(10**5000, "size"),
        "size a number of thousands of digits; give at most 1000000000000.",
    ),
    (
        lambda: require_name("root", "a level", {"root": "the top"}),
        "'root' cannot be the name of a level: it is the top; choose another name.",
    ),
]


@pytest.mark.parametrize(("mistake", "sentence"), SENTENCES)
def test_mistakes_get_a_sentence(mistake: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        mistake()
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["", "a+b", "a=b", "a,b", "a*b", "a/b", "a b", "_a", ".a", "[a]"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of an axis; begin with a letter"):
        require_name(name, "an axis")


@pytest.mark.parametrize("name", ["data", "0", "pcie-switch", "a_b.c", "größe"])
def test_what_is_a_name(name: str) -> None:
    require_name(name, "an axis")


def test_both_signs_for_micro() -> None:
    assert (
        parse_seconds("5 \N{MICRO SIGN}s") == parse_seconds("5 \N{GREEK SMALL LETTER MU}s") == 5e-6
    )


def test_leading_zeros_are_no_size() -> None:
    assert parse_whole("0" * 5000 + "7") == 7


def test_divisors_of_a_large_square() -> None:
    assert divisors(999_983**2) == (1, 999_983, 999_983**2)


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
