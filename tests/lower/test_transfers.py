"""Every transfer leaves each reader exactly its box: the definition at the head of `transfers`."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.integers import from_digits
from meshwright.cost.collective import Collective
from meshwright.graph.pieces import Box, bounds
from meshwright.lower.boxes import shape_of, within
from meshwright.lower.device_mesh import Coordinates, MeshSizes
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.lower.transfers import (
    Exchange,
    GroupCollective,
    Step,
    received_boxes,
    sent_boxes,
    transfer,
)
from meshwright.sharding.layout import divides
from meshwright.sharding.states import PARTIAL, WHOLE, States, at

Array = npt.NDArray[Any]
Held = dict[Coordinates, Array]


class Case(NamedTuple):
    """Two ways in which one tensor lies."""

    before: TensorPlacement
    after: TensorPlacement


def cut_box(
    machine: MeshSizes, shape: tuple[int, ...], states: States, reach: int, position: Coordinates
) -> Box:
    """The box at some coordinates, the last part shorter, reaching over by some elements."""
    box = []
    for dim, size in enumerate(shape):
        cutting = [f for f, state in enumerate(states) if state == dim]
        ways = math.prod(machine.sizes[f] for f in cutting)
        number = from_digits([position[f] for f in cutting], [machine.sizes[f] for f in cutting])
        first, last = bounds(size, ways)[number]
        box.append((max(0, first - reach), min(size, last + reach)) if ways > 1 else (first, last))
    return tuple(box)


def lying(
    machine: MeshSizes, shape: tuple[int, ...], states: States, reach: int
) -> TensorPlacement:
    equal = TensorPlacement(machine, shape, states)
    if equal.divides and not reach:
        return equal
    return equal._replace(exact=partial(cut_box, machine, shape, states, reach))


def fits(machine: MeshSizes, shape: tuple[int, ...], states: States) -> bool:
    return all(
        divides(
            (size,), math.prod(machine.sizes[f] for f, state in enumerate(states) if state == dim)
        )
        for dim, size in enumerate(shape)
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.sampled_from((2, 2, 3)), min_size=1, max_size=4).map(tuple))
    machine = MeshSizes(sizes)
    rank = draw(st.integers(1, 3))

    def states(kinds: list[int]) -> States:
        return tuple(
            draw(
                st.sampled_from(
                    [*range(rank), *range(rank), *kinds, at(draw(st.integers(0, s - 1)))]
                )
            )
            for s in sizes
        )

    produced, needed = states([WHOLE, PARTIAL, PARTIAL]), states([WHOLE, WHOLE])
    shapes = st.tuples(*(st.sampled_from((2, 3, 4, 5, 6, 8, 11, 12)) for _ in range(rank)))
    shape = draw(
        shapes.filter(
            lambda candidate: (
                fits(machine, candidate, produced) and fits(machine, candidate, needed)
            )
        )
    )
    # Windows reach over where a tensor is read, or where its gradient is left: on one side.
    over, source_reach = draw(st.sampled_from(((0, 0), (1, 0), (0, 1), (2, 0))))
    return Case(lying(machine, shape, produced, source_reach), lying(machine, shape, needed, over))


def start(before: TensorPlacement, seed: int) -> Held:
    """Random pieces; copies are alike."""
    random = np.random.default_rng(seed)
    terms = {term: random.integers(-50, 50, shape_of(before.box(term))) for term in before.terms()}
    return {
        position: next(
            data for term, data in terms.items() if before.copy_near(term, position) == position
        )
        for position in before.machine.present(before.states)
    }


def placed(data: Array, box: Box, frame: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in within(box, frame))


def defined(case: Case, held: Held) -> Held:
    """What the definition says: the sum over terms, cut to each reader's box."""
    whole = np.zeros(case.before.shape, np.int64)
    for term in case.before.terms():
        whole[tuple(slice(a, b) for a, b in case.before.box(term))] += held[term]
    return {
        position: whole[tuple(slice(a, b) for a, b in case.after.box(position))]
        for position in case.after.machine.present(case.after.states)
    }


def performed(step: Step, held: Held) -> Held:
    """One step, as its kind is defined."""
    if isinstance(step, Exchange):
        return exchanged(step, held)
    machine, received = step.before.machine, dict[Coordinates, Array]()
    for position in machine.present(step.after.states):
        members = [m for m in machine.along(step.inside, position) if m in held]
        target = step.after.box(position)
        received[position] = np.zeros(shape_of(target), np.int64)
        for member in members:
            source = step.before.box(member)
            match step.kind:
                case Collective.ALL_REDUCE | Collective.REDUCE | Collective.BROADCAST:
                    assert source == target
                    received[position] += held[member]
                case Collective.REDUCE_SCATTER:
                    received[position] += held[member][placed(held[member], target, source)]
                case Collective.ALL_GATHER:
                    received[position][placed(received[position], source, target)] = held[member]
        if step.kind is Collective.BROADCAST:
            assert len(members) == 1
    return received


def exchanged(step: Exchange, held: Held) -> Held:
    machine, received = step.before.machine, dict[Coordinates, Array]()
    for position in machine.present(step.after.states):
        target = step.after.box(position)
        received[position] = np.zeros(shape_of(target), np.int64)
        for move in received_boxes(step, position):
            data = held[machine.coordinates(move.source)]
            part = data[placed(data, move.box, move.source_box)]
            received[position][placed(received[position], move.box, target)] += part
    return received


@settings(max_examples=5 * settings().max_examples)
@given(cases(), st.integers(0, 2**16))
def test_each_reader_gets_its_box(case: Case, seed: int) -> None:
    held = start(case.before, seed)
    expected = defined(case, held)
    for step in transfer(case.before, case.after):
        held = performed(step, held)
    assert held.keys() == expected.keys()
    for position, data in held.items():
        np.testing.assert_array_equal(data, expected[position])


@given(cases())
def test_what_is_given_is_what_is_got(case: Case) -> None:
    step, machine = Exchange(case.before, case.after), case.before.machine
    given_ = Counter(
        move
        for position in machine.present(step.before.states)
        for move in sent_boxes(step, position)
    )
    got = Counter(
        move
        for position in machine.present(step.after.states)
        for move in received_boxes(step, position)
        if move.source != move.target
    )
    assert given_ == got


@given(cases())
def test_steps_follow_each_other(case: Case) -> None:
    steps = transfer(case.before, case.after)
    lyings = [case.before, *(step.after for step in steps)]
    for before, step in zip(lyings, steps, strict=False):
        assert step.before.states == before.states
        if isinstance(step, GroupCollective):
            assert step.before.exact is None
            assert step.after.exact is None
    assert lyings[-1].states == case.after.states
