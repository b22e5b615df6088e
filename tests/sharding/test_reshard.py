"""Resharding, judged by the elements and sums that each device has and needs."""

from __future__ import annotations

from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.sharding.reshard import MOST, NAMES, resharding, resharding_by_parts
from meshwright.sharding.states import PARTIAL, WHOLE, at
from support.elements import Machine, States, Step, Wrong, carry_out


def steps_of(machine: Machine) -> list[Step]:
    """What `resharding` says."""
    room = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
    source, needed = np.array(machine.made, np.int8), np.array(machine.needed, np.int8)
    total = float(machine.length**machine.dims)
    scratch = np.zeros(len(source), np.int8)
    count = resharding(source, needed, np.array(machine.sizes), total, scratch, *room)
    operation, held = room
    return [
        Step(NAMES[kind], factors(members), factors(every), float(held[i]))
        for i, (kind, members, every) in enumerate(operation[:count].tolist())
    ]


def factors(bits: int) -> frozenset[int]:
    return frozenset(f for f in range(bits.bit_length()) if bits >> f & 1)


def reaches(machine: Machine, steps: list[Step]) -> bool:
    try:
        return machine.satisfied(carry_out(machine, steps))
    except Wrong:
        return False


def judge(machine: Machine) -> None:
    steps = steps_of(machine)
    assert (not steps) == machine.satisfied(machine.before())
    assert machine.satisfied(carry_out(machine, steps))
    for left_out in range(len(steps)):
        fewer = steps[:left_out] + steps[left_out + 1 :]
        assert not reaches(machine, fewer), f"{steps[left_out]} is not needed"


def needs(size: int, dims: int) -> list[int]:
    return [*range(dims), WHOLE, *map(at, range(size))]


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 2), (2, 3), (3, 2)])
@pytest.mark.parametrize("dims", [1, 2])
def test_every_pair_of_states(sizes: tuple[int, ...], dims: int) -> None:
    needed = list(product(*(needs(size, dims) for size in sizes)))
    sources = list(product(*([PARTIAL, *needs(size, dims)] for size in sizes)))
    for one, other in product(sources, needed):
        judge(Machine(sizes, dims, one, other))


@given(st.randoms(use_true_random=False))
def test_three_and_four_factors(random: Random) -> None:
    sizes = random.choice([(2, 2, 2), (2, 3, 2), (3, 2, 2), (2, 2, 2, 2)])
    dims = random.choice((1, 1, 2) if len(sizes) == 3 else (1,))
    needed = [random.choice(needs(size, dims)) for size in sizes]
    source = [random.choice([PARTIAL, *needs(size, dims)]) for size in sizes]
    for f in range(len(sizes)):
        # Most factors of a real plan stay as they are.
        if random.random() < 0.3:
            source[f] = needed[f]
    judge(Machine(sizes, dims, tuple(source), tuple(needed)))


def literal(source: States, needed: States) -> list[tuple[str, set[int], set[int], float]]:
    """Of a vector of 8 elements on 2 x 2 x 2 devices."""
    steps = steps_of(Machine((2, 2, 2), 1, source, needed))
    return [(step.name, set(step.members), set(step.every), step.held) for step in steps]


D = 0


def test_literal_collectives() -> None:
    assert literal((WHOLE, D, D), (WHOLE, D, D)) == []
    assert literal((WHOLE, WHOLE, D), (at(1), D, D)) == [("AllToAll", {1, 2}, set(), 2.0)]
    assert literal((WHOLE, D, WHOLE), (D, D, WHOLE)) == [("AllToAll", {0, 1}, {2}, 2.0)]
    assert literal((D, D, WHOLE), (D, WHOLE, WHOLE)) == [("AllGather", {1}, {0, 2}, 2.0)]
    assert literal((PARTIAL, PARTIAL, WHOLE), (D, WHOLE, WHOLE)) == [
        ("ReduceScatter", {0}, {1, 2}, 8.0),
        ("AllReduce", {1}, {0, 2}, 4.0),
    ]
    assert literal((at(0), D, WHOLE), (at(1), WHOLE, at(0))) == [
        ("Send", {0}, {1}, 4.0),
        ("AllGather", {1}, set(), 4.0),
    ]
    assert literal((D, D, PARTIAL), (WHOLE, D, at(1))) == [
        ("Reduce", {2}, {0, 1}, 2.0),
        ("AllToAll", {0, 1}, set(), 2.0),
        ("AllGather", {0}, {1}, 2.0),
    ]


def test_copies_send_a_part_each_where_they_are_cut() -> None:
    """Where they are copies, and only there: the second factor cuts the tensor."""
    sizes, room = np.array([2, 2, 2, 2]), (np.zeros((MOST, 3), np.int64), np.zeros(MOST))
    source = np.array([at(0), D, WHOLE, WHOLE], np.int8)
    needed = np.array([at(1), D, WHOLE, WHOLE], np.int8)
    operation, held = room

    def told(cutting: list[int]) -> list[tuple[str, set[int], set[int], float]]:
        flags = np.isin(np.arange(4), cutting)
        scratch = np.zeros(4, np.int8)
        several = resharding_by_parts(source, needed, sizes, flags, 8.0, scratch, *room)
        return [
            (NAMES[kind], set(factors(members)), set(factors(every)), float(held[i]))
            for i, (kind, members, every) in enumerate(operation[:several].tolist())
        ]

    assert told([]) == [("Send", {0}, {1, 2, 3}, 4.0)]
    assert told([1, 2, 3]) == [
        ("Send", {0}, {1, 2, 3}, 1.0),
        ("AllGather", {2, 3}, {1}, 1.0),
    ]
