"""The joint search as a whole: what it promises of plans, memory, constraints and interrupts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import LIBRARY
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.file import load_plan, save_plan
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint import phases
from meshwright.search.joint.cluster_sizes import best_of_devices
from meshwright.search.joint.metropolis_runs import walked
from meshwright.search.joint.moves.unify_layers import UNTIDY
from meshwright.search.joint.phases import SearchStatus
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.constraints import Constraints, parse_constraints
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.joint.request.violations import violations
from meshwright.search.joint.warm_starts import WarmStart
from meshwright.sharding.reshard import Codes
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import transformer
from support.machines import machine

FEW = Budget(proposals=30)
TWO = Cluster.named("laptop", process=2)
FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)


def perceptron(batch: int = 64, inner: int = 512) -> OperatorGraph:
    """Unity's worked example: 784-512-10 without biases, and a loss."""
    return parse_graph(
        f"""graph perceptron
        input x: float32[n={batch}, i=784]
        input t: int64[n={batch}]
        parameter a: float32[o={inner}, i=784]
        parameter b: float32[o=10, i={inner}]
        operator l1: p: float32[n={batch}, d={inner}] = linear(x, a)
        operator r: q: float32[n={batch}, d={inner}] = relu(p)
        operator l2: y: float32[n={batch}, d=10] = linear(q, b)
        operator loss: l: float32[] = cross_entropy_loss(y, t)
        output l
        loss l"""
    )


def asked(
    graph: OperatorGraph,
    cluster: Cluster = TWO,
    memory: int | None = None,
    constraints: Constraints | None = None,
) -> PlanRequest:
    limit = cluster.device.memory if memory is None else Bytes(memory)
    return PlanRequest(
        graph=graph, cluster=cluster, memory=limit, constraints=constraints or Constraints()
    )


@cache
def planned(question: PlanRequest, seed: int = 0) -> PlanResult:
    return best_plan(question, FEW, seed=seed)


SMALL = (perceptron(), transformer(layers=2, batch=4))
QUESTIONS = [asked(graph, cluster) for graph in SMALL for cluster in (TWO, FOUR)]


def test_on_one_device_graphs_are_rewritten_too() -> None:
    """All of its plans have the layouts of every baseline; only their graphs differ."""
    outcome = planned(asked(transformer(layers=2, batch=4), Cluster.named("laptop", process=1)))
    assert outcome.graphs > 1
    assert outcome.rewrites
    fastest = min(baseline.prediction.step for _, baseline in outcome.baselines)
    assert outcome.best.prediction.step < fastest


class TestUnity:
    """Batch 64, 784-512-10, two devices; Unity counts 4·64·512 = 131,072 elements for its plan.

    That is the sum of a product that both devices have a part of (2·64·512 elements leave a
    device), and as many for gradients. Here everybody computes the gradient alike, so that nothing
    comes back; and what both devices compute alike is not counted at all.
    """

    DGX = Cluster.named("dgx-a100", node=1, gpu=2)

    def test_data_parallelism_sums_all_weights(self) -> None:
        outcome = planned(asked(perceptron(), self.DGX))
        named = dict(outcome.baselines)
        assert named["data parallel"].prediction.moved == 4 * 813_056

    def test_the_joint_plan_moves_a_quarter_of_what_unitys_does(self) -> None:
        """It cuts the first product by columns, fused, and gathers them: 64·512 elements."""
        outcome = planned(asked(perceptron(), self.DGX))
        assert outcome.best.prediction.moved == 4 * 131_072 // 4
        assert outcome.rewrites == ("linear-relu-fuse at q: x = x, w = a",)
        assert outcome.best.plan.layouts == (
            ("q", "channel"),
            ("l2", "replica"),
            ("loss", "replica"),
        )
        assert (
            outcome.best.prediction.step < dict(outcome.baselines)["data parallel"].prediction.step
        )

    def test_unitys_own_plan_moves_half_of_that_and_is_slower(self) -> None:
        """Not fused, and the first product cut along what is summed."""
        question = asked(perceptron(), self.DGX, constraints=parse_constraints(["l1=inner"]))
        outcome = planned(question)
        assert outcome.best.plan.layout["l1"].roles == ("inner",)
        assert outcome.best.prediction.moved == 4 * 131_072 // 2
        free = planned(asked(perceptron(), self.DGX))
        assert free.best.prediction.step < outcome.best.prediction.step


@pytest.mark.parametrize("question", QUESTIONS[:3])
def test_the_same_seed_gives_the_same_plan_on_any_number_of_cores(
    question: PlanRequest, tmp_path: Path
) -> None:
    texts = []
    for cores in (1, 2):
        outcome = best_plan(question, FEW, seed=3, cores=cores)
        path = tmp_path / f"{cores}.json"
        save_plan(outcome.best.plan, path)
        texts.append(path.read_bytes())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_plan_is_no_worse_than_any_baseline_that_fits(question: PlanRequest) -> None:
    outcome = planned(question)
    fitting = [baseline for _, baseline in outcome.baselines if baseline.fits(question.memory)]
    assert fitting
    assert outcome.best.fits(question.memory)
    assert all(outcome.best.prediction.step <= baseline.prediction.step for baseline in fitting)
    assert outcome.bound <= outcome.best.prediction.step
    assert outcome.history[-1][1] <= outcome.best.prediction.step
    assert outcome.best.prediction.step <= (1 + UNTIDY) * outcome.history[-1][1]
    assert outcome.front[0].prediction.step <= outcome.best.prediction.step


def test_a_small_graph_is_walked_from_its_baselines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[WarmStart] = []

    def listening(starts: list[WarmStart], *others: Any) -> Iterator[tuple[WarmStart, Codes]]:
        heard.extend(starts)
        return walked(starts, *others)

    monkeypatch.setattr(phases, "walked", listening)
    best_plan(asked(SMALL[1], FOUR), FEW)
    near, afresh = ([start for start in heard if start.afresh == wide] for wide in (False, True))
    assert near
    assert {"data parallel", "model parallel"} <= {name for start in afresh for name in start.roles}


def test_what_a_search_starts_from_is_never_faster() -> None:
    question = asked(SMALL[1], FOUR)
    start = planned(question).best
    again = best_plan(question, FEW, seed=1, start=start.plan)
    assert again.best.prediction.step <= start.prediction.step


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_plan_is_read_back_and_means_the_same(question: PlanRequest, tmp_path: Path) -> None:
    best = planned(question).best
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    save_plan(best.plan, first)
    again = load_plan(first)
    save_plan(again, second)
    assert first.read_bytes() == second.read_bytes()
    assert again == best.plan
    assert simulate(again).prediction == best.prediction


MLP = parse_graph(
    """graph mlp
    input x: float32[n=12, i=16]
    parameter a: float32[o=24, i=16]
    parameter b: float32[o=12, i=24]
    operator l1: p: float32[n=12, d=24] = linear(x, a)
    operator r: q: float32[n=12, d=24] = relu(p)
    operator l2: y: float32[n=12, d=12] = linear(q, b)
    operator s: z: float32[n=12, d=12] = softmax(y) {dim=1}
    output z"""
)
ROLES = st.sampled_from(("sample", "channel", "replica", "inner"))


@st.composite
def constrained(draw: st.DrawFn) -> Constraints:
    """Some of what can be asked for; not all of it can be kept."""
    pins, forbids, fixes = [], [], []
    if draw(st.booleans()):
        pins.append(f"{draw(st.sampled_from(('l1', 'l2', 'l*')))}={draw(ROLES)} {draw(ROLES)}")
    if draw(st.booleans()):
        forbids.append(f"{draw(ROLES)}@{draw(st.sampled_from(('node', 'gpu')))}")
    if draw(st.booleans()):
        fixes.append(f"sample={draw(st.sampled_from((1, 2, 4)))}")
    if draw(st.booleans()):
        fixes.append(f"zero={draw(st.integers(0, 3))}")
    if draw(st.booleans()):
        fixes.append(f"micro-batches={draw(st.sampled_from((1, 2, 3)))}")
    if draw(st.booleans()):
        fixes.append(f"stages={draw(st.sampled_from((1, 2)))}")
    if draw(st.booleans()):
        fixes.append(f"recompute={draw(st.sampled_from(('yes', 'no')))}")
    return parse_constraints(pins, forbids, fixes, draw(st.sampled_from(((), ("*fuse*",)))))


@given(constrained())
@settings(max_examples=10)
def test_constraints_are_kept_or_refused_in_a_sentence(constraints: Constraints) -> None:
    try:
        outcome = best_plan(asked(MLP, FOUR, constraints=constraints), Budget(proposals=5))
    except InputError:
        return  # What the sentences say is told by `test_constraints`.
    plan = outcome.best.plan
    assert violations(plan, constraints) == []
    pinned = [name for pattern, _ in constraints.pinned for name in ("l1", "l2") if
              pattern in (name, "l*")]  # fmt: skip
    assert set(pinned) <= {operator.name for operator in plan.graph.operators}
    if constraints.rules:
        assert not any("fuse" in step for step in outcome.rewrites)


def test_contradictions_name_the_pair() -> None:
    question = asked(
        MLP, FOUR, constraints=parse_constraints(["l1=sample sample"], ["sample@node"])
    )
    with pytest.raises(InputError, match="'l1=sample sample' and 'sample@node' contradict"):
        best_plan(question, FEW)


class TestMemory:
    """Less and less of it: what a plan may hold besides the libraries shrinks by a quarter."""

    GRAPH = transformer(layers=2, batch=8, heads=4)

    def ladder(self) -> list[PlanResult]:
        """From what the fastest plan of all holds to what is too little for any."""
        outcomes = [planned(asked(self.GRAPH, FOUR))]
        rest = outcomes[0].best.prediction.memory.total - LIBRARY
        while outcomes[-1].best.fits(outcomes[-1].question.memory):
            rest = rest * 3 // 4
            outcomes.append(planned(asked(self.GRAPH, FOUR, LIBRARY + rest)))
        return outcomes

    def test_the_search_turns_to_what_saves_until_nothing_fits(self) -> None:
        *fitting, _ = self.ladder()
        assert len(fitting) >= 3
        first, tight = fitting[0].best, fitting[-1].best
        assert first.prediction.step <= tight.prediction.step
        # No baseline fits any more; the plan that does saves in two ways at least.
        assert not any(
            baseline.fits(fitting[-1].question.memory) for _, baseline in fitting[-1].baselines
        )
        options = tight.plan.options
        staged = any("@" in text for _, text in tight.plan.layouts)
        used = [options.zero > 0, options.recompute, options.micro_batches > 1, staged]
        assert sum(used) >= 2

    def test_what_does_not_fit_is_the_smallest_of_all(self) -> None:
        *_, last = self.ladder()
        held = last.best.prediction.memory.total
        assert held > last.question.memory
        assert all(held <= baseline.prediction.memory.total for _, baseline in last.baselines)
        assert all(held <= candidate.prediction.memory.total for candidate in last.front)
        # Parameters, gradients, Adam's two numbers and the one on the way, over four devices.
        weights = sum(parameter.tensor.spec.bytes for parameter in self.GRAPH.parameters)
        assert last.question.memory < LIBRARY + 5 * weights / 4 <= held

    def test_less_memory_is_what_minimizing_memory_finds(self) -> None:
        question = msgspec.structs.replace(asked(self.GRAPH, FOUR), minimize="memory")
        outcome = planned(question)
        free = planned(asked(self.GRAPH, FOUR))
        assert outcome.best.prediction.memory.total <= min(
            candidate.prediction.memory.total for candidate in (*outcome.front, *free.front)
        )


class TestOdd:
    @pytest.mark.parametrize("devices", [1, 3, 5, 7])
    def test_any_number_of_devices(self, devices: int) -> None:
        cluster = Cluster.named("flexflow-p100", node=1, gpu=devices)
        question = asked(MLP, cluster)
        outcome = planned(question)
        assert outcome.best.fits(question.memory)
        roles = [layout.roles for layout in outcome.best.plan.layout.values()]
        assert {len(row) for row in roles} == {0 if devices == 1 else 1}

    def test_a_batch_that_cannot_be_split(self) -> None:
        graph = perceptron(batch=1, inner=64)
        outcome = planned(asked(graph, FOUR))
        assert outcome.best.plan.options.micro_batches == 1
        assert not any("sample" in layout.roles for layout in outcome.best.plan.layout.values())

    def test_a_dim_of_one_element(self) -> None:
        """LeNet reads pictures of one channel, which cannot be cut and has no role anywhere."""
        graph = load_model("zoo:lenet/tiny", 16).graph
        assert 1 in graph.inputs[0].shape
        question = asked(graph, machine(2))
        assert planned(question).best.fits(question.memory)

    def test_an_empty_graph_is_refused(self) -> None:
        empty = parse_graph("graph empty\ninput x: float32[n=4]\noutput x")
        with pytest.raises(InputError, match=r"'empty' has no operators, .*; give a model"):
            best_plan(asked(empty), FEW)

    def test_no_memory_is_refused(self) -> None:
        with pytest.raises(InputError, match="the memory limit is 0 bytes; give more"):
            best_plan(asked(MLP, memory=0), FEW)


class TestDevices:
    def test_fewer_devices_may_take_fewer_device_hours(self) -> None:
        cluster = Cluster.named("flexflow-p100", node=4, gpu=2)
        question = asked(MLP, cluster)
        outcomes = best_of_devices(question, 8, FEW)
        hours = [
            outcome.best.prediction.step * outcome.question.cluster.devices for outcome in outcomes
        ]
        assert hours == sorted(hours)
        assert sorted(outcome.question.cluster.devices for outcome in outcomes) == [2, 4, 8]

    def test_no_more_devices_than_asked_for(self) -> None:
        cluster = Cluster.named("flexflow-p100", node=4, gpu=2)
        outcomes = best_of_devices(asked(MLP, cluster), 5, FEW)
        assert {outcome.question.cluster.devices for outcome in outcomes} == {2, 4}

    def test_fewer_than_there_are_is_refused(self) -> None:
        cluster = Cluster.named("flexflow-p100", node=4, gpu=2)
        with pytest.raises(InputError, match="1 devices are fewer than the 2 of one node"):
            best_of_devices(asked(MLP, cluster), 1, FEW)


class TestEnds:
    @pytest.mark.parametrize("after", [1, 2, 3, 5, 8, 11])
    def test_an_interrupt_leaves_the_best_so_far(self, after: int) -> None:
        statuses: list[SearchStatus] = []

        def progress(now: SearchStatus) -> None:
            statuses.append(now)
            if len(statuses) == after:
                raise KeyboardInterrupt

        question = asked(MLP, FOUR)
        if after == 1:
            with pytest.raises(KeyboardInterrupt):
                best_plan(question, FEW, progress=progress)
            return
        outcome = best_plan(question, FEW, progress=progress)
        assert len(statuses) == after
        assert outcome.stopped == "interrupted"
        known = [now.step for now in statuses if now.step is not None]
        assert outcome.best.prediction.step <= min(known, default=float("inf"))

    def test_a_budget_of_next_to_nothing_has_baselines(self) -> None:
        outcome = best_plan(asked(MLP, FOUR), Budget(seconds=Seconds(1e-6)))
        assert outcome.stopped == "budget"
        assert outcome.best.prediction.step == min(
            baseline.prediction.step for _, baseline in outcome.baselines
        )

    def test_time_enough_is_said_to_be(self) -> None:
        assert planned(asked(MLP, TWO)).stopped == "complete"

    def test_a_plan_to_start_from_is_never_lost(self) -> None:
        best = planned(asked(SMALL[0], TWO)).best
        outcome = best_plan(asked(SMALL[0], TWO), Budget(seconds=Seconds(1e-6)), start=best.plan)
        assert outcome.best.prediction.step <= best.prediction.step

    def test_the_way_to_train_is_the_users(self) -> None:
        training = Options(optimizer="sgd")
        outcome = planned(msgspec.structs.replace(asked(MLP), training=training))
        assert outcome.best.plan.options.optimizer == "sgd"
        assert {baseline.plan.options.optimizer for _, baseline in outcome.baselines} == {"sgd"}
