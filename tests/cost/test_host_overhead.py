"""A pass that a host hands to a device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.host_overhead import SHARPNESS, together

SECONDS = st.floats(0, 1e3, allow_nan=False)


@given(SECONDS, SECONDS)
def test_a_pass_takes_the_longer_of_the_two_and_at_most_a_fifth_more(a: float, b: float) -> None:
    longer = max(a, b)
    assert longer <= together(a, b) <= longer * 2 ** (1 / SHARPNESS) * (1 + 1e-12)


@given(SECONDS, SECONDS)
def test_host_and_device_are_alike(a: float, b: float) -> None:
    assert together(a, b) == together(b, a)


@given(SECONDS)
def test_a_host_that_needs_nothing_costs_nothing(device: float) -> None:
    assert together(device, 0.0) == device
