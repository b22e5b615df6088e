"""Which calls are measured, and files that survive whatever stops a calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.calibrate import profile_calls as room
from meshwright.calibrate.calls import calls_to_measure
from meshwright.calibrate.profile_calls import CallCalibration, Failure, calibrate
from meshwright.calibrate.provenance import price_origin
from meshwright.capture.load import load_model
from meshwright.cost.profile_table import MeasuredCall, load_table
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Spec, Tensor

CPU = torch.device("cpu")


def tensor(name: str, *shape: int) -> Tensor:
    return Tensor(name=name, dtype="float32", dims=tuple((f"d{i}", n) for i, n in enumerate(shape)))


def matrix_product(rows: int, inner: int, columns: int) -> OperatorGraph:
    out, turned = tensor("out", rows, columns), tensor("turned", columns, rows)
    return OperatorGraph(
        name="product",
        inputs=(tensor("a", rows, inner), tensor("b", inner, columns)),
        operators=(
            Operator(name="mm", kind="mm", inputs=("a", "b"), outputs=(out,)),
            Operator(name="t", kind="t", inputs=("out",), outputs=(turned,)),
        ),
        outputs=("turned",),
    )


def sizes(call: Call) -> tuple[int, int, int]:
    a, b = call.inputs
    assert a is not None
    assert b is not None
    return a.shape[0], a.shape[1], b.shape[1]


def test_a_product_is_measured_whole_by_one_split_and_by_two() -> None:
    calls = calls_to_measure(matrix_product(8, 4, 2), (1, 2, 4))
    assert [call.kind for call in calls] == ["mm"] * len(calls)
    assert [sizes(call) for call in calls] == [
        (8, 4, 2),
        *[(4, 4, 2), (2, 4, 2)],
        *[(8, 4, 1)],
        *[(8, 2, 2), (8, 1, 2)],
        *[(4, 4, 1), (2, 4, 1)],
        *[(4, 2, 2), (4, 1, 2), (2, 2, 2)],
        *[(8, 2, 1), (8, 1, 1)],
    ]


def test_degrees_without_one_leave_whole_operators_out() -> None:
    calls = calls_to_measure(matrix_product(8, 4, 2), (2,), largest=2)
    assert [sizes(call) for call in calls] == [(4, 4, 2), (8, 4, 1), (8, 2, 2)]


def test_an_uneven_cut_gives_both_sizes() -> None:
    assert [sizes(c)[0] for c in calls_to_measure(matrix_product(7, 1, 1), (2,))] == [4, 3]


def test_views_and_tensors_made_from_nothing_are_left_out() -> None:
    graph = load_model("zoo:bert-large/tiny").graph
    kinds = {operator.kind for operator in graph.operators}
    measured_kinds = {call.kind for call in calls_to_measure(graph, (1,))}
    assert kinds - measured_kinds == {"arange", "flatten", "transpose", "unflatten"}


def test_another_dtype_takes_the_place_of_float32_alone() -> None:
    graph = load_model("zoo:bert-large/tiny").graph
    calls = calls_to_measure(graph, (1,), "bfloat16")
    specs = {spec for call in calls for spec in (*call.inputs, *call.outputs) if spec is not None}
    assert {spec.dtype for spec in specs} == {"bfloat16", "int64"}
    assert len(calls) == len(calls_to_measure(graph, (1,)))


def test_pieces_that_differ_in_place_alone_are_measured_once() -> None:
    calls = calls_to_measure(load_model("zoo:bert-large/tiny").graph)
    assert len(set(calls)) == len(calls)
    assert {call.get("first") for call in calls} == {None, 0}


def relu(n: int) -> Call:
    return Call(kind="relu", inputs=(Spec("float32", (n,)),), outputs=(Spec("float32", (n,)),))


BROKEN = Call(kind="nosuch", inputs=(Spec("float32", (3,)),), outputs=())


def quiet(done: int, total: int, call: Call) -> None:
    pass


def measured(file: Path, *calls: Call) -> CallCalibration:
    return calibrate(calls, CPU, file, "meshwright calibrate", quiet, each=Seconds(0))


def test_a_calibration_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    assert measured(file, relu(4), relu(4), relu(5)) == CallCalibration(
        measured=2, known=0, failures=(), stopped="done"
    )
    first = file.read_text()
    assert measured(file, relu(5), relu(6)) == CallCalibration(
        measured=1, known=1, failures=(), stopped="done"
    )
    assert file.read_text().startswith(first)
    table = load_table(file)
    assert [row.call for row in table.rows] == [relu(4), relu(5), relu(6)]
    assert table.origin == price_origin(CPU, "meshwright calibrate")


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_that_was_cut_off_is_measured_anew(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "prices.jsonl"
    measured(file, relu(4), relu(5))
    file.write_bytes(file.read_bytes()[:-cut])
    assert measured(file, relu(4), relu(5)).measured == 1
    assert [row.call for row in load_table(file).rows] == [relu(4), relu(5)]


def test_a_header_that_was_cut_off_is_written_anew(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    file.write_text('{"device": "Some')
    measured(file, relu(4))
    assert [row.call for row in load_table(file).rows] == [relu(4)]


def test_an_operator_that_fails_is_named_and_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    result = measured(file, relu(4), BROKEN, relu(5))
    assert (result.measured, result.stopped) == (2, "done")
    (failure,) = result.failures
    assert failure.call == BROKEN
    assert str(failure).startswith("nosuch([3]) cannot be measured: PyTorch has no operator")
    assert [row.call for row in load_table(file).rows] == [relu(4), relu(5)]


def test_a_failure_without_a_word_is_named_by_its_type() -> None:
    assert str(Failure(relu(4), "MemoryError")) == "relu([4]) cannot be measured: MemoryError"


def test_an_interrupted_calibration_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(call: Call, device: torch.device, *, budget: Seconds) -> MeasuredCall:
        if call == relu(5):
            raise KeyboardInterrupt
        return MeasuredCall(call=call, forward=Seconds(1.0))

    monkeypatch.setattr(room, "measure_call", interrupted)
    file = tmp_path / "prices.jsonl"
    assert measured(file, relu(4), relu(5), relu(6)).stopped == "interrupted"
    monkeypatch.undo()
    assert measured(file, relu(4), relu(5), relu(6)) == CallCalibration(
        measured=2, known=1, failures=(), stopped="done"
    )


def test_a_spent_budget_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    result = calibrate((relu(4),), CPU, file, "", quiet, total=Seconds(0))
    assert result == CallCalibration(measured=0, known=0, failures=(), stopped="out of time")


def test_progress_counts_what_is_known_and_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    measured(file, relu(4))
    progress: list[tuple[int, int, Call]] = []

    def tell(done: int, total: int, call: Call) -> None:
        progress.append((done, total, call))

    calibrate((relu(4), BROKEN, relu(5)), CPU, file, "", tell, each=Seconds(0))
    assert progress == [(1, 3, BROKEN), (2, 3, relu(5))]


def test_a_table_of_another_device_is_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    file.write_text('{"device":"NVIDIA H200","software":"torch 2","date":"","command":""}\n')
    with pytest.raises(InputError, match="holds prices of NVIDIA H200 with torch 2, and this is"):
        measured(file, relu(4))
