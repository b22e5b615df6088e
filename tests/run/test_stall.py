"""Who is named when ranks stand still."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.quantities import Seconds
from meshwright.run.health.peers import children_of
from meshwright.run.health.stall import Mark, StallDetector, complaint, merged, stall_detector_of

LIMIT = Seconds(20.0)

marks = st.builds(
    Mark,
    step=st.integers(0, 2),
    count=st.integers(0, 2),
    inside=st.booleans(),
    waiting=st.booleans(),
    done=st.booleans(),
)
ranks = st.lists(st.tuples(marks, st.sampled_from([0.0, 3.0, 20.0, 25.0])), min_size=1, max_size=9)


def of_tree(rank: int, views: list[StallDetector]) -> StallDetector:
    """What a rank and all below it look like, as beats carry it upwards."""
    below = (of_tree(child, views) for child in children_of(rank, len(views)))
    return merged(views[rank], *below)


def slow_complaint(run: list[tuple[Mark, float]]) -> str | None:
    """The definition, from a look at all ranks at once."""
    at_work = [(m, q, rank) for rank, (m, q) in enumerate(run) if not m.done]
    in_steps = [entry for entry in at_work if entry[0].inside]
    stalled = [(m, q, r) for m, q, r in in_steps if not m.waiting and q >= LIMIT]
    stuck = len(in_steps) == len(at_work) > 0 and all(q >= LIMIT for _, q, _ in in_steps)
    named = stalled or (in_steps if stuck else [])
    if not named:
        return None
    least = min((m.step or 0, m.count) for m, _, _ in named)
    level = [(q, r) for m, q, r in named if (m.step, m.count) == least]
    others = len(level) - 1
    who = f"rank {min(r for _, r in level)}"
    who += f" and {others} other{'s' * (others > 1)} have" if others else " has"
    seconds = f"{min(q for q, _ in level):.0f} s"
    if stalled:
        return f"{who} made no progress in step {least[0]} for {seconds}"
    return (
        "no rank makes progress, each waits for another: furthest behind, "
        f"{who} waited in step {least[0]} for {seconds}"
    )


@given(ranks)
def test_a_tree_of_views_says_what_a_look_at_all_says(run: list[tuple[Mark, float]]) -> None:
    views = [stall_detector_of(rank, mark, quiet, LIMIT) for rank, (mark, quiet) in enumerate(run)]
    assert complaint(of_tree(0, views), LIMIT) == slow_complaint(run)
    assert of_tree(0, views).done == all(mark.done for mark, _ in run)


@given(st.lists(st.tuples(marks, st.sampled_from([0.0, 20.0])), min_size=3, max_size=3))
def test_the_order_of_views_does_not_matter(run: list[tuple[Mark, float]]) -> None:
    views = [stall_detector_of(rank, mark, quiet, LIMIT) for rank, (mark, quiet) in enumerate(run)]
    first, *others = (merged(merged(a, b), c) for a, b, c in permutations(views))
    assert all(other == first for other in others)
    assert merged(views[0], merged(views[1], views[2])) == first


@pytest.mark.parametrize(
    ("run", "said"),
    [
        # Rank 1 hangs; the others say that they wait for it.
        (
            [(Mark(4, 1, True, True), 30.0), (Mark(4, 5, True), 21.0)],
            "rank 1 has made no progress in step 4 for 21 s",
        ),
        # Rank 1 takes its time outside steps.
        ([(Mark(4, 1, True, True), 30.0), (Mark(), 99.0)], None),
        # Rank 1 is slow but not still.
        ([(Mark(4, 1, True, True), 30.0), (Mark(4, 5, True), 3.0)], None),
        # Rank 1 has left, and rank 0 waits for it.
        (
            [(Mark(4, 1, True, True), 30.0), (Mark(3, done=True), 99.0)],
            "no rank makes progress, each waits for another: furthest behind, "
            "rank 0 has waited in step 4 for 30 s",
        ),
    ],
)
def test_who_is_named(run: list[tuple[Mark, float]], said: str | None) -> None:
    views = [stall_detector_of(rank, mark, quiet, LIMIT) for rank, (mark, quiet) in enumerate(run)]
    assert complaint(merged(*views), LIMIT) == said
