"""Ranking placements and programs together."""

from __future__ import annotations

import pytest

from meshwright import Cluster, InputError, Pricer, Ranker, Reduction, placements, rank
from meshwright.base.quantities import Bytes
from meshwright.search.rank import rank_pairs, sweep

AXES = {"data": 4, "tensor": 16}


@pytest.fixture
def ranker() -> Ranker:
    return Ranker(Pricer(Cluster.named("gcp-a100", node=4)))


def test_fastest_first_and_every_placement_once(ranker: Ranker) -> None:
    ranking = rank(ranker, AXES, [Reduction.parse("data=8GiB")])
    times = [ranked.best_seconds for ranked in ranking.placements]
    assert times == sorted(times)
    expected = set(placements(ranker.pricer.cluster, AXES))
    assert {ranked.placement for ranked in ranking.placements} == expected
    assert all(ranked.best_seconds <= ranked.all_reduce_seconds for ranked in ranking.placements)


def test_best_is_the_first_of_all_pairs(ranker: Ranker) -> None:
    reduction = Reduction.parse("tensor=1GiB")
    ranking = rank(ranker, AXES, [reduction])
    pairs = rank_pairs(ranker, placements(ranker.pricer.cluster, AXES), reduction)
    assert len(pairs) == 93 + 93 + 3
    assert pairs[0][1].seconds == ranking.best.best_seconds


def test_a_set_of_reductions_is_weighed_together(ranker: Ranker) -> None:
    """Alone each reduction wants the inner level; together they share it by weight."""
    alone = {
        axis: rank(ranker, AXES, [Reduction.parse(f"{axis}=1GiB")]).best.placement.matrix
        for axis in AXES
    }
    assert alone == {"data": ((1, 4), (4, 4)), "tensor": ((4, 1), (1, 16))}
    for texts, expected in (
        (["data=1GiB", "tensor=1MiB"], alone["data"]),
        (["data=1GiB", "tensor=64MiB*96"], ((2, 2), (2, 8))),
        (["data=1GiB", "tensor=64MiB*2000"], alone["tensor"]),
    ):
        best = rank(ranker, AXES, [Reduction.parse(text) for text in texts]).best
        assert best.placement.matrix == expected
        assert best.best_seconds == pytest.approx(sum(r.best_seconds for r in best.reductions))


def test_symmetric_placements_have_equal_prices() -> None:
    for name, axes in (
        ("gcp-a100", {"a": 4, "b": 4, "c": 4}),
        ("gcp-v100", {"a": 4, "b": 4, "c": 2}),
    ):
        ranker = Ranker(Pricer(Cluster.named(name, node=4)))
        reduction = [Reduction.parse("c=1GiB")]
        every = {r.best_seconds for r in rank(ranker, axes, reduction).placements}
        once = rank(ranker, axes, reduction, unique=True).placements
        assert {r.best_seconds for r in once} == every


def test_small_payloads_are_decided_by_latency(ranker: Ranker) -> None:
    every = list(placements(ranker.pricer.cluster, {"data": 64}))
    sizes = (1 << 10, 10 << 30)
    small, large = (it for _, it in sweep(ranker, every, Reduction.parse("data=1B"), sizes))
    assert small.reductions[0].best.program != large.reductions[0].best.program


def test_a_reduction_over_an_axis_of_size_one_costs_nothing(ranker: Ranker) -> None:
    best = rank(ranker, {"data": 64, "pipe": 1}, [Reduction.parse("pipe=1GiB")]).best
    assert not best.best_seconds
    assert len(best.reductions[0].best.program) == 0


def test_interrupted_search_returns_its_best(ranker: Ranker) -> None:
    seen = []

    def interrupt() -> None:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt

    ranking = rank(ranker, AXES, [Reduction.parse("data=1GiB")], progress=interrupt)
    assert ranking.stopped == "interrupted"
    assert len(ranking.placements) == 2


MISTAKES = [
    ("data=0B", "a reduction over data of 0 bytes; give 1 byte or more."),
    ("data", "the reduction 'data' has no size; add one, as 'data=8GiB', or --bytes."),
    ("=8GiB", "'=8GiB' names no axis to reduce over; name one, as 'data'."),
    ("", "'' names no axis to reduce over; name one, as 'data'."),
    ("data=1GiB*0", "a reduction 0 times a step; give 1 or more."),
    ("data=1GB/s", "'1GB/s' has the unit 'GB/s'; give a size with a unit, as '8 GiB'."),
    (
        "data=1GiB*x",
        "'data=1GiB*x' is not a reduction; write AXIS+AXIS=BYTES*COUNT, as 'data=8GiB'.",
    ),
]


@pytest.mark.parametrize(("text", "sentence"), MISTAKES)
def test_what_is_no_reduction(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        Reduction.parse(text)
    assert str(caught.value) == sentence


def test_no_reduction_at_all(ranker: Ranker) -> None:
    with pytest.raises(InputError, match="no reduction was given"):
        rank(ranker, AXES, [])
    with pytest.raises(InputError, match="there is no axis 'pipe'"):
        rank(ranker, AXES, [Reduction(("pipe",), Bytes(1))])
    with pytest.raises(InputError, match="at most 0 steps"):
        Ranker(ranker.pricer, limit=0)
