"""Operands are valid for every kind, and every kind can be measured."""

from __future__ import annotations

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.calibrate import measure, timing
from meshwright.calibrate.measure import measure_call
from meshwright.calibrate.operands import drawn, learns
from meshwright.capture.execution.shard_kernels import run_call
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Call, Spec
from support.operator_cases import CASES, Case

CPU = torch.device("cpu")

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def call_of(kind: str, *inputs: Spec, **attributes: int) -> Call:
    sorted_attributes = tuple(sorted(attributes.items()))
    unfinished = Call(kind=kind, inputs=inputs, outputs=(), attributes=sorted_attributes)
    outputs = family_of(unfinished).outputs(unfinished)
    return Call(kind=kind, inputs=inputs, outputs=outputs, attributes=sorted_attributes)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_kind_runs_on_drawn_operands(case: Case) -> None:
    operands = drawn(case.call, CPU)
    results = run_call(case.call, operands)
    specs = [Spec(str(r.dtype).removeprefix("torch."), tuple(r.shape)) for r in results]
    assert tuple(specs[: len(case.call.outputs)]) == case.call.outputs
    assert [o is not None and o.requires_grad for o in operands] == list(learns(case.call))
    differentiable = [result for result in results if result.requires_grad]
    if differentiable:
        arriving = [torch.ones_like(output) for output in differentiable]
        torch.autograd.grad(differentiable, _learnt(operands), arriving, allow_unused=True)


def _learnt(operands: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor]:
    return [operand for operand in operands if operand is not None and operand.requires_grad]


def test_positions_use_the_whole_table_and_no_more() -> None:
    lookup = call_of("embedding", Spec("float32", (7, 2)), Spec("int64", (1000,)))
    indices = drawn(lookup, CPU)[1]
    assert indices is not None
    assert set(indices.tolist()) == set(range(7))


def test_equal_groups_end_with_the_last_row() -> None:
    inputs = Spec("float32", (9, 4)), Spec("float32", (3, 4, 6)), Spec("int64", (3,))
    ends = drawn(call_of("_grouped_mm", *inputs), CPU)[2]
    assert ends is not None
    assert ends.tolist() == [3, 6, 9]


def test_what_is_made_contiguous_was_not() -> None:
    (x,) = drawn(call_of("contiguous", Spec("float32", (3, 4))), CPU)
    assert x is not None
    assert not x.is_contiguous()
    assert x.shape == (3, 4)


def test_an_operator_without_gradients_has_no_backward_seconds() -> None:
    row = measure_call(call_of("argmax", Spec("float32", (8, 8)), dim=1), CPU, budget=Seconds(0))
    assert row.forward > 0
    assert row.backward is None


def test_readings_are_as_many_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    runs = 0

    def body(_: tuple[torch.Tensor, ...]) -> None:
        nonlocal now, runs
        now, runs = now + 0.001, runs + 1

    monkeypatch.setattr("meshwright.calibrate.timing.time.perf_counter", lambda: now)
    assert timing.seconds_of(body, CPU, Seconds(0.02)) == pytest.approx(0.001)
    # One to warm up, one to see how long it takes, then ten readings of two.
    assert runs == 2 + 10 * 2


def test_other_devices_are_refused() -> None:
    with pytest.raises(InputError, match="device 'mps' cannot be measured; give 'cuda' or 'cpu'"):
        measure.measure_call(
            call_of("relu", Spec("float32", (2,))), torch.device("mps"), budget=Seconds(0)
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", ["relu", "dropout", "_grouped_mm"])
def test_a_gpu_is_measured_with_and_without_capture(kind: str) -> None:
    x = Spec("bfloat16", (256, 64))
    grouped = (x, Spec("bfloat16", (4, 64, 64)), Spec("int64", (4,)))
    call = {
        "relu": call_of("relu", x),
        "dropout": Call(
            kind=kind, inputs=(x,), outputs=(x,), attributes=(("p", 0.1), ("train", True))
        ),
        "_grouped_mm": call_of("_grouped_mm", *grouped),
    }[kind]
    row = measure_call(call, torch.device("cuda"), budget=Seconds(0.01))
    assert row.forward > 0
    assert row.backward is not None
    assert row.backward > 0
