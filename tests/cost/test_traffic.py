"""What members send, held against what the simulator says moves, and against rings step by step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.collective_bytes import ring_parts, sent_bytes
from meshwright.cost.pattern import Digit, PatternUse
from meshwright.simulate.collective_implementations import bytes_moved

parts = st.lists(st.integers(0, 50), min_size=1, max_size=9)


@pytest.mark.parametrize("operation", [*Collective, *Movement])
@given(members=st.integers(1, 9), part=st.integers(0, 50))
def test_members_together_send_what_the_simulator_says(
    operation: Operation, members: int, part: int
) -> None:
    whole = operation in (
        Collective.ALL_GATHER,
        Movement.GATHER,
        Movement.SEND,
        Movement.SHIFT,
    )
    held = part if whole else part * members
    sent = [sent_bytes(operation, [part] * members, position) for position in range(members)]
    if members > 1:
        assert sum(sent) == pytest.approx(
            bytes_moved(operation, ((Digit(members, PatternUse.MEMBER),),)) * held
        )
    else:
        assert sent == [0]


@given(parts)
def test_a_ring_followed_step_by_step(sizes: list[int]) -> None:
    """Each of n - 1 rounds everybody hands the next member the part that it has just got."""
    n = len(sizes)
    scattered, gathered = [0] * n, [0] * n
    for offset in range(n - 1):
        for member in range(n):
            scattered[member] += sizes[(member - 1 - offset) % n]
            gathered[member] += sizes[(member - offset) % n]
    for member in range(n):
        assert sent_bytes(Collective.REDUCE_SCATTER, sizes, member) == scattered[member]
        assert sent_bytes(Collective.ALL_GATHER, sizes, member) == gathered[member]
        # Gloo's AllReduce goes the other way round: towards lower ranks.
        mirrored = sizes[(member - 1) % n] if n > 1 else sum(sizes)
        assert sent_bytes(Collective.ALL_REDUCE, sizes, member) == (
            scattered[member] + sum(sizes) - mirrored
        )


@given(
    elements=st.integers(0, 10**7), item=st.sampled_from([1, 2, 4, 8]), members=st.integers(1, 16)
)
def test_parts_of_an_all_reduce_make_up_the_whole(elements: int, item: int, members: int) -> None:
    cut = ring_parts(elements, item, members)
    assert len(cut) == members
    assert sum(cut) == elements * item
    assert list(cut) == sorted(cut, reverse=True)
    assert all(part % item == 0 for part in cut)
