"""Three engines, one timeline: literal examples, random graphs, random changes.

`ENGINE_CASES=10000` tries so many seeded graphs and so many seeded changes instead of a few.
"""

from __future__ import annotations

import os
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.simulate import full, reference
from meshwright.simulate.delta.engine import Delta
from meshwright.simulate.delta.state import BOUND, EPOCH, IN_FRAMES, LAST_EPOCH, WHOLE
from meshwright.simulate.tasks import Indices, TaskGraph, Timeline
from support.task_strategies import random_change, random_graph, undo
from task_graphs import UNITS, lay, task_graph, training_step

CASES = int(os.environ.get("ENGINE_CASES", "300"))
MOVES_OF_A_GRAPH = 20
RANDOMS = st.randoms(use_true_random=False)
NEVER_GIVE_UP = 1 << 40

Rows = list[tuple[int, int, int, int]]


def rows(timeline: Timeline) -> Rows:
    """(task, ready, start, end) in the order of the timeline."""
    ready, start, end, order = timeline
    return [(int(t), int(ready[t]), int(start[t]), int(end[t])) for t in order]


def indices(numbers: list[int]) -> Indices:
    return np.array(numbers, np.int32)


def same(one: Timeline, other: Timeline) -> bool:
    return (
        np.array_equal(one.ready, other.ready)
        and np.array_equal(one.start, other.start)
        and np.array_equal(one.end, other.end)
        and np.array_equal(one.order, other.order)
    )


def two_devices_and_a_link() -> TaskGraph:
    """Tasks 0 and 1 on devices 0 and 1, then 2 on both; an all-reduce of 0 and 1 beside it."""
    return task_graph(
        edges=[(0, 2), (1, 2), (0, 3), (1, 3), (2, 4), (3, 4)],
        duration=[5, 3, 4, 6, 1],
        places=[[0], [1], [2], [2, 3], [2]],
        sets=[[0], [1], [0, 1], [2]],
        kinds=[0, 0, 1],
        joint=[False, False, False, True, False],
        hold=[[5, 0], [3, 0], [4, 0], [0, 2], [1, 0]],
    )


LITERAL: dict[str, tuple[TaskGraph, Rows]] = {
    "a link beside two devices": (
        two_devices_and_a_link(),
        [(0, 0, 0, 5), (1, 0, 0, 3), (2, 5, 5, 9), (3, 5, 5, 11), (4, 11, 11, 12)],
    ),
    "the lower number first, on one resource": (
        task_graph([], [2, 2, 2], [[0]] * 3, [[0]], [0]),
        [(0, 0, 0, 2), (1, 0, 2, 4), (2, 0, 4, 6)],
    ),
    "each device starts when it is free, and the last start counts": (
        task_graph([], [3, 2, 2], [[0], [1], [0]], [[0], [0, 1]], [0, 0]),
        [(0, 0, 0, 3), (1, 0, 3, 5), (2, 0, 5, 7)],
    ),
    "a joint task waits for all and lets go of each in its own time": (
        task_graph(
            [],
            [3, 4, 1, 1],
            [[0], [0, 1], [0], [1]],
            [[0], [1]],
            [0, 1],
            joint=[False, True, False, False],
            hold=[[3, 0], [4, 2], [1, 0], [0, 1]],
        ),
        [(0, 0, 0, 3), (1, 0, 3, 7), (2, 0, 7, 8), (3, 0, 5, 6)],
    ),
    "what is not live takes no part": (
        task_graph(
            [(0, 1), (1, 2), (0, 2)],
            [2, 9, 1],
            [[], [], []],
            [[0]],
            [0],
            live=[True, False, True],
            edge_live=[False, False, True],
        ),
        [(0, 0, 0, 2), (2, 2, 2, 3)],
    ),
}


@pytest.mark.parametrize("name", LITERAL)
def test_whole_timelines(name: str) -> None:
    graph, expected = LITERAL[name]
    for timeline in (reference.simulate(graph), full.simulate(graph), Delta(graph).timeline):
        assert rows(timeline) == expected
        assert timeline.makespan == max(end for *_, end in expected)


def test_a_change_moves_what_follows() -> None:
    graph = two_devices_and_a_link()
    delta = Delta(graph)
    graph.duration[1] = graph.hold[1, 0] = 8
    assert delta.propose(indices([1]), indices([])) == 15
    delta.commit()
    assert rows(delta.timeline) == [
        (0, 0, 0, 5),
        (1, 0, 0, 8),
        (2, 8, 8, 12),
        (3, 8, 8, 14),
        (4, 14, 14, 15),
    ]


@given(RANDOMS)
def test_full_is_reference_on_any_graph(random: Random) -> None:
    graph = random_graph(random)
    assert same(full.simulate(graph), reference.simulate(graph))


@given(RANDOMS)
def test_delta_is_full_along_any_changes(random: Random) -> None:
    check_changes(random, random_graph(random), 8)


def test_many_seeded_graphs() -> None:
    for seed in range(CASES):
        graph = random_graph(Random(seed), most=16)
        expected = reference.simulate(graph)
        assert same(full.simulate(graph), expected), seed
        assert same(Delta(graph).timeline, expected), seed


def test_many_seeded_changes() -> None:
    frames = 0
    for seed in range(CASES // MOVES_OF_A_GRAPH):
        random = Random(seed)
        frames += check_changes(random, random_graph(random, most=90), MOVES_OF_A_GRAPH)
    assert frames > CASES // 10, "the changes did not move between frames"


def check_changes(random: Random, graph: TaskGraph, changes: int) -> int:
    """Propose changes, accept some, and compare with full; leaves how often frames were moved."""
    delta = Delta(graph, patience=random.choice((3, NEVER_GIVE_UP, NEVER_GIVE_UP)))
    delta.trial.at[EPOCH] = random.choice((0, LAST_EPOCH - 2))
    accepted, frames = full.simulate(graph), 0
    for _ in range(changes):
        change = random_change(random, graph)
        makespan = delta.propose(indices(change.touched), indices(change.edges))
        frames += int(delta.trial.at[IN_FRAMES]) - 1
        expected = full.simulate(graph)
        assert makespan == expected.makespan
        if random.random() < 0.5:
            delta.commit()
            accepted = expected
        else:
            undo(graph, change)
        assert same(delta.timeline, accepted)
    if len(graph.live) <= 30:
        assert same(accepted, reference.simulate(graph))
    return frames


@given(RANDOMS)
def test_a_limit_changes_nothing_below_it(random: Random) -> None:
    check_limits(random)


def test_many_seeded_limits() -> None:
    stopped = sum(check_limits(Random(seed)) for seed in range(CASES // 4))
    assert stopped > CASES // 10, "the limits stopped too few trials"


def check_limits(random: Random) -> int:
    """Propose changes under limits, accept some; leaves how many trials were stopped."""
    graph, stopped = random_graph(random), 0
    shorten_holds(graph)
    delta, accepted = Delta(graph, patience=NEVER_GIVE_UP), full.simulate(graph)
    for _ in range(MOVES_OF_A_GRAPH):
        change = random_change(random, graph)
        shorten_holds(graph)
        expected = full.simulate(graph)
        limit = random.randint(accepted.makespan - 3, accepted.makespan + 3)
        makespan = delta.propose(indices(change.touched), indices(change.edges), limit)
        if expected.makespan <= limit:
            assert makespan == expected.makespan
        else:
            assert limit < makespan <= expected.makespan
        stopped += int(delta.trial.at[BOUND] > limit)
        if makespan <= limit:
            delta.commit()
            accepted = expected
        else:
            undo(graph, change)
        assert same(delta.timeline, accepted)
    return stopped


def shorten_holds(graph: TaskGraph) -> None:
    """Let no task hold a resource longer than it lasts, as limits ask for."""
    np.minimum(graph.hold, graph.duration[:, np.newaxis], out=graph.hold)


@pytest.mark.parametrize("devices", [4, 64])
def test_delta_is_full_on_a_training_step(devices: int) -> None:
    random, step = Random(devices), training_step(devices, Random(0))
    delta, touched, flipped = Delta(step.graph), indices([0] * 64), indices([0] * 64)
    whole = 0
    for _ in range(CASES // 4):
        unit, layout = random.randrange(UNITS), random.randrange(len(step.size))
        before = step.layout[unit]
        count, flips = lay(step, unit, layout, touched, flipped)
        makespan = delta.propose(touched[:count], flipped[:flips])
        whole += int(delta.trial.at[WHOLE] > 0)
        expected = full.simulate(step.graph)
        assert makespan == expected.makespan
        if random.random() < 0.3:
            delta.commit()
            assert same(delta.timeline, expected)
        else:
            lay(step, unit, before, touched, flipped)
    assert whole < CASES // 8, "nearly every trial gave up"


def test_a_cycle_is_noticed() -> None:
    graph = task_graph([(0, 1), (1, 0)], [1, 1], [[], []], [[0]], [0], edge_live=[True, False])
    delta = Delta(graph)
    graph.edge_live[1] = True
    for simulate in (reference.simulate, full.simulate):
        with pytest.raises(AssertionError, match="cycle"):
            simulate(graph)
    with pytest.raises(AssertionError, match="cycle"):
        delta.propose(indices([]), indices([1]))
