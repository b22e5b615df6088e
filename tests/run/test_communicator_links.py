"""What the wire counts, held against the counters of real interfaces."""

from __future__ import annotations

from typing import cast

import pytest

import testbed
from support.machines import machine
from support.wire_bodies import busy_wire

pytestmark = [pytest.mark.ranks, pytest.mark.alone]

SLACK = 300_000
"""Bytes that leave a rank besides: starting up, headers, and answers to what it received."""


@pytest.mark.parametrize(
    "kind", ["all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"]
)
def test_interfaces_carry_what_the_wire_counts(kind: str) -> None:
    if (reason := testbed.unavailable()) is not None:
        pytest.skip(reason)
    with testbed.Testbed(machine(4, 1)) as bed:
        before = bed.counters()
        sent = bed.run(busy_wire, kind, 12)
        carried = testbed.difference(bed.counters(), before)
    assert len(carried) == 4
    for counted, edge in zip(cast(list[int], sent), carried, strict=True):
        assert counted <= edge.out <= 1.02 * counted + SLACK
