"""A model is run with the batch, the dtypes and the constants of its plan."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.text import parse_graph
from meshwright.plan.plan import Plan
from meshwright.run.plan_example import (
    cast_batch_as_planned,
    cast_model_as_planned,
    example_of_plan,
)
from meshwright.run.state.constants import constants_of
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units

SEQUENCE_FIRST = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 1).to(torch.float64)
        self.register_buffer("turn", torch.tensor([1.0 + 2.0j]))

    def forward(self, steps, batch_second):
        return self.two(self.one(batch_second).mean(0).double()).sum() + steps.sum()

def build(batch=6):
    return Model(), (torch.zeros(5), torch.zeros(7, batch, 3))
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(SEQUENCE_FIRST)
    return f"{tmp_path}/model.py:build"


def plan_of(source: str, batch: int | None) -> Plan:
    graph = load_model(source, batch).graph
    cluster = Cluster.named("laptop").resized({"process": 2})
    plan = Plan.of("any", graph, cluster, [Layout(("replica",)) for _ in units(graph)])
    return msgspec.structs.replace(plan, model=source, batch=batch)


def test_the_batch_is_the_plan_s_and_no_guess(source: str) -> None:
    """Five steps in the first dim of the first input are no batch of five."""
    for batch in (None, 2):
        example = example_of_plan(plan_of(source, batch), source)
        second = example.inputs[1]
        assert isinstance(second, torch.Tensor)
        assert second.shape == (7, batch or 6, 3)


def test_another_model_is_refused(source: str) -> None:
    other = msgspec.structs.replace(plan_of(source, 2), batch=3)
    with pytest.raises(InputError, match=r"input 'batch_second' has shape \(7, 3, 3\), and in the"):
        example_of_plan(other, source)


def test_each_tensor_keeps_its_own_dtype(source: str) -> None:
    model = example_of_plan(plan_of(source, 2), source).model
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert dtypes["one.weight"] == torch.float32
    assert dtypes["two.weight"] == torch.float64
    assert dtypes["turn"] == torch.complex64, "model.to(float32) would drop its imaginary part"


GRAPH = parse_graph("""graph g
input x: bfloat16[n=2]
parameter w: bfloat16[n=2]
buffer angles: bfloat16[n=2]
buffer inner.mask: bool[n=2]
operator y: y: bfloat16[n=2] = mul(x, angles)
output y""")


def holder() -> nn.Module:
    model, inner = nn.Module(), nn.Module()
    model.register_buffer("angles", torch.tensor([0.5, 0.25]), persistent=False)
    model.w = nn.Parameter(torch.ones(2))
    inner.mask = torch.tensor([True, False])
    model.inner = inner
    return model


def test_constants_are_found_in_the_model() -> None:
    constants = constants_of(holder(), GRAPH)
    assert constants["angles"].dtype == torch.bfloat16
    assert constants["inner.mask"].tolist() == [True, False]
    model = holder()
    cast_model_as_planned(model, GRAPH)
    assert (model.w.dtype, model.angles.dtype) == (torch.bfloat16, torch.bfloat16)


def test_constants_of_another_shape_are_refused() -> None:
    model = holder()
    model.register_buffer("angles", torch.zeros(3), persistent=False)
    with pytest.raises(InputError, match=r"constant 'angles' of the model has shape \(3,\)"):
        constants_of(model, GRAPH)
    model.register_buffer("angles", torch.zeros(2, device="meta"), persistent=False)
    assert "angles" not in constants_of(model, GRAPH), "it has no value"


def test_batches_have_the_dtypes_of_the_plan() -> None:
    real, whole, turned = torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2) + 1j
    (cast,) = cast_batch_as_planned([real], GRAPH)
    assert cast.dtype == torch.bfloat16
    for other in ([whole], [turned], [real, real]):
        converted = cast_batch_as_planned(other, GRAPH)
        assert all(map(torch.equal, converted, other)), "a step refuses it"
        assert [tensor.dtype for tensor in converted] == [tensor.dtype for tensor in other]
