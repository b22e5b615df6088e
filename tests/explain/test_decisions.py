"""Explanations: every runner-up is the best plan with one decision changed, as simulated anew."""

from __future__ import annotations

import time

import msgspec
import pytest

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.explain.decisions import Decision, explain
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import IDLE, Layout, layouts
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

PAIRS = Cluster.named("flexflow-p100", node=2, gpu=2)
PRICES = CollectivePrices(Pricer(PAIRS, algorithm="best"))
OPERATORS = OperatorPricer(PAIRS.device)


def repeated(batch: int = 512) -> OperatorGraph:
    """Three equal layers of a product and a curve, and a loss; the first returns no gradient."""
    tensor = f"float32[n={batch}, d=64]"
    return parse_graph(
        f"""graph repeated
        input x: {tensor}
        input t: int64[n={batch}]
        parameter a: float32[o=64, i=64]
        parameter b: float32[o=64, i=64]
        parameter c: float32[o=64, i=64]
        operator first: p: {tensor} = linear(x, a)
        operator gelu: q: {tensor} = gelu(p)
        operator second: r: {tensor} = linear(q, b)
        operator again: s: {tensor} = gelu(r)
        operator third: u: {tensor} = linear(s, c)
        operator last: v: {tensor} = gelu(u)
        operator loss: l: float32[] = cross_entropy_loss(v, t)
        output l
        loss l"""
    )


def plan_of(*rows: str, options: Options | None = None) -> Plan:
    """A plan from the layouts of first, gelu, second, again, third, last and loss."""
    return Plan.of("mine", repeated(), PAIRS, [Layout.parse(row) for row in rows], options)


FLAT = plan_of(*["sample channel", "sample dim1"] * 3, "sample replica")
PIPELINE = plan_of(*["@0 sample"] * 2, *["@1 sample"] * 5, options=Options(micro_batches=2))


def explained(plan: Plan, memory: int = 2**40, **more: object) -> dict[str, Decision]:
    decisions = explain(
        plan,
        prices=PRICES,
        operators=OPERATORS,
        memory=Bytes(memory),
        **more,  # type: ignore[arg-type]
    )
    return {decision.subject: decision for decision in decisions}


def step(plan: Plan) -> float:
    return simulate(plan, PRICES, OPERATORS).prediction.step


def with_rows(plan: Plan, rows: dict[str, str]) -> Plan:
    changed = tuple((name, rows.get(name, text)) for name, text in plan.layouts)
    return msgspec.structs.replace(plan, layouts=changed)


def best_other(plan: Plan, names: tuple[str, ...]) -> float:
    """The fastest plan in which these units have another layout, all the same; brute force."""
    (unit,) = [unit for unit in plan.units if unit.name == names[0]]
    roles = plan.layout[names[0]].roles
    steps = []
    for layout in layouts(unit.extents, PAIRS, symmetric=False):
        if layout.roles != roles and not any(role.startswith(IDLE) for role in layout.roles):
            steps.append(step(with_rows(plan, dict.fromkeys(names, str(layout)))))
    return min(steps)


def test_layouts_are_compared_with_the_best_other_one() -> None:
    decisions = explained(FLAT)
    for subject, names in {
        "first": ("first",),
        "second (+1 alike)": ("second", "third"),
        "gelu (+2 alike)": ("gelu", "again", "last"),
        "loss": ("loss",),
    }.items():
        assert decisions[subject].step == best_other(FLAT, names)
        changed = with_rows(FLAT, dict.fromkeys(names, str(decisions[subject].runner_up)))
        assert step(changed) == decisions[subject].step


def test_the_largest_difference_comes_first_and_says_how_large() -> None:
    decisions = [entry for entry in explained(FLAT).values() if entry.step is not None]
    steps = [entry.step for entry in decisions if entry.step is not None]
    assert steps == sorted(steps, reverse=True)
    base = step(FLAT)
    for decision, seconds in zip(decisions, steps, strict=True):
        word = "longer" if seconds > base else "shorter" if seconds < base else "no difference"
        assert word in decision.note


def test_options_are_changed_one_at_a_time() -> None:
    decisions = explained(PIPELINE)
    for subject, field, values in (
        ("micro-batches", "micro_batches", [1, 4]),
        ("recompute", "recompute", [True]),
        ("zero", "zero", [1, 2, 3]),
    ):
        steps = [
            step(
                msgspec.structs.replace(
                    PIPELINE, options=msgspec.structs.replace(PIPELINE.options, **{field: value})
                )
            )
            for value in values
        ]
        assert decisions[subject].step == min(steps)


def test_a_runner_up_is_not_told_in_the_words_of_what_was_chosen() -> None:
    decision = explained(plan_of(*["sample sample"] * 6, "sample replica"))[
        "placement on node and gpu"
    ]
    assert decision.chosen == "sample on node, sample on gpu"
    assert decision.runner_up == "2 of node and 2 of gpu exchanged"


def test_stages_and_placement() -> None:
    decisions = explained(PIPELINE)
    fewer = with_rows(PIPELINE, {unit.name: "sample sample" for unit in PIPELINE.units})
    assert (decisions["stages"].chosen, decisions["stages"].runner_up) == ("2", "1")
    assert decisions["stages"].step == step(fewer)
    exchanged = {name: " ".join(reversed(text.split())) for name, text in PIPELINE.layouts}
    placement = decisions["placement on node and gpu"]
    assert placement.chosen == "idle on node, sample on gpu"
    assert placement.step == step(with_rows(PIPELINE, exchanged))


def test_pipelines_keep_their_coordinates() -> None:
    decisions = explained(PIPELINE)
    for subject in ("first", "second (+1 alike)", "gelu (+2 alike)", "loss"):
        decision = decisions[subject]
        assert decision.runner_up is not None
        assert decision.runner_up.split()[0] == decision.chosen.split()[0]


def test_reductions_name_the_next_way() -> None:
    (reduction,) = [
        decision
        for name, decision in explained(plan_of(*["sample sample"] * 7)).items()
        if name.startswith("reduction over 2 node and 2 gpu")
    ]
    assert reduction.runner_up not in (None, reduction.chosen)
    assert "by itself" in reduction.note


def test_gathers_name_their_steps() -> None:
    sharded = plan_of(*["sample sample"] * 7, options=Options(zero=1))
    decisions = explained(sharded)
    (gather,) = [
        decision
        for name, decision in decisions.items()
        if name.startswith("AllGather over 2 node and")
    ]
    assert gather.chosen == "one AllGather"
    assert gather.runner_up == "AllGather along 2 node, 2 gpu"
    assert gather.step is not None
    assert gather.step >= step(sharded)


def test_the_graph_as_given_is_what_its_plan_costs() -> None:
    other = plan_of(*["sample sample"] * 7)
    assert explained(FLAT, original=other)["algebra"].step == step(other)


def test_what_does_not_fit_says_so() -> None:
    decisions = explained(FLAT, memory=1)
    assert all(
        "does not fit, by" in decision.note
        for decision in decisions.values()
        if decision.step is not None
    )


@pytest.mark.parametrize("plan", [FLAT, PIPELINE])
def test_a_deadline_that_is_past_leaves_everything_out(plan: Plan) -> None:
    (decision,) = explained(plan, deadline=time.monotonic() - 1).values()
    assert decision.subject == "left out"
    assert decision.chosen == f"{len(explained(plan))} decisions"
