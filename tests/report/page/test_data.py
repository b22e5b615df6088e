"""What the page draws is what the simulation says."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.quantities import Bytes
from meshwright.baselines import applicable
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.dsl import Program
from meshwright.explain.evaluate_plan import judged
from meshwright.explain.utilisation import time_by_op_group
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.report.page.cluster_section import layout_kinds, roles_of
from meshwright.report.page.memory_chart import memory_document
from meshwright.report.page.operator_section import blocks, graph_document
from meshwright.report.page.page import looks_like_report, page
from meshwright.report.page.reduction_section import distinct_reductions
from meshwright.report.page.timeline import coarsen_spans, rows_of, timeline_document
from meshwright.search.joint.request.question import SearchImprovement
from meshwright.simulate.simulation import simulate
from meshwright.simulate.tasks import loads
from support.baseline_graphs import convolutional, transformer
from support.plan_strategies import plans

OPTIONS = st.builds(Options, zero=st.integers(0, 3), recompute=st.booleans())
HOLDS = ("gradients", "activations", "workspace")


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_rows_hold_what_the_simulation_says(plan: Plan) -> None:
    simulation = simulate(plan)
    row_table = rows_of(simulation)
    busy = loads(simulation.problem.tasks)
    assert {row.held for row in row_table.rows} == set(busy[busy > 0].tolist())
    for row in row_table.rows:
        ends = [0, *(span.start + span.hold for span in row.spans)]
        assert all(span.start >= end for span, end in zip(row.spans, ends, strict=False))
        assert ends[-1] <= simulation.timeline.makespan
        assert all(row_table.labels[span.label][0] == span.kind for span in row.spans)


@settings(max_examples=25)
@given(plans(OPTIONS), st.integers(1, 40))
def test_coarser_rows_lose_no_time(plan: Plan, most: int) -> None:
    rows = rows_of(simulate(plan)).rows
    coarse, shortest = coarsen_spans(rows, most)
    assert [row.held for row in coarse] == [row.held for row in rows]
    spans = sum(len(row.spans) for row in coarse)
    kinds = sum(len({span.kind for span in row.spans}) for row in coarse)
    assert spans <= most or shortest > 0
    assert spans >= min(kinds, most) or spans == sum(len(row.spans) for row in rows)


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_the_document_gives_the_rows_back(plan: Plan) -> None:
    simulation = simulate(plan)
    document: Any = timeline_document(simulation)
    for row, entry in zip(rows_of(simulation).rows, document["rows"], strict=True):
        both = zip(entry["gap"], entry["hold"], strict=True)
        ends = list(accumulate(gap + hold for gap, hold in both))
        assert ends == [span.start + span.hold for span in row.spans]


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_memory_peaks_where_it_is_predicted_to(plan: Plan) -> None:
    simulation = simulate(plan)
    document: Any = memory_document(simulation, Bytes(1 << 30))
    first = document["devices"][0]
    standing = first["parameters"] + first["optimizer"] + first["framework"]
    totals = [
        standing + sum(amounts) for amounts in zip(*(first[kind] for kind in HOLDS), strict=True)
    ]
    assert max(totals) == simulation.prediction.memory.total
    moments = first["ns"]
    assert moments == sorted(moments)
    assert moments[-1] == simulation.timeline.makespan


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_every_operator_is_on_the_page_once(plan: Plan) -> None:
    simulation = simulate(plan)
    document: Any = graph_document(simulation)
    shown = [n for block in document["blocks"] for copy in block["copies"] for n in copy]
    names = [member[0] for n in shown for member in document["units"][n][3]]
    assert sorted(names) == sorted(operator.name for operator in plan.graph.operators)
    spent = time_by_op_group(simulation)
    assert [unit[1] for unit in document["units"]] == [
        round(cost.computing * 1e9) for cost in spent
    ]


def test_repeated_layers_are_folded() -> None:
    plan = data_parallel(transformer(layers=5), Cluster.named("laptop"))
    copy_counts = [len(block.copies) for block in blocks(plan)]
    assert max(copy_counts) >= 4
    document: Any = graph_document(simulate(plan))
    folded = next(block for block in document["blocks"] if len(block["copies"]) == max(copy_counts))
    assert any("*" in name for names in folded["names"] for name in names)


@pytest.mark.parametrize("name", ["data parallel", "expert-designed"])
def test_reductions_take_what_their_steps_take(name: str) -> None:
    plan = applicable(transformer(batch=8), Cluster.named("gcp-a100", node=2, gpu=4))[name]
    simulation = simulate(plan)
    reductions = distinct_reductions(simulation)
    assert reductions
    for reduction in reductions:
        inside, every = (
            sum(1 << f for f in it) for it in (reduction.largest.over, reduction.largest.beside)
        )
        way = simulation.problem.prices.way(0, inside, every, reduction.largest.bytes)
        assert way.fixed + way.slope * reduction.largest.bytes == pytest.approx(
            reduction.priced.seconds
        )
        assert len(Program.parse(reduction.largest.program)) == len(reduction.steps)
        for groups in reduction.steps:
            members = [device for group in groups for device in group]
            assert len(members) == len(set(members))
            assert set(members) <= set(reduction.together)


@settings(max_examples=25)
@given(plans(OPTIONS))
def test_roles_use_every_factor_once(plan: Plan) -> None:
    kinds = layout_kinds(plan)
    assert sum(kind.share for kind in kinds) == pytest.approx(1)
    assert sum(kind.units for kind in kinds) == len(plan.units)
    for layout_kind in kinds:
        numbers = [n for role in roles_of(layout_kind, plan.factors) for n in role.factors]
        assert sorted(numbers) == list(range(len(plan.factors)))


HOSTILE = "</script><script>stolen=1</script>"


def hostile_plan() -> Plan:
    """Names that would end a script, if they were let."""
    graph = parse_graph(
        """graph g
        input x: float32[n=16, i=8]
        parameter w: float32[o=8, i=8]
        operator y: y: float32[n=16, o=8] = linear(x, w)
        operator z: z: float32[n=16, o=8] = relu(y)
        output z"""
    )
    text = str(graph).replace("operator y:", f"operator {HOSTILE.replace('=', '')}:")
    return data_parallel(parse_graph(text), Cluster.named("laptop"))


def test_no_name_is_read_as_markup() -> None:
    plan = hostile_plan()
    planned = judged(plan)
    question = planned.question
    other = type(question.graph)(
        **{key: getattr(question.graph, key) for key in question.graph.__struct_fields__}
        | {"name": HOSTILE}
    )
    asked = type(question)(
        **{key: getattr(question, key) for key in question.__struct_fields__} | {"graph": other}
    )
    text = page(planned._replace(question=asked), (), simulate(plan))
    assert "<script>stolen" not in text
    assert text.count("</script>") == text.count("<script") == 3
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert "<script>stolen1</script>" in json.loads(data)["graph"]["units"][0][3][0][0]


def test_a_plan_that_was_not_searched_for_says_so(tmp_path: Any) -> None:
    plan = data_parallel(convolutional(batch=64), Cluster.named("laptop"))
    planned = judged(plan)
    text = page(planned, (), simulate(plan))
    assert "There was no search" in text
    assert 'id="progress-chart"' not in text
    searched = page(
        planned._replace(history=(SearchImprovement(1.0, 0.5, "walking"),)), (), simulate(plan)
    )
    assert 'id="progress-chart"' in searched
    (tmp_path / "report.html").write_text(text)
    (tmp_path / "other.html").write_text("<html></html>")
    assert looks_like_report(tmp_path / "report.html")
    assert not looks_like_report(tmp_path / "other.html")


def test_nothing_is_fetched() -> None:
    plan = data_parallel(convolutional(batch=64), Cluster.named("laptop"))
    text = page(judged(plan), (), simulate(plan))
    before, _, _ = text.partition('id="data">')
    assert "default-src &#x27;none&#x27;" in before
    assert "src=" not in before
    assert "url(http" not in before
