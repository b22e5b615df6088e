"""Two plans beside each other: in what they differ, and only in that."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given, reject
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.baselines.data import data_parallel
from meshwright.baselines.expert import expert
from meshwright.cluster.cluster import Cluster
from meshwright.plan.options import LAYERWISE, Options
from meshwright.plan.plan import Plan
from meshwright.report.contrast import Contrast, contrast, merge_adjacent_changes
from meshwright.report.text import differences as report
from meshwright.sharding.layout import Layout
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, transformer
from support.plan_strategies import plans

SMALL = Cluster.named("dgx-h100", node=2, gpu=4)
PLAN = expert(transformer(batch=8), SMALL)
NAMES = ("a.json", "b.json")


def compared(one: Plan, other: Plan) -> Contrast:
    return contrast(simulate(one), simulate(other))


def relaid(plan: Plan, end: str, text: str) -> Plan:
    """The plan with another layout of the units whose names end so."""
    rows = [(name, text if name.endswith(end) else layout) for name, layout in plan.layouts]
    return replace(plan, layouts=tuple(rows))


@given(plans(repeating=True))
def test_a_plan_does_not_differ_from_itself(plan: Plan) -> None:
    try:
        simulation = simulate(plan)
    except InputError:  # Micro-batches would go through a stage twice.
        reject()
    difference = contrast(simulation, simulation)
    assert difference.same
    assert all(one == other for _, one, other in difference.waits)


def test_equal_plans_are_said_to_be_the_same() -> None:
    text = report.describe_contrast(compared(PLAN, PLAN), NAMES)
    assert text.endswith("\nThe plans are the same.")
    renamed = replace(PLAN, origin="mine")
    assert compared(PLAN, renamed).same
    assert report.describe_contrast(compared(PLAN, renamed), NAMES).endswith(
        "\nThe plans are the same, but for where they come from."
    )


def test_options_that_differ() -> None:
    changed = replace(PLAN, options=Options(zero=1, recompute=True, bucket=Bytes(8)))
    difference = compared(PLAN, changed)
    assert [tuple(option) for option in difference.options] == [
        ("recompute", "false", "true"), ("zero", "0", "1"), ("bucket", "0", "8"),
    ]  # fmt: skip
    assert (difference.layouts, difference.graph, difference.cluster, difference.alone) == (
        (),
        None,
        None,
        (0, 0),
    )


def test_what_only_one_device_holds_is_a_line_of_its_own() -> None:
    """dgx-h100 tells what a framework holds besides tensors, laptop does not."""
    laptop = data_parallel(PLAN.graph, Cluster.named("laptop", process=4))
    dgx = data_parallel(PLAN.graph, Cluster.named("dgx-h100", node=1, gpu=4))
    for one, other in ((dgx, laptop), (laptop, dgx)):
        table = report.table_of_predictions(compared(one, other))
        names, *cells = ([str(cell) for cell in column.cells] for column in table.columns)
        held = dict(zip(names, zip(*cells, strict=True), strict=True))
        assert sorted(held["  framework"][:2]) == ["0 B", "3.075 GiB"]
        assert {"HFU", "device-hours for 1 B samples"} < set(names)


def test_buckets_of_layers_are_called_so() -> None:
    changed = replace(PLAN, options=replace(PLAN.options, bucket=LAYERWISE))
    assert [tuple(option) for option in compared(PLAN, changed).options] == [
        ("bucket", "0", "each layer")
    ]


def test_layouts_are_folded_by_copies_of_a_layer() -> None:
    changed = relaid(PLAN, ".up", "sample sample sample")
    difference = compared(PLAN, changed)
    (row,) = difference.layouts
    assert (row.name, row.times) == ("0.up", 2)
    assert row.one == "node: sample 2 | gpu: channel 4"
    assert row.other == "node: sample 2 | gpu: sample 4"
    assert not difference.same
    assert report.describe_layouts(difference, 5) == (
        "2 units laid out differently; copies of a layer are one line."
    )


def test_an_order_within_a_level_is_told_by_factors() -> None:
    plan = data_parallel(PLAN.graph, Cluster.named("dgx-h100", node=2, gpu=8))
    texts = "sample sample channel sample", "sample sample sample channel"
    (row,) = compared(*(relaid(plan, ".up", text) for text in texts)).layouts
    assert (row.one, row.other) == texts


def test_units_in_a_row_are_joined() -> None:
    difference = compared(PLAN, data_parallel(PLAN.graph, SMALL))
    rows = list(merge_adjacent_changes(difference.layouts))
    assert len(rows) < len(difference.layouts)
    assert sum(row.units for row in rows) == len(difference.layouts)
    assert sum(row.units * row.times for row in rows) == sum(
        row.times for row in difference.layouts
    )
    joined = next(row for row in rows if row.units > 1)
    assert joined.name == f"{joined.first} ... {joined.last} ({joined.units} units)"


def test_collectives_tell_how_often_and_how_long() -> None:
    difference = compared(data_parallel(PLAN.graph, SMALL), PLAN)
    over = {
        (collective.operation, collective.over, collective.purpose)
        for collective in difference.collectives
    }
    assert ("AllReduce", "2 node", "gradients") in over
    by_time = [
        abs(collective.other.seconds - collective.one.seconds)
        for collective in difference.collectives
    ]
    assert by_time == sorted(by_time, reverse=True)
    assert all(collective.one != collective.other for collective in difference.collectives)


def test_waits_add_up_to_the_steps() -> None:
    one, other = simulate(PLAN), simulate(data_parallel(PLAN.graph, SMALL))
    difference = contrast(one, other)
    assert math.isclose(
        sum(wait[1] for wait in difference.waits), one.prediction.step, rel_tol=1e-9
    )
    assert math.isclose(
        sum(wait[2] for wait in difference.waits), other.prediction.step, rel_tol=1e-9
    )


def test_the_other_way_round_is_the_mirror_image() -> None:
    plans_ = PLAN, data_parallel(PLAN.graph, SMALL)
    direct, mirrored = compared(*plans_), compared(*reversed(plans_))
    assert [(row.name, row.one, row.other) for row in direct.layouts] == [
        (row.name, row.other, row.one) for row in mirrored.layouts
    ]
    assert {(wait[0], wait[1], wait[2]) for wait in direct.waits} == {
        (wait[0], wait[2], wait[1]) for wait in mirrored.waits
    }


def test_other_clusters_and_graphs_are_sentences() -> None:
    larger = Cluster.named("dgx-a100", node=2, gpu=4)
    moved = replace(PLAN, cluster=larger)
    faster = replace(
        PLAN, cluster=replace(SMALL, device=replace(SMALL.device, peak=larger.device.peak))
    )
    assert compared(PLAN, moved).cluster == (
        "the clusters differ: dgx-h100 (2 node x 4 gpu) of H100-SXM5-80GB with 80 GiB and "
        "dgx-a100 (2 node x 4 gpu) of A100-SXM4-80GB with 80 GiB"
    )
    assert (compared(PLAN, faster).cluster or "").startswith(
        "the clusters differ in the rates of links or devices: both are dgx-h100"
    )
    difference = compared(PLAN, data_parallel(convolutional(), SMALL))
    assert difference.graph is not None
    assert difference.graph.startswith("the graphs differ: transformer (")
    assert difference.alone == (len(PLAN.layouts), 6)
    assert report.describe_layouts(difference, 5).endswith(
        f" {len(PLAN.layouts)} units only in the first. 6 units only in the second."
    )


def test_other_levels_are_compared_by_what_they_say() -> None:
    flat = Cluster.named("h200", gpu=8)
    rows = [Layout.parse("sample sample sample")] * len(PLAN.layouts)
    one = Plan.of("by hand", PLAN.graph, SMALL, rows, Options())
    other = Plan.of("by hand", PLAN.graph, flat, rows, Options())
    difference = compared(one, other)
    assert {row.other for row in difference.layouts} == {"gpu: sample 8"}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [(1.0, 1.0, ""), (2.0, 1.0, "-50.0%"), (1.0, 30.0, "30x"), (0.0, 3.0, "new")],
)
def test_a_change_in_words(one: float, other: float, words: str) -> None:
    assert report.change(one, other) == words


def test_the_faster_one_is_named() -> None:
    slow, fast = sorted(
        (PLAN, data_parallel(PLAN.graph, SMALL)), key=lambda plan: -simulate(plan).prediction.step
    )
    ratio = simulate(slow).prediction.step / simulate(fast).prediction.step
    text = report.describe_contrast(compared(slow, fast), NAMES)
    assert f"\nThe second is predicted to be {ratio:.3g}x as fast." in text
    text = report.describe_contrast(compared(fast, slow), NAMES)
    assert f"\nThe first is predicted to be {ratio:.3g}x as fast." in text


def test_the_document_is_json_with_all_fields() -> None:
    difference = compared(PLAN, data_parallel(PLAN.graph, SMALL))
    document = json.loads(msgspec.json.encode(report.contrast_document(difference, NAMES)))
    assert document.keys() == {
        "same", "plans", "speedup", "graph", "cluster", "options", "layouts", "units_alone",
        "collectives", "waits",
    }  # fmt: skip
    assert [plan["file"] for plan in document["plans"]] == list(NAMES)
    assert document["layouts"][0].keys() == {"first", "last", "units", "times", "one", "other"}
    assert document["collectives"][0].keys() == {
        "operation", "over", "purpose", "program", "one", "other",
    }  # fmt: skip
    assert document["waits"][0].keys() == {"category", "one_s", "other_s"}
