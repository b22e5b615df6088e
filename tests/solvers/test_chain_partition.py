"""Where pipelines are cut, against all ways to cut them."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.solvers.chain_partition import SLACK, Staging, staged


def every(loads: list[int], crossing: list[int], stages: int) -> list[Staging]:
    """All ways to cut, each with what it comes to by the definition."""
    stagings = []
    for inner in combinations(range(1, len(loads)), stages - 1):
        runs = list(pairwise((0, *inner, len(loads))))
        pace = max(max(sum(loads[a:b]), crossing[a] + crossing[b]) for a, b in runs)
        stage = tuple(number for number, (a, b) in enumerate(runs) for _ in range(a, b))
        stagings.append(Staging(stage, float(pace), float(sum(crossing[cut] for cut in inner))))
    return stagings


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    loads = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8))
    inner = draw(st.lists(st.integers(0, 30), min_size=len(loads) - 1, max_size=len(loads) - 1))
    return loads, [0, *inner, 0], draw(st.integers(1, len(loads)))


@given(pipelines())
def test_the_pace_is_the_least_with_many_micro_batches(
    given_pipeline: tuple[list[int], list[int], int],
) -> None:
    loads, crossing, stages = given_pipeline
    staging = staged(loads, crossing, stages, 10**6)
    ways = every(loads, crossing, stages)
    assert staging in ways
    assert staging.pace == min(way.pace for way in ways)


@given(pipelines(), st.integers(1, 8))
def test_of_all_cuts_within_a_pace_the_least_crosses(
    given_pipeline: tuple[list[int], list[int], int], micro: int
) -> None:
    loads, crossing, stages = given_pipeline
    ways = every(loads, crossing, stages)
    least = min(way.pace for way in ways)
    staging = staged(loads, crossing, stages, micro)

    def time(way: Staging) -> float:
        return way.crossing + (micro - 1) * way.pace

    for slack in SLACK:
        within = [way.crossing for way in ways if way.pace <= slack * least]
        assert time(staging) <= min(within) + (micro - 1) * slack * least + 1e-6


def test_cuts_where_little_crosses() -> None:
    assert staged([5, 5, 5, 5], [0, 90, 2, 90, 0], 2, 4).stage == (0, 0, 1, 1)


@pytest.mark.parametrize("stages", [3, 9])
def test_no_more_stages_than_units(stages: int) -> None:
    assert staged([1, 1, 1], [0, 0, 0, 0], stages, 2).stage == (0, 1, 2)
