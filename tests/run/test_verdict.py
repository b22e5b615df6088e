"""When a run counts as equal to one device, and what tells nothing of it."""

from __future__ import annotations

import math

import pytest
import torch

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.plan import Plan
from meshwright.run.single_device import Trained
from meshwright.run.verdict import compared_plan, least_exact_dtype, verdict
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units


def trained(losses: tuple[float, ...], **numbers: tuple[list[float], list[float]]) -> Trained:
    """Losses, and for each parameter its first gradient and its last value."""
    return Trained(
        losses,
        {name: torch.tensor(pair[0], dtype=torch.float64) for name, pair in numbers.items()},
        {name: torch.tensor(pair[1], dtype=torch.float64) for name, pair in numbers.items()},
    )


def test_differences_are_relative_to_the_largest_number_of_a_tensor() -> None:
    alone = trained((4.0, 2.0), a=([1.0, 1.0], [1.0, -10.0]), b=([2.0], [0.5]))
    run = trained((4.0, 2.5), a=([1.0, 1.0], [2.0, -10.0]), b=([2.5], [0.48]))
    comparison = verdict("float64", run, alone)
    assert comparison.loss_error == 0.25
    assert comparison.parameter == "a"
    assert comparison.parameter_error == pytest.approx(0.1)
    assert comparison.gradient == "b"
    assert comparison.gradient_error == pytest.approx(0.25)
    assert comparison.compared == 2
    assert not comparison.equal


def test_rounding_is_equal_and_more_is_not() -> None:
    alone = trained((1.0,), a=([1.0], [1.0]))
    assert verdict("float64", trained((1.0 + 1e-12,), a=([1.0 + 1e-12], [1.0])), alone).equal
    assert not verdict("float64", trained((1.0 + 1e-8,), a=([1.0], [1.0])), alone).equal
    assert not verdict("float64", trained((1.0,), a=([1.0 + 1e-6], [1.0])), alone).equal
    assert not verdict("float64", trained((1.0,), a=([1.0], [1.0 + 1e-5])), alone).equal
    assert verdict("float32", trained((1.0 + 1e-6,), a=([1.0], [2.0])), alone).equal, (
        "below float64 parameters are told and not judged"
    )


def test_a_gradient_of_zero_on_both_sides_tells_nothing() -> None:
    """Adam makes a full step of rounding, in whatever direction."""
    alone = trained((1.0,), a=([1.0], [1.0]), key=([3e-17], [1e-3]))
    run = trained((1.0,), a=([1.0], [1.0]), key=([-2e-17], [-1e-3]))
    comparison = verdict("float64", run, alone)
    assert comparison.equal
    assert comparison.still == ("key",)
    assert comparison.compared == 1
    lost = trained((1.0,), a=([1.0], [1.0]), key=([0.1], [1e-3]))
    assert not verdict("float64", run, lost).equal, "zero on one side alone is a lost gradient"


def test_gradients_that_are_all_rounding_tell_nothing() -> None:
    """As those of a loss that no parameter changes: EfficientNet with one number a channel."""
    alone = trained((5.0,), a=([1e-30], [1.0]), b=([-3e-31], [2.0]))
    run = trained((5.0,), a=([4e-30], [1.1]), b=([2e-31], [2.1]))
    comparison = verdict("float64", run, alone)
    assert (comparison.equal, comparison.compared, comparison.still) == (None, 0, ("a", "b"))
    assert verdict("float64", run._replace(losses=(5.1,)), alone).equal is False
    larger = trained((5.0,), a=([1e-14], [1.0]), b=([-3e-31], [2.0]))
    assert verdict("float64", run, larger).equal is False, "the loss has digits that small"


def test_what_is_not_a_number_differs() -> None:
    alone = trained((1.0,), a=([1.0], [1.0]), b=([1.0], [2.0]))
    run = trained((1.0,), a=([1.0], [1.0]), b=([1.0], [math.nan]))
    comparison = verdict("float64", run, alone)
    assert (comparison.parameter, comparison.parameter_error, comparison.equal) == (
        "b",
        math.inf,
        False,
    )
    assert not verdict("float64", run._replace(losses=(math.nan,)), alone).equal


def planned(dtype: str) -> Plan:
    graph = load_model("zoo:lenet/tiny", 4).graph
    graph = graph if dtype == "float32" else cast_graph(graph, dtype)
    cluster = Cluster.named("laptop").resized({"process": 2})
    return Plan.of("any", graph, cluster, [Layout(("replica",)) for _ in units(graph)])


def test_a_plan_in_float32_is_compared_in_float64() -> None:
    assert least_exact_dtype(compared_plan(planned("float32"))) == "float64"
    half = planned("bfloat16")
    assert compared_plan(half) is half
    assert least_exact_dtype(half) == "bfloat16"
