"""The largest decisions searched again, and what-ifs planned anew."""

from __future__ import annotations

from types import ModuleType

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.cost.tables import pricer_of
from meshwright.explain import confirm, replan
from meshwright.explain.confirm import (
    DECISIONS,
    confirm_decisions,
    constraints_of,
    search_with,
    warm_start_under_constraints,
)
from meshwright.explain.decisions import Decision, explain
from meshwright.explain.evaluate_plan import judged, question_of
from meshwright.explain.explanation import explained
from meshwright.explain.replan import _longer, _spread, faster_device, replanned
from meshwright.explain.what_if import helps
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.request.constraints import Constraints
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.joint.request.violations import violations
from meshwright.sharding.layout import Layout
from meshwright.simulate.simulation import prices_of, simulate
from support.baseline_graphs import transformer

GRAPH = parse_graph("""graph two layers
input x: float32[n=64, k=512]
parameter v: float32[h=2048, k=512]
parameter w: float32[o=512, h=2048]
operator fc1: y: float32[n=64, h=2048] = linear(x, v)
operator act: z: float32[n=64, h=2048] = relu(y)
operator fc2: t: float32[n=64, o=512] = linear(z, w)
operator sum: l: float32[] = sum(t)
output l
loss l""")
PLAN = data_parallel(GRAPH, Cluster.named("flexflow-p100", node=2, gpu=1))
LITTLE = Budget(seconds=Seconds(1.0), proposals=5)
"""Not all plans of the small graph, which no number of proposals forbids."""


@pytest.fixture(scope="module")
def planned() -> PlanResult:
    return judged(PLAN, baselines=False)


@pytest.fixture(scope="module")
def decisions(planned: PlanResult) -> tuple[Decision, ...]:
    unconfirmed = explain(
        PLAN,
        prices=prices_of(PLAN),
        operators=pricer_of(PLAN.cluster.device),
        memory=planned.question.memory,
    )
    *_, last = confirm_decisions(
        PLAN, planned.question, unconfirmed, LITTLE, step=planned.best.prediction.step
    )
    return last


def test_the_largest_are_searched(planned: PlanResult, decisions: tuple[Decision, ...]) -> None:
    """Those that are faster first; none is slower than with all else kept."""
    searched = [decision for decision in decisions if decision.searched is not None]
    assert list(decisions[: len(searched)]) == searched
    assert len(searched) >= min(DECISIONS, sum(bool(decision.fix) for decision in decisions))
    others = [
        decision.step or 0.0 for decision in decisions if decision.fix and decision.searched is None
    ]
    assert not others or max(others) <= (searched[DECISIONS - 1].best or 0.0)
    assert all(
        decision.searched <= decision.step
        for decision in searched
        if decision.searched and decision.step
    )
    step = planned.best.prediction.step
    faster = [
        decision.step
        for decision in decisions
        if decision.fix and decision.fits and (decision.step or step) < step
    ]
    assert not faster or min(decision.step or step for decision in searched) == min(
        filter(None, faster)
    )
    steps = [decision.best or 0.0 for decision in searched]
    assert steps == sorted(steps, reverse=True)


def test_what_gets_larger_than_what_was_searched_is_searched_too(
    planned: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first searches find that their decisions cost nothing; others are larger then."""
    known = [
        Decision("zero", "0", str(n), Seconds(2.0 + n), "", fix=f"--fix micro-batches={2**n}")
        for n in range(8)
    ]
    asked: list[int] = []

    def found(_: object, __: object, constraints: Constraints, ___: object) -> PlanResult:
        number = int(constraints.fixed[0][1]).bit_length() - 1
        asked.append(number)
        step = Seconds(1.0 if number > 5 else 2.0 + number)
        best = planned.best._replace(prediction=replace(planned.best.prediction, step=step))
        return planned._replace(best=best)

    monkeypatch.setattr(confirm, "search_with", found)
    *_, ranked = confirm_decisions(PLAN, planned.question, known, LITTLE, step=1.0)
    assert asked == [7, 6, 5, 4, 3, 2, 1]
    assert [decision.runner_up for decision in ranked] == ["5", "4", "3", "2", "1", "6", "7", "0"]
    assert [decision.searched is None for decision in ranked] == [False] * 7 + [True]


@pytest.mark.parametrize("room", [confirm, replan])
def test_an_interrupted_search_is_the_last(
    planned: PlanResult, monkeypatch: pytest.MonkeyPatch, room: ModuleType
) -> None:
    """What searches had found before is kept."""
    asked: list[PlanRequest] = []

    def interrupted(question: PlanRequest, *_: object, **__: object) -> PlanResult:
        asked.append(question)
        return planned._replace(stopped="interrupted" if len(asked) > 1 else "budget")

    monkeypatch.setattr(confirm, "MOST", 2 if room is confirm else 0)
    monkeypatch.setattr(room, "best_plan", interrupted)
    told = explained(PLAN, seconds=60.0, budget=LITTLE)
    assert (told.stopped, len(asked)) == ("interrupted", 2)
    assert len(told.what_ifs) == (room is replan)
    assert sum(own.searched is not None for own in told.decisions) == (room is confirm)


def test_a_search_with_it_fixed_finds_the_same(
    planned: PlanResult, decisions: tuple[Decision, ...]
) -> None:
    searched = next(decision for decision in decisions if decision.searched is not None)
    fixed = constraints_of(searched.fix)
    again = search_with(PLAN, planned.question, fixed, LITTLE)
    assert again.best.prediction.step == searched.searched
    assert violations(again.plan, fixed) == []


def test_a_plan_is_changed_to_keep_constraints() -> None:
    fixed = constraints_of("--fix zero=1 --pin 'fc*=channel'")
    start = warm_start_under_constraints(PLAN, fixed)
    assert start is not None
    assert violations(start, fixed) == []
    assert start.options.zero == 1
    assert start.layout["act"] == PLAN.layout["act"]
    assert warm_start_under_constraints(PLAN, constraints_of("--pin 'fc1=nothing'")) is None


def test_what_cannot_be_searched_says_why(planned: PlanResult) -> None:
    none = Decision("stages", "1", "64", planned.best.prediction.step, "", fix="--fix stages=64")
    ((decision,),) = confirm_decisions(PLAN, planned.question, [none], LITTLE, step=1.0)
    assert decision.searched is None
    assert "64" in decision.found


def test_what_ifs_are_planned_anew(planned: PlanResult) -> None:
    changes = {what_if.change: what_if for what_if in replanned(PLAN, planned.question, LITTLE)}
    assert list(changes) == [
        "twice the batch", "twice as many nodes", "V100-SXM2-32GB instead",
        "twice the memory on each device",
    ]  # fmt: skip
    step = planned.best.prediction.step

    def best(change: str) -> PlanResult:
        planned = changes[change].planned
        assert planned is not None
        return planned

    assert best("twice the batch").question.graph.inputs[0].spec.shape[0] == 128
    assert best("twice as many nodes").plan.cluster.hierarchy == (4, 1)
    faster = best("V100-SXM2-32GB instead")
    assert faster.best.prediction.step < step
    assert faster.question.cluster.device.rates == PLAN.cluster.device.rates
    assert best("twice the memory on each device").question.memory == 2 * planned.question.memory


Starts = dict[str, Plan | None]


def starts(
    plan: Plan, memory: int, monkeypatch: pytest.MonkeyPatch, known: Plan | None = None
) -> Starts:
    """Where the search for each change begins."""
    question = question_of(plan, Bytes(memory))
    begun: list[Plan | None] = []

    def searched(other: PlanRequest, *_: object, start: Plan | None, **__: object) -> PlanResult:
        begun.append(start)
        return judged(PLAN, baselines=False)._replace(question=other)

    monkeypatch.setattr(replan, "best_plan", searched)
    what_ifs = list(
        replanned(plan, question, LITTLE, helps=helps(plan, Bytes(memory)), known=lambda _: known)
    )
    return dict(zip((what_if.change for what_if in what_ifs), begun, strict=True))


def test_searches_start_from_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLAN.changed(options=replace(PLAN.options, zero=3))
    held = simulate(plan).prediction.memory.total
    begun = starts(plan, held, monkeypatch)
    wide = begun["twice as many nodes"]
    assert wide is not None
    assert wide.cluster.hierarchy == (4, 1)
    assert wide.layout["fc1"] == Layout(("sample", "sample"))
    assert simulate(wide).prediction.memory.total < held
    roomy = begun["twice the memory on each device"]
    assert roomy is not None
    assert roomy.options.zero == 1
    assert roomy.cluster.device.memory == 2 * plan.cluster.device.memory


def test_a_larger_batch_starts_in_micro_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Cluster.named("dgx-h100", node=2, gpu=2)
    options = Options(micro_batches=2)
    larger = data_parallel(transformer(batch=128), small).changed(options=options)
    limit = simulate(larger).prediction.memory.total
    plan = data_parallel(transformer(batch=64), small)
    assert simulate(plan).prediction.memory.total < limit
    twice = starts(plan, limit, monkeypatch)["twice the batch"]
    assert twice is not None
    assert twice.options == options
    assert twice.graph == larger.graph


def test_where_nothing_fits_searches_start_from_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(PLAN, origin="known", options=replace(PLAN.options, zero=3))
    assert starts(PLAN, 1, monkeypatch, small)["twice the memory on each device"] is small
    smallest = starts(PLAN, 1, monkeypatch)["twice as many nodes"]
    assert smallest is not None
    assert smallest.cluster.hierarchy == (4, 1)


def test_where_nothing_is_faster_searches_start_from_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless that is slower still."""
    memory = PLAN.cluster.device.memory
    same = "twice the memory on each device"
    faster = replace(PLAN, origin="known", options=replace(PLAN.options, zero=1))
    assert starts(PLAN, memory, monkeypatch, faster)[same] is faster
    slower = replace(PLAN, origin="known", options=replace(PLAN.options, zero=3))
    assert starts(PLAN, memory, monkeypatch, slower)[same] not in (None, slower)


def test_what_has_no_samples_is_copied_on_more_nodes() -> None:
    cluster = PLAN.cluster.resized({"node": 4})
    odd = data_parallel(parse_graph(NO_SAMPLES), PLAN.cluster)
    copied = _spread(odd, cluster)
    assert copied is not None
    assert {layout.roles[0] for layout in copied.layout.values()} == {"replica"}


NO_SAMPLES = """graph two numbers
input x: float32[k=2]
operator act: y: float32[k=2] = relu(x)
output y"""


def test_a_question_has_one_answer(planned: PlanResult) -> None:
    explanation = explained(PLAN, seconds=1e6, budget=LITTLE)
    answered = {what_if.change for what_if in explanation.what_ifs if what_if.planned is not None}
    assert {"twice the batch", "twice the memory on each device"} <= answered
    assert not answered & {improvement.change for improvement in explanation.helps}
    assert explanation.helps


def test_a_device_that_is_not_of_the_ladder_has_no_next() -> None:
    assert faster_device(Cluster.named("laptop").device) is None
    assert faster_device(Cluster.named("dgx-b300").device) is None


def test_a_change_that_cannot_be_planned_says_why(planned: PlanResult) -> None:
    """Samples that are a batch's product are not those of another."""
    other_plan = replace(PLAN, model="elsewhere.py:build")
    with pytest.raises(InputError, match="decides the length of its samples itself"):
        _longer(other_plan, planned.question)
    with pytest.raises(InputError, match="does not say what its model was captured from"):
        _longer(PLAN, planned.question)


def test_a_refused_change_has_a_note(planned: PlanResult, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> PlanResult:
        raise InputError("there is none", "take another")

    monkeypatch.setattr(replan, "best_plan", refused)
    what_ifs = list(replanned(PLAN, planned.question, LITTLE))
    assert {what_if.note for what_if in what_ifs} == {"cannot be planned: there is none"}
    assert [what_if.planned for what_if in what_ifs] == [None] * 4
