"""Bytes that devices send: by hand, and what the simulator says they move.

That they are what ranks send is told by `tests/run/test_executor.py` for every plan that it runs.
"""

from __future__ import annotations

import msgspec
import pytest

from meshwright.base.quantities import Bytes
from meshwright.baselines import applicable
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import RINGS
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_by_kind, sent_bytes_of
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan, PlannedReduction
from meshwright.sharding.layout import Layout
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate
from support.executed import tiny
from support.machines import machine
from support.plan_features import features


def two_layers() -> OperatorGraph:
    return parse_graph("""graph two
input x: float32[n=8, i=4]
parameter v: float32[h=6, i=4]
parameter w: float32[o=2, h=6]
operator a: a: float32[n=8, h=6] = linear(x, v)
operator b: b: float32[n=8, o=2] = linear(a, w)
operator s: loss: float32[] = mean(b)
output loss
loss loss""")


def sent(layouts: str, options: Options | None = None) -> list[dict[str, int]]:
    """What each of two devices sends, by kind."""
    parsed = [Layout.parse(text) for text in layouts.split(",")]
    script = Script(Plan.of("by hand", two_layers(), machine(2), parsed, options))
    return [{str(kind): n for kind, n in sent_bytes_by_kind(script, d).items()} for d in (0, 1)]


def test_data_parallel_sums_its_gradients_once() -> None:
    # 36 parameters of 4 bytes, each sent once to scatter the sums and once to gather them.
    assert sent("sample,sample,sample") == [{"Settle": 144}, {"Settle": 144}]


def test_shards_are_scattered_and_gathered() -> None:
    # Of each row of gradients, and then of parameters, half goes to the other device.
    assert sent("sample,sample,sample", Options(zero=1)) == [{"Settle": 72, "Gather": 72}] * 2


def test_shards_of_neighbours_are_summed_between_their_copies() -> None:
    """HSDP on two nodes of two devices: half a row is scattered and gathered inside, and the shard
    of a quarter each way summed across.
    """
    layouts = [Layout.parse("sample sample")] * 3
    for zero, gathers in ((1, 1), (3, 1)):
        options = Options(zero=zero, shard_within=2)
        script = Script(Plan.of("by hand", two_layers(), machine(2, 2), layouts, options))
        sent_bytes = [dict(sent_bytes_by_kind(script, device)) for device in range(4)]
        assert sent_bytes == [{"Settle": 72 + 72, "Gather": 72 * gathers}] * 4


def test_wholly_sharded_parameters_that_are_used_again_at_once_are_gathered_once() -> None:
    assert sent("sample,sample,sample", Options(zero=3)) == [{"Gather": 72, "Settle": 72}] * 2


def test_wholly_sharded_parameters_are_gathered_for_either_pass() -> None:
    """Of eight layers, each a segment, the last three are used again before they could travel."""
    layers, side = 8, 256
    lines = ["graph deep", f"input h0: float32[n=8, i={side}]"]
    lines += [f"parameter w{i}: float32[o={side}, i={side}]" for i in range(layers)]
    lines += [
        f"operator l{i}: h{i + 1}: float32[n=8, o={side}] = linear(h{i}, w{i})"
        for i in range(layers)
    ]
    lines += [f"operator s: loss: float32[] = mean(h{layers})", "output loss", "loss loss"]
    whole = [Layout.parse("sample")] * (layers + 1)
    graph = parse_graph("\n".join(lines))
    script = Script(Plan.of("by hand", graph, machine(2), whole, Options(zero=3)))
    assert sent_bytes_by_kind(script, 0)["Gather"] == (2 * layers - 3) * side * side * 4 // 2


def test_a_pipeline_sends_what_stands_between_its_stages() -> None:
    # 8 x 6 numbers of 4 bytes there and back, whatever the number of micro-batches.
    for micro in (1, 2, 4):
        options = Options(micro_batches=micro)
        assert sent("@0,@1,@1", options) == [{"Carry": 192}, {"Bring": 192}]


def test_a_column_and_a_row_sum_once() -> None:
    # b is a pending sum of 8 x 2 numbers, of which each half goes to one sample's device; its
    # gradient is gathered from there.
    assert sent("channel,inner,sample") == [{"Carry": 32, "Bring": 32}] * 2


def test_programs_are_followed() -> None:
    layouts = [Layout.parse("sample")] * 3
    plan = Plan.of("by hand", two_layers(), machine(2), layouts, Options(bucket=Bytes(1 << 20)))
    chain = PlannedReduction(
        over=(0,),
        beside=(),
        bytes=144.0,
        program="root.InsideGroup.Reduce; root.InsideGroup.Broadcast",
    )
    script = Script(msgspec.structs.replace(plan, programs=(chain,)))
    assert [sent_bytes_of(script, device) for device in (0, 1)] == [144, 144]


@pytest.mark.parametrize("model", ["mlp", "gpt2-xl", "lenet", "dlrm", "resnet-50"])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 2, 2)])
def test_the_simulator_moves_as_much(model: str, sizes: tuple[int, ...]) -> None:
    cluster = machine(*sizes)
    prices = CollectivePrices(Pricer(cluster, RINGS), programs=False)
    compared = 0
    for name, plan in applicable(tiny(model, 16, "float32").graph, cluster).items():
        script = Script(plan)
        # The simulator prices unequal shards as equal ones, estimates halos, and has a wholly
        # sharded parameter gathered once a pass, however many segments read it.
        unlike = {"uneven last shard", "halo", "recomputation", "ZeRO 3"} & features(script)
        if unlike:
            continue
        sent_bytes = sum(sent_bytes_of(script, device) for device in range(cluster.devices))
        assert sent_bytes == simulate(plan, prices).prediction.moved, name
        compared += 1
    assert compared >= 4
