"""Predictions against P²'s measurements, within the limits that we hold ourselves to."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.sharding.placement import parse_matrix
from meshwright.validate.p2 import P2Comparison, compare
from meshwright.validate.p2_accuracy import summarize
from meshwright.validate.p2_rows import embedded_rows, load_rows

HEADER = (
    "gpu,nodes,gpus_per_node,axes,reduce_axes,matrix,"
    "allreduce_ring_s,allreduce_tree_s,optimal_ring_s,optimal_tree_s\n"
)


@pytest.fixture(scope="module")
def comparisons() -> list[P2Comparison]:
    return compare(embedded_rows())


def test_every_measured_time_is_compared(comparisons: list[P2Comparison]) -> None:
    assert len(comparisons) == 4 * 62


def test_errors_stay_below_what_was_promised(comparisons: list[P2Comparison]) -> None:
    errors = summarize(comparisons).errors
    assert errors["ring allreduce across nodes"].median <= 0.05
    assert errors["ring allreduce across nodes"].worst <= 0.20
    assert errors["tree allreduce across nodes"].median <= 0.12
    assert errors["optimum across nodes, levels lined up"].median <= 0.12
    assert errors["inside a node"].median <= 0.25


def test_at_most_three_constants_are_fitted(comparisons: list[P2Comparison]) -> None:
    fits = summarize(comparisons).fits
    assert {fit.link for fit in fits} == {"nic", "nvswitch"}
    for fit in fits:
        assert fit.used == pytest.approx(fit.implied, rel=0.03)


def test_measured_gains_are_those_of_the_paper(comparisons: list[P2Comparison]) -> None:
    measured = summarize(comparisons).measured
    assert measured.cases == 124
    assert measured.improved == pytest.approx(97 / 124)
    assert measured.largest_placement_ratio == pytest.approx(448.5)
    assert measured.largest_speedup == pytest.approx(16.84 / 9.19)


def test_hardware_order_mends_the_misaligned_optima(comparisons: list[P2Comparison]) -> None:
    """Matrices that reduce over two whole nodes, lined up or not, get one prediction."""
    two_nodes = [
        it
        for it in comparisons
        if it.kind == "optimal"
        and it.algorithm == "ring"
        and it.measured_s < 5
        and it.row.reduce_axes == (0, 2)
    ]
    good = {it.predicted_s for it in two_nodes if it.aligned}
    bad = [it for it in two_nodes if not it.aligned]
    assert len(bad) == 4
    assert good == {it.predicted_s for it in bad}
    for it in bad:
        assert 4.48 <= it.measured_s <= 4.77
        assert it.axis_order_s == pytest.approx(it.measured_s, rel=0.06)
        assert it.predicted_s == pytest.approx(3.0, rel=0.15)
        assert str(it.program) == (
            "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; "
            "node.InsideGroup.AllGather"
        )


V100_FACTS = [
    # matrix on [nodes 8], axis reduced, algorithm, seconds that the paper prints
    ("[[1 2] [2 4]]", 0, "ring", 9.37),  # pairs {0, 4} inside a node
    ("[[2 4] [1 2]]", 1, "ring", 0.32),  # pairs {0, 1}
    ("[[2 2] [1 4]]", 1, "ring", 2.96),  # four adjacent GPUs
    ("[[1 4] [2 2]]", 0, "ring", 12.55),  # four strided GPUs
    ("[[4 2] [1 4]]", 0, "ring", 14.84),
    ("[[4 1] [1 8]]", 0, "ring", 22.21),
    ("[[4 8]]", 0, "ring", 4.83),
]


@pytest.mark.parametrize(("matrix", "axis", "algorithm", "seconds"), V100_FACTS)
def test_v100_times_that_the_paper_discusses(
    tmp_path: Path, matrix: str, axis: int, algorithm: str, seconds: float
) -> None:
    rows = parse_matrix(matrix)
    nodes = 1
    for row in rows:
        nodes *= row[0]
    axes = " ".join(str(row[0] * row[1]) for row in rows)
    table = tmp_path / "v100.csv"
    table.write_text(f"{HEADER}V100,{nodes},8,{axes},{axis},{matrix},{seconds},,,\n")
    (comparison,) = compare(load_rows(str(table)))
    assert comparison.algorithm == algorithm
    assert abs(comparison.error) <= 0.20


GOOD = "A100,2,16,32,0,[[2 16]],4.74,3.57,3.18,2.83\n"
MISTAKES = [
    ("A100,", "H100,", "line 2: gpu is 'H100'; did you mean"),
    ("[[2 16]]", "[[4 8]]", "line 2: matrix [[4 8]] lies on [4, 8]; make its columns multiply to"),
    ("[[2 16]]", "2 16", "line 2: '2 16' is not a matrix;"),
    ("32,0,", "32,1,", "line 2: reduce_axes is '1'; name axes from 0 to 0."),
    ("4.74", "fast", "line 2: allreduce_ring_s is 'fast'; give a finite number of seconds above"),
    ("4.74", "0", "line 2: allreduce_ring_s is '0'; give a finite number of seconds above 0."),
    ("4.74", "nan", "line 2: allreduce_ring_s is 'nan'; give a finite number of seconds above 0."),
    ("4.74", "inf", "line 2: allreduce_ring_s is 'inf'; give a finite number of seconds above 0."),
    ("A100,2,", "A100,,", "line 2: nodes: '' is not a whole number; write digits only, as '16'."),
    ("32,0,", ",0,", "line 2: axes is empty; give whole numbers, as '4 16'."),
    ("32,0,", f"{'9' * 5000},0,", "line 2: axes: '99999999999999999999999999 ... 9999"),
    (
        "4.74",
        "4" * 131_073,
        "line 2: not valid CSV (field larger than field limit (131072)); correct that line.",
    ),
    (GOOD, "", "has no rows;"),
    ("gpu,", "card,", "there is no column 'gpu'; add it to the first line."),
]


@pytest.mark.parametrize(("right", "wrong", "sentence"), MISTAKES)
def test_a_mistake_in_a_table_gets_a_sentence(
    tmp_path: Path, right: str, wrong: str, sentence: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text((HEADER + GOOD).replace(right, wrong, 1))
    with pytest.raises(InputError) as caught:
        load_rows(str(table))
    assert sentence in str(caught.value)


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"cannot read 'nowhere.csv' \(No such file"):
        load_rows("nowhere.csv")
