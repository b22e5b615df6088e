"""What would help: every change is the plan simulated on what has changed."""

from __future__ import annotations

from msgspec.structs import replace

from meshwright.base.quantities import Bytes, BytesPerSecond
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.explain.what_if import Improvement, helps
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate.simulation import simulate
from support.baseline_graphs import convolutional, transformer

SMALL = Cluster.named("dgx-h100", node=2, gpu=2)
ROOM = SMALL.device.memory
NODES = "links between nodes twice as fast (two network cards)"
MEMORY, BATCH = "twice the memory on each device", "twice the batch"
FEWER = "half as many micro-batches"


def told(plan: Plan, memory: Bytes = ROOM) -> dict[str, Improvement]:
    return {improvement.change: improvement for improvement in helps(plan, memory)}


def saving(graph: OperatorGraph, options: Options) -> Plan:
    plan = data_parallel(graph, SMALL)
    return Plan.of("by hand", graph, SMALL, list(plan.layout.values()), options)


def test_the_largest_gain_comes_first_and_what_cannot_be_last() -> None:
    improvements = helps(data_parallel(transformer(), SMALL), ROOM)
    assert {improvement.change for improvement in improvements} == {
        NODES, "links between gpus twice as fast", "devices twice as fast", MEMORY, BATCH, FEWER,
    }  # fmt: skip
    possible = [improvement.gain for improvement in improvements if improvement.step is not None]
    assert possible == sorted(possible, reverse=True)
    assert [improvement.change for improvement in improvements[len(possible) :]] == [MEMORY, FEWER]
    assert all(
        improvement.note.startswith("cannot be applied: ")
        for improvement in improvements[len(possible) :]
    )


def test_faster_links_are_a_machine_with_faster_links() -> None:
    plan = data_parallel(transformer(), SMALL)
    nodes = SMALL.levels[0]
    links = tuple(
        replace(link, out=BytesPerSecond(2 * link.out), into=BytesPerSecond(2 * link.into))
        for link in nodes.links
    )
    cluster = replace(SMALL, levels=(replace(nodes, links=links), SMALL.levels[1]))
    step = simulate(replace(plan, cluster=cluster)).prediction.step
    improvement = told(plan)[NODES]
    assert improvement.step == step
    assert improvement.gain == simulate(plan).prediction.step / step - 1


def test_a_larger_batch_is_counted_by_the_sample() -> None:
    plan, larger = (data_parallel(transformer(batch=batch), SMALL) for batch in (4, 8))
    improvement = told(plan)[BATCH]
    assert (improvement.step, improvement.samples) == (simulate(larger).prediction.step, 2)
    assert improvement.step is not None
    assert improvement.gain == simulate(plan).prediction.step * 2 / improvement.step - 1


def test_a_batch_that_is_fixed_says_why() -> None:
    graph = parse_graph("""graph fixed
input x: float32[n=8, i=8]
buffer m: float32[n=8, o=8]
parameter w: float32[o=8, i=8]
operator y: y: float32[n=8, o=8] = linear(x, w)
operator z: z: float32[n=8, o=8] = mul(y, m)
output z""")
    improvement = told(data_parallel(graph, SMALL))[BATCH]
    assert improvement.step is None
    assert "'z'" in improvement.note


def test_half_of_an_odd_number_of_micro_batches_says_why() -> None:
    odd = told(saving(transformer(batch=36 * 5), Options(micro_batches=45)))[FEWER]
    assert odd.step is None
    assert "make no 22 equal micro-batches" in odd.note


def test_more_memory_undoes_what_saves_memory() -> None:
    plan = saving(transformer(batch=64), Options(zero=3, recompute=True))
    held = simulate(plan).prediction.memory.total
    plain = simulate(replace(plan, options=Options())).prediction
    assert held < plain.memory.total <= 2 * held
    improvement = told(plan, Bytes(held))[MEMORY]
    assert improvement.step is not None
    assert improvement.step <= plain.step
    assert improvement.note.startswith("with ")
    assert "NOT fit" not in improvement.note


def test_memory_that_nothing_needs_does_not_help() -> None:
    improvement = told(saving(transformer(), Options(zero=1)))[MEMORY]
    assert improvement.step is None
    assert "nothing needs and fits into it" in improvement.note


def test_more_memory_never_makes_a_step_longer() -> None:
    """Without ZeRO 1 the plan holds more, and every device updates all parameters."""
    graph = parse_graph("""graph wide
input x: float32[n=64, k=4096]
parameter v: float32[h=16384, k=4096]
operator fc: y: float32[n=64, h=16384] = linear(x, v)
output y""")
    plan = saving(graph, Options(zero=1))
    before = simulate(plan).prediction
    without = simulate(replace(plan, options=Options())).prediction
    assert without.step > before.step
    assert without.memory.total > before.memory.total
    improvement = told(plan, before.memory.total)[MEMORY]
    assert (improvement.step, improvement.gain) == (before.step, 0.0)
    assert improvement.note == "as it is: nothing that needs it is faster"


def test_fewer_micro_batches() -> None:
    plan = saving(transformer(batch=16), Options(micro_batches=4))
    improvement = told(plan)[FEWER]
    half = replace(plan, options=Options(micro_batches=2))
    assert improvement.step == simulate(half).prediction.step
    assert improvement.note == "2 instead of 4"


def test_what_does_not_fit_says_so() -> None:
    plan = data_parallel(transformer(), SMALL)
    assert all(
        "does NOT fit, by " in improvement.note
        for improvement in helps(plan, Bytes(1))
        if improvement.step
    )


def test_when_it_is_late_nothing_more_is_tried() -> None:
    asked = iter([False, True])
    assert len(helps(data_parallel(transformer(), SMALL), ROOM, lambda: next(asked))) == 1


def test_a_pipeline_may_be_halved() -> None:
    graph = transformer(4, batch=8)
    rows = [Layout.parse(f"@{int(unit.name[0] in '23')} sample") for unit in units(graph)]
    plan = Plan.of("by hand", graph, SMALL, rows, Options(micro_batches=4))
    improvements = told(plan)
    assert improvements[FEWER].step is not None
    assert improvements[BATCH].note in ("in 4 micro-batches", "in 8 micro-batches")


def test_measured_devices_do_not_get_faster_by_a_datasheet() -> None:
    cluster = Cluster.named("epyc")
    improvements = helps(data_parallel(convolutional(), cluster), cluster.device.memory)
    faster = next(
        improvement for improvement in improvements if improvement.change == "devices twice as fast"
    )
    assert faster.note == "cannot be applied: what operators take on AMD EPYC core is measured"
