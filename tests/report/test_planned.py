"""What is said of a plan that was found: in a line, as a graph, beside others."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from msgspec.structs import replace

from meshwright.base.quantities import Bytes
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.explain.evaluate_plan import judged
from meshwright.explain.utilisation import time_by_op_group
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.report.annotated import AnnotatedLine, annotated, by_level, describe_lines
from meshwright.report.json.planned_documents import (
    front_document,
    machines_document,
    planned_document,
)
from meshwright.report.outline import Outline, outline_document, short_description
from meshwright.report.text import planned as report
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.constraints import Constraints
from meshwright.sharding.layout import Layout, devices_of
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, transformer
from support.plan_strategies import plans
from support.planned import answer, asked

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)
LAYERS = 4


def laid(graph: OperatorGraph, cluster: Cluster, roles: dict[str, str], options: Options) -> Plan:
    """A plan with the layout of the first key that a unit's name ends with; "" is all others."""
    layouts = [
        Layout.parse(next(text for end, text in roles.items() if unit.name.endswith(end)))
        for unit in units(graph)
    ]
    return Plan.of("by hand", graph, cluster, layouts, options)


def pipeline(schedule: Options) -> Plan:
    """Half of the layers on each node; samples are cut inside."""
    graph = transformer(LAYERS)
    layouts = [
        Layout.parse("@0 sample" if unit.name[0] in "01" else "@1 sample") for unit in units(graph)
    ]
    return Plan.of("by hand", graph, SMALL, layouts, schedule)


def test_data_parallelism_has_one_axis() -> None:
    plan = laid(transformer(), SMALL, {"": "sample sample"}, Options())
    assert short_description(plan) == Outline(
        axes={"sample": {"node": 2, "gpu": 2}},
        degrees={"sample": 4},
        share=1.0,
        others=(),
        devices=4,
        stages=1,
        options=Options(),
        rewrites=(),
        levels=("node", "gpu"),
    )
    assert str(short_description(plan)) == "DP 4 = 2 nodes x 2 GPUs"


def test_a_weight_cut_by_outputs_and_the_next_by_inputs_are_one_axis() -> None:
    cut = {".f": "sample dim2", ".add": "sample replica", ".add2": "sample replica"}
    cut |= {".a": "sample head", ".gelu": "sample dim2", ".o": "sample inner"}
    plan = laid(
        transformer(), SMALL, cut | {".down": "sample inner", "": "sample channel"}, Options(zero=1)
    )
    outline = short_description(plan, ("fuse at 0.q",))
    assert outline.axes == {"sample": {"node": 2}, "parameter": {"gpu": 2}}
    assert [other.axes for other in outline.others] == [
        {"sample": {"node": 2}, "replica": {"gpu": 2}}
    ]
    assert outline.share + sum(other.share for other in outline.others) > 0.99
    assert str(outline).startswith("DP 2 across nodes, TP 2 inside the node (")
    assert "% of FLOPs); DP 2 across nodes, replicated 2 inside the node (" in str(outline)
    assert str(outline).endswith("; ZeRO 1; rewritten by fuse at 0.q")


def test_stages_are_an_axis() -> None:
    outline = short_description(pipeline(Options(micro_batches=2, recompute=True)))
    assert outline.axes == {"stage": {"node": 2}, "sample": {"gpu": 2}}
    assert (outline.stages, outline.devices, outline.others) == (2, 4, ())
    assert str(outline) == (
        "PP 2 across nodes, DP 2 inside the node; 2 stages; "
        "2 micro-batches, 1f1b; activation checkpointing"
    )
    document = outline_document(outline)
    assert document["text"] == str(outline)
    assert document["micro_batches"] == 2
    assert document["degrees"] == {"stage": 2, "sample": 2}


def test_operators_on_part_of_the_devices_are_no_pipeline() -> None:
    plan = laid(transformer(), SMALL, {".add2": "@1 sample", "": "sample sample"}, Options())
    outline = short_description(plan)
    assert (outline.stages, outline.degrees) == (2, {"sample": 4})
    assert str(outline).endswith("; operators on 2 sets of devices")


def test_work_that_is_done_twice_names_the_machine_that_would_do() -> None:
    plan = laid(transformer(), SMALL, {"": "replica sample"}, Options())
    outline = short_description(plan)
    assert outline.enough == {"node": 1, "gpu": 2}
    assert str(outline) == (
        "DP 2 inside the node, replicated 2 across nodes; "
        "all work is done more than once: 1 node x 2 GPUs would do"
    )


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ((".up",), "76% of FLOPs are done more than once: for these 1 node x 2 GPUs would do"),
        ((".up", ".down", ".o"), ""),
    ],
)
def test_most_of_the_work_twice_is_said_and_less_is_not(cut: tuple[str, ...], said: str) -> None:
    layouts = dict.fromkeys(cut, "sample sample") | {"": "replica sample"}
    outline = short_description(laid(transformer(), SMALL, layouts, Options()))
    assert outline.enough == ({"node": 1, "gpu": 2} if said else {})
    assert str(outline).endswith(said)
    assert bool(said) == ("more than once" in str(outline))


def test_what_no_unit_uses_is_idle() -> None:
    plan = laid(transformer(), SMALL, {"": "@1 sample"}, Options())
    outline = short_description(plan)
    assert outline.axes == {"sample": {"gpu": 2}, "idle": {"node": 2}}
    assert outline.devices == 2
    assert str(outline) == "DP 2 inside the node, idle 2 across nodes; on 2 devices"


def test_one_device() -> None:
    one = Cluster.named("h200", gpu=1)
    plan = laid(convolutional(), one, {"": ""}, Options())
    assert str(short_description(plan)) == "one device"
    assert short_description(plan).devices == 1
    assert by_level([Layout(())], one) == "one device"


@given(plans())
def test_an_outline_counts_devices_and_work(plan: Plan) -> None:
    outline = short_description(plan)
    device_counts = [devices_of(layout, plan.factors) for layout in plan.layout.values()]
    assert max(device_counts) <= outline.devices <= min(plan.cluster.devices, sum(set_of(plan)))
    assert 0 < outline.share + sum(kind.share for kind in outline.others) <= 1 + 1e-9
    assert math.prod(outline.degrees.values()) == plan.cluster.devices
    assert (outline.stages == 1) == (len({x.coordinates() for x in plan.layout.values()}) == 1)


def set_of(plan: Plan) -> list[int]:
    """How many devices every seat has that differs from others."""
    seats = {layout.coordinates(): layout for layout in plan.layout.values()}
    return [devices_of(layout, plan.factors) for layout in seats.values()]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["sample sample channel channel channel"], "node: sample 4 | gpu: channel 8"),
        (["sample channel sample replica sample"], "node: sample 2, channel 2 | gpu: sample 4, "
         "replica 2"),
        (["@1 @1 sample sample @0"], "node: at 3 of 4 | gpu: sample 4, at 0 of 2"),
        (["@0 @0 sample sample sample", "@1 @0 sample sample sample",
          "@1 @1 sample sample sample"], "node: at 0, 2-3 of 4 | gpu: sample 8"),
    ],
)  # fmt: skip
def test_layouts_by_level(texts: list[str], words: str) -> None:
    cluster = Cluster.named("dgx-h100", node=4)
    assert by_level([Layout.parse(text) for text in texts], cluster) == words


def test_repeated_layers_are_one_with_all_places_where_they_sit() -> None:
    plan = pipeline(Options(micro_batches=2))
    simulation = simulate(plan)
    lines = annotated(simulation, 40)
    layer = ["q", "k", "v", "a", "f", "o", "add", "up", "gelu", "down", "add2"]
    assert [(line.first, line.times, line.units) for line in lines] == [
        (f"0.{name}", LAYERS, 1) for name in layer
    ]
    assert {line.layouts for line in lines} == {
        (Layout.parse("@0 sample"), Layout.parse("@1 sample"))
    }
    spent, step = time_by_op_group(simulation), simulation.prediction.step
    for total, part in (
        (sum(cost.computing for cost in spent), sum(line.computing for line in lines)),
        (sum(cost.moving for cost in spent), sum(line.moving for line in lines)),
    ):
        assert math.isclose(total / step, part)


def test_a_layer_that_is_laid_out_otherwise_is_told_by_itself() -> None:
    plan = laid(transformer(LAYERS), SMALL, {"1.up": "sample channel", "": "sample sample"},
                Options())  # fmt: skip
    lines = annotated(simulate(plan), 100)
    assert [line.times for line in lines] == [1] * 22 + [2] * 11
    short = annotated(simulate(plan), 3)
    assert [(line.name, line.times) for line in short] == [
        ("0.q ... 1.add (18 units)", 1),
        ("1.up", 1),
        ("1.gelu ... 1.add2 (3 units)", 1),
        ("2.q ... 2.add2 (11 units)", 2),
    ]
    for key in ("computing", "moving"):
        assert math.isclose(sum_of(lines, key), sum_of(short, key))
    assert "1 more line: --top 4 shows all" in describe_lines(short, 3)
    assert "more" not in describe_lines(short, 4)


def sum_of(lines: list[AnnotatedLine], key: str) -> float:
    return math.fsum(line._asdict()[key] for line in lines)


def test_every_task_is_of_a_unit() -> None:
    simulation = simulate(laid(convolutional(), SMALL, {"": "sample sample"}, Options()))
    spent = time_by_op_group(simulation)
    durations = simulation.problem.tasks.duration
    total = sum(int(durations[task]) for task in simulation.timeline.order.tolist())
    assert math.isclose(sum(cost.computing + cost.moving for cost in spent) * NANO, total)
    assert all(cost.computing > 0 for cost in spent)


def test_speed_up_is_over_the_fastest_baseline_that_fits() -> None:
    planned = answer(asked(convolutional(), SMALL))
    fastest = min(baseline.prediction.step for _, baseline in planned.baselines)
    assert report.reference(planned) == fastest
    assert report.speedup(planned, planned.best) == 1.0
    nothing = answer(asked(convolutional(), SMALL, 1))
    assert report.reference(nothing) is None
    assert report.speedup(nothing, nothing.best) is None


def test_sentences_tell_the_gap_the_memory_and_the_end() -> None:
    planned = answer(asked(convolutional(), SMALL), "complete", ("fuse at conv",))
    plan, decided, rate, cost, memory, bound, search = report.describe_planned(planned).splitlines()
    assert plan.startswith("plan: all layers: ")
    assert decided.endswith("rewritten by fuse at conv.")
    assert rate.startswith("throughput: ")
    assert " samples/s, " in rate
    assert "MFU " in rate
    assert " device-hours for 1 B samples (" in cost
    assert bound.startswith("lower bound: ")
    assert bound.endswith(
        " for any plan of the 3 graphs with one micro-batch; optimality gap at most 25.0%."
    )
    assert memory.startswith("peak memory: ")
    assert ", predicted): parameters " in memory
    assert search.endswith("3 graphs looked at in 2 s; it stopped because nothing was left to try.")
    exact = planned._replace(bound=planned.best.prediction.step, graphs=1)
    assert (
        "for any plan of the graph with one micro-batch; no optimality gap."
        in report.describe_planned(exact)
    )


def test_nothing_fits() -> None:
    question = asked(convolutional(), SMALL, 1000)
    planned = answer(question)
    least = min(baseline.prediction.memory.total for _, baseline in planned.baselines)
    words = report.describe_planned(planned)
    assert "NOTHING fits into 1000 B a device" in words
    assert report.missing(planned, report.smallest(planned)) == least - 1000
    assert "a higher limit (--memory; a device has 80 GiB)" in words
    assert "constraints" not in words
    small = Cluster.named("dgx-h100", node=2, gpu=2)
    pinned = question.__class__(
        graph=question.graph,
        cluster=small,
        memory=question.memory,
        constraints=Constraints(rules=("*",)),
    )
    assert "fewer constraints" in report.describe_planned(answer(pinned))


def test_where_activations_do_not_fit_more_micro_batches_would_help() -> None:
    planned = answer(asked(convolutional(), SMALL, 1000))
    memory = replace(planned.best.prediction.memory, activations=Bytes(1 << 40))
    large = planned.best._replace(prediction=replace(planned.best.prediction, memory=memory))
    many = Candidate(large.plan.changed(options=Options(micro_batches=3)), large.prediction)
    texts = [
        report.describe_planned(planned._replace(best=candidate, front=(), baselines=()))
        for candidate in (large, many)
    ]
    assert "more micro-batches than 1 (--fix micro-batches=3), a smaller batch" in texts[0]
    assert "what helps: a smaller batch (--batch)" in texts[1]


def test_documents() -> None:
    planned = answer(asked(convolutional(), SMALL))
    document = planned_document(planned, ())
    step = planned.best.prediction.step
    expected = {
        "step_s": step,
        "bound_s": step * 0.8,
        "gap": planned.gap,
        "memory_bytes": planned.best.prediction.memory.total,
        "search_s": 2.0,
        "baselines": {name: baseline.prediction.step for name, baseline in planned.baselines},
        "fits": True,
        "stopped": "budget",
        "simulated": len(planned.baselines),
        "decisions": [],
        "refused": [{"name": "walking", "reason": "there is no path; take one."}],
    }
    assert {key: document[key] for key in expected} == expected
    front = front_document(planned)["front"]
    assert isinstance(front, list)
    assert [entry["step_s"] for entry in front] == sorted(entry["step_s"] for entry in front)
    machines = machines_document([planned])["machines"]
    assert isinstance(machines, list)
    assert [machine["device_s"] for machine in machines] == [step * 4]


def test_a_model_without_a_loss_is_said_to_have_none() -> None:
    graph = convolutional()
    planned = judged(data_parallel(graph, Cluster.named("laptop")), baselines=False, bound=False)
    assert graph.loss is not None
    assert "no loss" not in report.describe_question(planned)
    bare = planned._replace(question=replace(planned.question, graph=replace(graph, loss=None)))
    assert "the model has no loss" in report.describe_question(bare)
