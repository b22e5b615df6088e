"""Plans on real ranks: the numbers of one device, and the bytes that were predicted.

The whole set of random plans is `benchmarks/random_plans.py`; here is a sample of it.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from msgspec.structs import replace

from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.data import data_parallel
from meshwright.capture.zoo import ENTRIES
from meshwright.graph.operator_graph import Operator
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support.drawn_plans import Drawn, drawn_plans, one_device, rewritten
from support.executed import Trained, Training, by_library, errors, tiny, trained_each, whole
from support.found_plans import found_plans
from support.machines import machine
from support.proved import TOLERANCE, verdicts

pytestmark = pytest.mark.ranks

SMALL = ("lenet", "alexnet", "rnnlm", "nmt", "mlp", "dlrm", "gpt2-xl", "resnet-50", "mixtral-8x7b")


def is_random(operator: Operator) -> bool:
    values = dict(operator.attributes)
    if operator.kind == "dropout":
        return bool(values.get("train", True))
    return bool(values.get("dropout_p", 0.0))


def sure_models() -> list[str]:
    """Those in which nothing is random."""
    names = [entry.name for entry in ENTRIES]
    return [name for name in names if not any(map(is_random, tiny(name, 8).graph.operators))]


def on_one_device(model: str, rewrites: int | None = None) -> Plan:
    graph = (
        tiny(model, 8).graph if rewrites is None else rewritten(model, 8, "float64", rewrites)[0]
    )
    return Plan.of("one device", graph, machine(1), [Layout(()) for _ in units(graph)])


def test_one_device_computes_what_the_library_does() -> None:
    models = sure_models()
    assert len(models) > 10
    plans = [on_one_device(model, seed) for model in models for seed in (None, 0)]
    keys = [model for model in models for _ in range(2)]
    trainings = [Training(p, k, "momentum", 1) for p, k in zip(plans, keys, strict=True)]
    values = {model: tiny(model, 8).values for model in models}
    (results,) = run_ranks(trained_each, trainings, values, ranks=1)
    assert isinstance(results, list)
    for model, trained in zip(keys, results, strict=True):
        loss, gradients = by_library(tiny(model, 8))
        assert trained.losses[0] == pytest.approx(loss, rel=TOLERANCE["float64"])
        assert trained.sent == [0]
        worst = errors(gradients, [trained.gradients])
        assert max(worst.values()) <= TOLERANCE["float64"], (model, worst)


def sampled(seed: int, devices: int, count: int, dtype: str = "float64") -> list[Drawn]:
    drawn = (
        candidate
        for candidate in drawn_plans(seed, SMALL, dtype)
        if candidate.plan.cluster.devices == devices
    )
    return list(islice(drawn, count))


@pytest.mark.parametrize(("devices", "count"), [(4, 7), (6, 2), (8, 2)])
def test_random_plans_equal_one_device(devices: int, count: int) -> None:
    for verdict in verdicts(sampled(devices, devices, count)):
        assert verdict.strict, str(verdict)


def test_random_plans_equal_one_device_in_single_precision() -> None:
    for verdict in verdicts(sampled(1, 4, 3, "float32")):
        assert verdict.strict, str(verdict)


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2)])
def test_shards_of_neighbours_equal_one_device(sizes: tuple[int, ...]) -> None:
    """HSDP: also where rows do not divide, and with parameters that travel in buckets."""
    cluster, batch = machine(*sizes), 24
    drawn = []
    for model in ("mlp", "gpt2-xl"):
        base = data_parallel(tiny(model, batch).graph, cluster)
        for zero, micro, bucket in ((1, 1, 0), (2, 2, 10**6), (3, 1, 10**6), (3, 2, 0)):
            options = Options(zero=zero, shard_within=2, micro_batches=micro, bucket=Bytes(bucket))
            each = replace(options, sync_each=zero > 1 and micro > 1)
            for variant in dict.fromkeys((options, each)):
                drawn.append(Drawn(model, batch, "float64", (), base.changed(options=variant)))
    for verdict in verdicts(drawn):
        assert verdict.strict, str(verdict)


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 2, 2)])
def test_found_plans_equal_one_device(sizes: tuple[int, ...]) -> None:
    candidates = list(found_plans(Seconds(0.5), ("mlp", "gpt2-xl"), [sizes]))
    for verdict in verdicts(candidates):
        assert verdict.strict, str(verdict)


def test_a_wrong_gradient_is_noticed() -> None:
    """The comparison itself: a part that is wrong, and one that is missing."""
    (drawn,) = sampled(4, 4, 1)
    training = Training(one_device(drawn), drawn.key, "adam", 1)
    values = {drawn.key: tiny(drawn.model, drawn.batch).values}
    (results,) = run_ranks(trained_each, [training], values, ranks=1)
    assert isinstance(results, list)
    trained: Trained = results[0]
    expected = whole(trained.gradients)
    assert max(errors(expected, [trained.gradients]).values()) == 0
    name, part = next((n, p) for n, p in trained.gradients.items() if np.abs(p.values).max() > 0)
    wrong = part._replace(values=part.values * (1 + 1e-6))
    assert errors(expected, [trained.gradients | {name: wrong}])[name] > TOLERANCE["float64"]
    less = {other: p for other, p in trained.gradients.items() if other != name}
    assert errors(expected, [less])[name] == float("inf")
