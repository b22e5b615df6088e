"""Operator prices and steps against what was measured on an H200, within what we promise."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.profile_table import MeasuredCall, Origin, PriceTable
from meshwright.cost.tables import table_of
from meshwright.graph.operator_graph import Call, Spec
from meshwright.validate.device import compare_steps, embedded_findings
from meshwright.validate.operator_prices import compare_operators, errors_by_kind

H200 = Cluster.named("h200").device


@pytest.fixture(scope="module")
def table() -> PriceTable:
    prices = table_of(H200)
    assert prices is not None
    return prices


def test_prices_that_ship_say_where_they_come_from(table: PriceTable) -> None:
    assert table.origin.device == "NVIDIA H200"
    assert "torch" in table.origin.software
    assert "calibrate" in table.origin.command
    assert len(table.rows) > 7000


def test_errors_of_calls_that_were_held_out(table: PriceTable) -> None:
    comparisons = compare_operators(table, H200)
    assert {it.source for it in comparisons} <= {"interpolated", "estimated"}
    errors = errors_by_kind(comparisons)["all"]
    assert errors.median <= 0.10
    assert errors.ninetieth <= 0.25


def test_no_call_is_predicted_from_itself() -> None:
    """Every call takes a time of its own; a fold that leaked would predict it exactly."""
    origin = Origin(device="test", software="none", date="2026-11-15", command="by hand")
    rows = []
    for i in range(40):
        spec = Spec("float32", (64, 64 * (i + 1)))
        call = Call(kind="relu", inputs=(spec,), outputs=(spec,))
        rows.append(MeasuredCall(call=call, forward=Seconds(1e-3 * (1 + i % 7))))
    comparisons = compare_operators(PriceTable(origin=origin, rows=tuple(rows)), H200)
    assert len(comparisons) == 40
    assert sum(abs(it.error) > 0.01 for it in comparisons) > 35


def test_folds_must_be_several(table: PriceTable) -> None:
    with pytest.raises(InputError, match="cannot be dealt into 1 folds"):
        compare_operators(table, H200, folds=1)


def test_steps_and_memory_of_whole_models() -> None:
    load = pytest.importorskip("meshwright.capture.load", reason="graphs are captured with torch")
    findings = embedded_findings()
    models = ("bert-base", "gpt2-small")
    chosen = [row for row in findings.steps if row.workload in models and row.batch > 8]
    few = type(findings)(findings.dispatch, tuple(chosen))
    cluster = Cluster.named("h200")
    graph_of = lambda source, batch: load.load_model(source, batch).graph  # noqa: E731
    comparisons = list(compare_steps(few, cluster, graph_of))
    assert len(comparisons) == 4
    for it in comparisons:
        assert abs(it.time_error) <= 0.15
        assert abs(it.memory_error) <= 0.10
