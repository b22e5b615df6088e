"""Parallelism matrices: the running example of P², counts, the bijection, symmetry, idle axes."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.sharding.axes import Axis, axis_indices, parse_axes
from meshwright.sharding.placement import (
    Placement,
    interchangeable,
    matrices,
    parse_matrix,
    placements,
)

FIG_2 = {
    "[[1 2 2 1] [1 1 1 4]]": """
        0/0 1/0 2/0 3/0
        0/1 1/1 2/1 3/1
        0/2 1/2 2/2 3/2
        0/3 1/3 2/3 3/3""",
    "[[1 2 1 2] [1 1 2 2]]": """
        0/0 0/2 2/0 2/2
        0/1 0/3 2/1 2/3
        1/0 1/2 3/0 3/2
        1/1 1/3 3/1 3/3""",
    "[[1 1 2 2] [1 2 1 2]]": """
        0/0 2/0 0/2 2/2
        0/1 2/1 0/3 2/3
        1/0 3/0 1/2 3/2
        1/1 3/1 1/3 3/3""",
}
"""Markers n/m of figure 2 b to d: rows are GPU 0 to 3, columns the CPUs A to D."""


def test_the_running_example_has_four_matrices() -> None:
    every = [tuple(m) for m in matrices((1, 2, 2, 4), (4, 4))]
    assert every == [
        ((1, 1, 1, 4), (1, 2, 2, 1)),
        ((1, 1, 2, 2), (1, 2, 1, 2)),
        ((1, 2, 1, 2), (1, 1, 2, 2)),
        ((1, 2, 2, 1), (1, 1, 1, 4)),
    ]


@pytest.mark.parametrize("matrix", FIG_2)
def test_all_markers_of_figure_2(matrix: str) -> None:
    placement = Placement((Axis("data", 4), Axis("shard", 4)), parse_matrix(matrix))
    shards = [placement.shard(device) for device in range(16)]
    drawn = [[shards[cpu * 4 + gpu] for cpu in range(4)] for gpu in range(4)]
    text = "\n".join(" ".join(f"{n}/{m}" for n, m in row) for row in drawn)
    assert text == "\n".join(line.strip() for line in FIG_2[matrix].strip().splitlines())


def exponents(number: int, prime: int) -> int:
    count = 0
    while number % prime == 0:
        number, count = number // prime, count + 1
    return count


def contingency_tables(rows: tuple[int, ...], columns: tuple[int, ...]) -> int:
    """How many matrices of non-negative integers have these row and column sums."""

    @cache
    def count(left: tuple[int, ...], remaining: tuple[int, ...]) -> int:
        if not remaining:
            return int(not any(left))
        choices = product(*(range(min(n, remaining[0]) + 1) for n in left))
        fitting = (c for c in choices if sum(c) == remaining[0])
        return sum(
            count(tuple(n - k for n, k in zip(left, c, strict=True)), remaining[1:])
            for c in fitting
        )

    return count(rows, columns)


@st.composite
def hierarchies_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    primes = draw(st.lists(st.sampled_from((2, 2, 2, 3, 5)), max_size=7))
    levels, axes = [1] * draw(st.integers(1, 5)), [1] * draw(st.integers(1, 4))
    for prime in primes:
        levels[draw(st.integers(0, len(levels) - 1))] *= prime
        axes[draw(st.integers(0, len(axes) - 1))] *= prime
    return tuple(levels), tuple(axes)


@given(hierarchies_and_axes())
def test_as_many_matrices_as_contingency_tables(
    case: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    hierarchy, axes = case
    every = list(matrices(hierarchy, axes))
    expected = math.prod(
        contingency_tables(
            tuple(exponents(n, prime) for n in axes), tuple(exponents(n, prime) for n in hierarchy)
        )
        for prime in (2, 3, 5)
    )
    assert len(every) == len(set(every)) == expected
    for matrix in every:
        assert tuple(map(math.prod, matrix)) == axes
        assert tuple(map(math.prod, zip(*matrix, strict=True))) == hierarchy


@given(hierarchies_and_axes(), st.randoms())
def test_every_shard_has_its_own_device(
    case: tuple[tuple[int, ...], tuple[int, ...]], random: st.DrawFn
) -> None:
    hierarchy, sizes = case
    matrix = random.choice(list(matrices(hierarchy, sizes)))  # type: ignore[attr-defined]
    placement = Placement(tuple(Axis(str(i), n) for i, n in enumerate(sizes)), matrix)
    shards = [placement.shard(device) for device in range(math.prod(sizes))]
    assert sorted(shards) == sorted(product(*map(range, sizes)))
    assert [placement.device(shard) for shard in shards] == list(range(len(shards)))


def test_one_placement_of_each_symmetry_class() -> None:
    cluster = Cluster.named("gcp-a100", node=4)
    axes = parse_axes("a=4,b=4,c=4")
    alike = interchangeable(cluster, axes, {"b": "reduced"})
    assert alike == [["a", "c"]]
    every = list(placements(cluster, axes))
    once = list(placements(cluster, axes, alike=alike))

    def classes(placed: list[Placement]) -> Counter[tuple[object, ...]]:
        return Counter((p.matrix[1], *sorted((p.matrix[0], p.matrix[2]))) for p in placed)

    assert set(classes(once).values()) == {1}
    assert classes(once).keys() == classes(every).keys()
    assert len(once) < len(every)


def test_on_a_wired_machine_only_neighbouring_axes_are_alike() -> None:
    cluster = Cluster.named("gcp-v100", node=2)
    assert interchangeable(cluster, parse_axes("a=2,b=4,c=2"), {"b": 1}) == []
    assert interchangeable(cluster, parse_axes("a=2,c=2,b=4"), {"b": 1}) == [["a", "c"]]


def test_idle_devices_are_those_behind_the_first_index() -> None:
    cluster = Cluster.named("gcp-a100", node=1, gpu=4)
    (placement,) = placements(cluster, {"data": 2}, idle=True)
    assert placement.axes == (Axis("idle", 2), Axis("data", 2))
    assert [placement.works(placement.shard(d)) for d in range(4)] == [True, True, False, False]


SENTENCES = [
    (
        lambda: list(placements(Cluster.named("gcp-a100"), {"data": 6}, idle=True)),
        "the axes data=6 multiply to 6, but cluster 'gcp-a100' has 64 devices (node 4 x gpu 16); "
        "choose sizes whose product divides 64.",
    ),
    (
        lambda: placements(Cluster.named("gcp-a100"), [Axis("a", 8), Axis("a", 8)]),
        "axis 'a' was given more than once; name each axis once.",
    ),
    (
        lambda: placements(Cluster.named("gcp-a100"), {"data": 64}, alike=[["data", "dta"]]),
        "there is no axis 'dta' to be alike; did you mean 'data'? Known: 'data'.",
    ),
    (
        lambda: parse_axes(f"data={'9' * 5000}"),
        "axis 'data': '99999999999999999999999999 ... 99999999999999999999999999' is too large a "
        "number; give at most 1000000000000.",
    ),
    (
        lambda: parse_matrix(f"[[{'9' * 5000}]]"),
        "'99999999999999999999999999 ... 99999999999999999999999999' is too large a number; give "
        "at most 1000000000000.",
    ),
    (
        lambda: parse_axes("a+b=4"),
        "'a+b' cannot be the name of an axis; begin with a letter or digit and use only letters, "
        "digits, '_', '-' and '.'.",
    ),
    (lambda: Axis("data", 0), "axis 'data' has size 0; give 1 or more."),
    (lambda: Axis("data", True), "axis 'data' has size True; give a whole number."),
    (
        lambda: Axis("data", 2.0),  # type: ignore[arg-type]
        "axis 'data' has size 2.0; give a whole number.",
    ),
    (
        lambda: Placement((Axis("a", 4),), ((-2, -2),)),
        "row [-2, -2] of axis a=4 holds what cannot split it; give whole numbers from 1.",
    ),
    (
        lambda: list(placements(Cluster.named("gcp-a100"), {"data": 6})),
        "the axes data=6 multiply to 6, but cluster 'gcp-a100' has 64 devices (node 4 x gpu 16); "
        "choose sizes that multiply to 64.",
    ),
    (
        lambda: list(placements(Cluster.named("gcp-a100"), {"data": 32})),
        "the axes data=32 multiply to 32, but cluster 'gcp-a100' has 64 devices "
        "(node 4 x gpu 16); choose sizes that multiply to 64, or allow idle devices with --idle.",
    ),
    (
        lambda: parse_axes("data"),
        "axis 'data' in 'data'; write NAME=SIZE,..., as 'data=4,tensor=16'.",
    ),
    (lambda: parse_axes("data=0"), "axis 'data' has size 0; give 1 or more."),
    (lambda: parse_axes("a=2,a=2"), "axis 'a' stands twice in 'a=2,a=2'; name each axis once."),
    (
        lambda: parse_axes("idle=2"),
        "'idle' is the name of the axis that is added for idle devices; rename yours, and allow "
        "idle devices instead.",
    ),
    (
        lambda: axis_indices(parse_axes("data=4"), ["dta"]),
        "there is no axis 'dta' to reduce over; did you mean 'data'? Known: 'data'.",
    ),
    (
        lambda: axis_indices(parse_axes("data=4"), []),
        "no axis to reduce over was given; name one or more of ['data'].",
    ),
    (
        lambda: parse_matrix("[1 2]"),
        "'[1 2]' is not a matrix; write rows in brackets, as '[[1 2] [4 8]]'.",
    ),
    (
        lambda: Placement((Axis("a", 4),), ((2, 1),)),
        "row [2, 1] of axis a=4 multiplies to 2; make it multiply to 4.",
    ),
]


@pytest.mark.parametrize(("mistake", "sentence"), SENTENCES)
def test_mistakes_get_a_sentence(mistake: object, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        mistake()  # type: ignore[operator]
    assert str(caught.value) == sentence
