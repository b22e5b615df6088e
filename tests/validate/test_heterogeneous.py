"""AMP's trials: rows, figures of how far predictions are off, and what is passed over."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.report.text.amp_table import describe_trials, heterogeneous_document
from meshwright.validate.heterogeneous import (
    COLUMNS,
    HetJudged,
    Judge,
    embedded_rows,
    median_error,
    pairs_in_order,
    parse_rows,
)


def refused(source: str, batch: int) -> OperatorGraph:
    raise InputError(f"{source} with {batch} is not captured here", "nothing")


def test_embedded_rows() -> None:
    rows = embedded_rows()
    assert len(rows) == 85
    assert sum(row.measured is not None for row in rows) == 55
    first = rows[0]
    assert (first.experiment, first.stages, first.tensor, first.data) == (
        "homogeneous",
        (30,),
        1,
        16,
    )
    assert {row.experiment for row in rows} == {"homogeneous", "het_cluster", "het_model"}


def test_errors_and_order() -> None:
    rows = [row for row in embedded_rows() if row.measured][:3]
    measured = [row.measured or 0.0 for row in rows]
    judged = [HetJudged(row, Seconds((row.measured or 0.0) * 1.1)) for row in rows]
    assert median_error(judged) == pytest.approx(0.1)
    assert pairs_in_order(judged) == 1.0
    wrong = [
        HetJudged(row, Seconds(5 - seconds)) for row, seconds in zip(rows, measured, strict=True)
    ]
    assert pairs_in_order(wrong) == 0.0
    assert "3 of 3 measured rows predicted, median error 10.0%" in describe_trials(judged)
    assert heterogeneous_document(judged)["pairs_in_order"] == 1.0


def test_rows_that_cannot_be_predicted_say_why() -> None:
    rows = embedded_rows()
    gan = next(row for row in rows if row.experiment == "het_model")
    assert Judge(refused).judged(gan).skipped == "its model is not described"
    assert "is not captured here" in Judge(refused).judged(rows[0]).skipped


def test_bad_tables_get_a_sentence() -> None:
    with pytest.raises(InputError, match="there is no column 'model'"):
        parse_rows("source\nAMP\n", "x.csv")
    head = ",".join(COLUMNS)
    with pytest.raises(InputError, match=r"x.csv, line 2: a cell is no number"):
        parse_rows(f"{head}\nAMP,{','.join('z' for _ in COLUMNS[1:])}\n", "x.csv")
