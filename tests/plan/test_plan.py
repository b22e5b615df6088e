"""Plans: to a file and back, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan, PlannedReduction
from meshwright.sharding.layout import Layout, layouts
from meshwright.sharding.micro_batches import supports_micro_batches
from meshwright.sharding.units import units
from support.baseline_graphs import convolutional, recommendation, recurrent, transformer

GRAPHS = (convolutional(), transformer(1), recurrent(), recommendation(20, 90, 40))
FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
SIX = Cluster.named("flexflow-p100", node=2, gpu=3)

OPTIONS = st.builds(
    Options,
    optimizer=st.sampled_from(("sgd", "momentum", "adam")),
    mixed=st.booleans(),
    micro_batches=st.integers(1, 8),
    schedule=st.sampled_from(("gpipe", "1f1b", "interleaved")),
    recompute=st.booleans(),
    zero=st.integers(0, 3),
    bucket=st.integers(0, 1 << 30).map(Bytes),
)
REDUCTIONS = st.builds(
    PlannedReduction,
    over=st.just((0, 1)),
    beside=st.sampled_from([(), (2,)]),
    bytes=st.floats(0, 1e12),
    program=st.just("AllReduce(root)"),
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    graph, cluster = draw(st.sampled_from(GRAPHS)), draw(st.sampled_from((FOUR, SIX)))
    chosen = [
        draw(st.sampled_from(list(layouts(unit.extents, cluster, symmetric=False))))
        for unit in units(graph)
    ]
    options = draw(OPTIONS)
    sampled = any("sample" in layout.roles for layout in chosen)
    if sampled or not supports_micro_batches(graph, options.micro_batches):
        options = msgspec.structs.replace(options, micro_batches=1)
    plan = Plan.of("drawn", graph, cluster, chosen, options)
    return msgspec.structs.replace(plan, programs=tuple(draw(st.lists(REDUCTIONS, max_size=2))))


@given(plans())
def test_a_plan_reads_back(plan: Plan) -> None:
    text = msgspec.json.encode(plan)
    read = msgspec.json.decode(text, type=Plan)
    assert read == plan
    assert hash(read) == hash(plan)
    assert read.layout == plan.layout
    assert msgspec.json.encode(read) == text


def plan_of(graph: OperatorGraph, rows: tuple[tuple[str, str], ...], cluster: Cluster) -> Plan:
    return Plan(origin="test", graph=graph, cluster=cluster, layouts=rows)


GOOD = tuple((unit.name, "sample sample") for unit in units(convolutional()))

MISTAKES: dict[str, tuple[Callable[[], Plan], str]] = {
    "unknown unit": (
        lambda: plan_of(convolutional(), (*GOOD, ("cnov", "sample sample")), FOUR),
        "the plan lays out 'cnov', which begins no unit of graph 'cnn'; did you mean 'conv'? "
        "Known: 'conv', 'first', 'flat', 'loss', 'relu', 'second'; or take the graph that it was "
        "made for.",
    ),
    "a member that begins no unit": (
        lambda: plan_of(transformer(1), (("0.qt", "sample sample"),), FOUR),
        "the plan lays out '0.qt', which begins no unit",
    ),
    "twice": (
        lambda: plan_of(convolutional(), (*GOOD, ("conv", "sample sample")), FOUR),
        "the plan lays out 'conv' twice; keep one of its layouts.",
    ),
    "missing": (
        lambda: plan_of(convolutional(), GOOD[1:], FOUR),
        "the plan has no layout for 'conv'; give every unit one, or take the graph that it was "
        "made for.",
    ),
    "all missing": (
        lambda: plan_of(convolutional(), (), FOUR),
        "the plan has no layout for 'conv' and 5 other units; give every unit one",
    ),
    "another cluster": (
        lambda: plan_of(convolutional(), GOOD, Cluster.named("flexflow-p100", node=2, gpu=4)),
        "the layout of unit 'conv' has 2 roles, 'sample sample'; give one for each of the "
        "cluster's 3 prime factors.",
    ),
    "a degree that does not divide": (
        lambda: plan_of(convolutional(batch=5), GOOD, FOUR),
        "unit 'conv' has 5 units along 'sample', which cannot be cut 4 ways; give a degree that "
        "divides them, or that leaves only the last part shorter.",
    ),
    "micro-batches of too few samples": (
        lambda: msgspec.structs.replace(
            plan_of(convolutional(), GOOD, FOUR), options=Options(micro_batches=4)
        ),
        "unit 'conv' cuts 'sample' 4 ways, which the 4 micro-batches are too small for; give fewer "
        "micro-batches, a larger batch or another layout.",
    ),
    "an unknown split": (
        lambda: plan_of(convolutional(), (*GOOD[:-1], ("loss", "sample chanel")), FOUR),
        "unit 'loss' cannot be split along 'chanel'",
    ),
    "a coordinate out of range": (
        lambda: plan_of(convolutional(), (*GOOD[:-1], ("loss", "sample @2")), FOUR),
        "unit 'loss' sits at '@2' of factor 1, which has 2; give @0 to @1.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_bad_plans_get_sentences(name: str) -> None:
    build, sentence = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        build()
    assert str(caught.value).startswith(sentence)


def test_a_bad_plan_in_a_file_is_refused() -> None:
    text = msgspec.json.encode(plan_of(convolutional(), GOOD, FOUR))
    changed = text.replace(b'["conv","sample sample"]', b'["conv","sample inner inner"]')
    assert changed != text
    with pytest.raises(ValueError, match="the layout of unit 'conv' has 3 roles"):
        msgspec.json.decode(changed, type=Plan)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Options(micro_batches=0), "the number of micro-batches is 0; give 1 or more."),
        (lambda: Options(zero=4), "the ZeRO stage is 4; give 0, 1, 2 or 3."),
        (
            lambda: Options(optimizer="adm"),  # type: ignore[arg-type]
            "the optimizer is 'adm'; did you mean 'adam'?",
        ),
        (
            lambda: Options(schedule="1f2b"),  # type: ignore[arg-type]
            "the schedule is '1f2b'; did you mean '1f1b'?",
        ),
    ],
)
def test_bad_options_get_sentences(build: Callable[[], Options], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        build()
    assert str(caught.value).startswith(sentence)


def test_layouts_in_order() -> None:
    graph = recurrent()
    layouts = [Layout.parse("replica @1")] * len(units(graph))
    plan = Plan.of("test", graph, FOUR, layouts)
    assert [plan.layout[unit.name] for unit in plan.units] == layouts
    with pytest.raises(ValueError, match="zip"):
        Plan.of("test", graph, FOUR, layouts[1:])
