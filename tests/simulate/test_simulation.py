"""Plans simulated: one device for many alike, bytes of data parallelism, one device by itself."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines import BASELINES
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Rates
from meshwright.cost.operator import OperatorPricer
from meshwright.explain.step_parts import step_parts
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout, factors
from meshwright.sharding.units import units
from meshwright.simulate import full
from meshwright.simulate.memory.memory_timeline import fullest
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, recommendation, recurrent, transformer
from support.training_graphs import random_graph, tiny

CLUSTERS = (
    Cluster.named("flexflow-p100", node=2, gpu=2),
    Cluster.named("flexflow-k80", node=2, gpu=2),
    Cluster.named("summit", node=2),
    Cluster.named("dgx-h100", node=2, gpu=4),
    Cluster.named("gcp-v100", node=2, gpu=4),
)
GRAPHS = (convolutional(), transformer(), recurrent(), recommendation(20, 90, 40))


def everywhere(random: Random, graph: OperatorGraph, cluster: Cluster, options: Options) -> Plan:
    """Random layouts that use every device."""
    layouts = []
    mesh = factors(cluster)
    for unit in units(graph):
        roles: list[str] = []
        for factor in mesh:
            number = random.randrange(-1, len(unit.splits))
            name = REPLICA if number < 0 else unit.splits[number].name
            degree = factor.size * Layout(tuple(roles)).degrees(mesh[: len(roles)]).get(name, 1)
            micro = 1 if number < 0 else unit.micro_ways(number, options.micro_batches)
            fits = number < 0 or unit.cuttable(number, degree * micro)
            roles.append(name if fits else REPLICA)
        layouts.append(Layout(tuple(roles)))
    return Plan.of("random", graph, cluster, layouts, options)


def check_representatives(plan: Plan) -> None:
    """One device that stands for all, against all of them."""
    alone = simulate(plan)
    assert alone.problem.apart == (False,) * len(plan.factors)
    problem = StepModel(plan.graph, plan.cluster, plan.options, apart=[True] * len(plan.factors))
    roles = problem.codes([plan.layout[unit.name] for unit in plan.units])
    problem.lay(roles)
    timeline = full.simulate(problem.tasks)
    assert np.array_equal(timeline.end, alone.timeline.end)
    memory = fullest(problem, roles, timeline)
    assert msgspec.structs.replace(memory, device="device 0") == alone.prediction.memory
    assert round(problem.moved) == alone.prediction.moved


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_one_device_stands_for_all(cluster: Cluster, graph: OperatorGraph) -> None:
    random = Random(cluster.name)
    check_representatives(BASELINES["data parallel"](graph, cluster))
    for zero in range(4):
        check_representatives(everywhere(random, graph, cluster, Options(zero=zero)))


@given(st.randoms(use_true_random=False))
def test_one_device_stands_for_all_in_random_graphs(random: Random) -> None:
    graph, cluster = random_graph(random), random.choice(CLUSTERS[:3])
    check_representatives(everywhere(random, graph, cluster, Options(recompute=True)))


@pytest.mark.parametrize("zero", range(3))
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.name)
def test_data_parallelism_moves_gradients_once(cluster: Cluster, zero: int) -> None:
    """Each of n devices gets all sums: 2 (n - 1) times the parameters leave devices in all."""
    graph = transformer(batch=24)
    layouts = [Layout(("sample",) * len(factors(cluster)))] * len(units(graph))
    plan = Plan.of("data parallel", graph, cluster, layouts, Options(zero=zero))
    parameters = sum(p.tensor.spec.bytes for p in graph.parameters)
    moved = simulate(plan).prediction.moved
    assert moved == pytest.approx(2 * (cluster.devices - 1) * parameters, rel=1e-9)


def test_sharded_parameters_are_fetched_twice() -> None:
    """ZeRO-3: gathered for the forward and for the backward pass, and gradients scattered."""
    graph, cluster = transformer(batch=24), CLUSTERS[0]
    layouts = [Layout(("sample",) * 2)] * len(units(graph))
    plan = Plan.of("zero", graph, cluster, layouts, Options(zero=3))
    parameters = sum(p.tensor.spec.bytes for p in graph.parameters)
    moved = simulate(plan).prediction.moved
    assert moved == pytest.approx(3 * (cluster.devices - 1) * parameters, rel=1e-9)


@pytest.mark.parametrize("name", ["alexnet", "bert-large", "nmt", "mixtral-8x7b", "dlrm"])
def test_one_device_runs_one_after_the_other(name: str) -> None:
    graph, cluster = tiny(name), Cluster.named("dgx-a100", node=1, gpu=1)
    plan = Plan.of("one", graph, cluster, [Layout(())] * len(units(graph)), Options())
    simulation, pricer = simulate(plan), OperatorPricer(cluster.device)
    tasks, template = simulation.problem.tasks, simulation.problem.template
    prices = [pricer.price(m.call, m.wanted) for unit in units(graph) for m in unit.members]
    computing = sum(price.forward.seconds + price.backward.seconds for price in prices)
    trained = sum(p.tensor.spec.bytes for p in graph.parameters if p.trainable)
    moving = 19 * trained / (cluster.device.memory_bandwidth * pricer.rates.streaming)
    passes = sum(
        int(tasks.duration[t][tasks.live[t]].sum()) for t in (template.forward, template.backward)
    )
    updates = template.update[template.update >= 0]
    updating = int(tasks.duration[updates][tasks.live[updates]].sum())
    # Every task is rounded to whole nanoseconds, of which it takes one at least.
    rounding = int(tasks.live.sum())
    assert passes == pytest.approx(computing * 1e9, abs=rounding)
    launches = int(tasks.live[updates].sum()) * pricer.rates.launch
    assert updating == pytest.approx((moving + launches) * 1e9, abs=rounding)
    assert simulation.timeline.makespan == passes + updating
    assert simulation.prediction.compute == simulation.prediction.step
    assert simulation.prediction.moved == 0


def hosted(dispatch: float, **sizes: int) -> Cluster:
    """Machines whose hosts need so many seconds for an operator."""
    cluster = Cluster.named("dgx-h100", **sizes)
    rates = Rates(dispatch=Seconds(dispatch))
    return replace(cluster, device=replace(cluster.device, rates=rates))


def test_a_step_takes_no_less_than_its_launches() -> None:
    """Degrees cut kernels, not launches; a host that is faster than its device costs nothing."""
    graph, launched = transformer(batch=24), Seconds(1e-3)
    calls = [member for unit in units(graph) for member in unit.members]
    parts = [len(family_of(m.call).stages(m.call, m.wanted)) or 1 for m in calls]
    both = [n * (3 if any(m.wanted) else 1) for n, m in zip(parts, calls, strict=True)]
    for devices in (1, 4):
        slow = simulate(data_parallel(graph, hosted(launched, node=1, gpu=devices)))
        last = slow.prediction.step - launched * sum(both)
        assert 0 <= last < launched
        assert step_parts(slow).host == pytest.approx(slow.prediction.step, rel=0.01)
        fast, none = (
            simulate(data_parallel(graph, hosted(it, node=1, gpu=devices))) for it in (1e-9, 0.0)
        )
        assert fast.prediction == none.prediction
        assert not len(none.problem.template.launch)


def test_in_a_pipeline_hosts_wait_for_what_they_receive() -> None:
    """Two stages, two micro-batches, hosts that set the pace: a launch is a slot of 1F1B."""
    graph, stages = transformer(layers=2, batch=24), 2
    config = ParallelConfig(data=1, pipeline=stages, micro_batches=2)
    step, alone = (
        simulate(configured(graph, hosted(1e-3, node=1, gpu=gpus), replace(config, pipeline=gpus)))
        .prediction.step
        for gpus in (stages, 1)
    )  # fmt: skip
    # Equal stages would take 3 of the 2 x 2 slots' time; embedding and loss make them unequal.
    assert 3 / 4 <= step / alone < 1


def test_a_plan_that_does_not_fit_says_by_how_much() -> None:
    graph, cluster = transformer(), CLUSTERS[0]
    plan = BASELINES["data parallel"](graph, cluster)
    whole = simulate(plan).prediction
    assert whole.missing == 0
    small = Bytes(whole.memory.total - 1000)
    narrow = msgspec.structs.replace(
        cluster, device=msgspec.structs.replace(cluster.device, memory=small)
    )
    prediction = simulate(msgspec.structs.replace(plan, cluster=narrow)).prediction
    assert prediction.missing == 1000
    assert prediction.memory == whole.memory


def test_a_symmetric_plan_on_16384_devices_has_one_device_and_one_of_each_link() -> None:
    cluster = Cluster.named("dgx-h100", node=2048)
    graph = load_model("zoo:lenet", cluster.devices).graph
    simulation = simulate(BASELINES["data parallel"](graph, cluster))
    assert simulation.problem.places.names == (
        "device 0",
        "nic of gpu 0",
        "nvswitch of gpu 0",
    )
    assert simulation.prediction.moved == 2 * (cluster.devices - 1) * 4 * graph.parameter_count
