"""The arithmetic of benchmarks/training_steps.py and benchmarks/ddp_hook.py."""

from __future__ import annotations

from ddp_hook import slowest
from meshwright.base.quantities import Seconds
from meshwright.cost.profile_table import MeasuredCall, Origin, PriceTable
from meshwright.graph.operator_graph import Call, Spec
from step_rows import Judgement, Row, judged
from training_steps import changed, lesser


def row(model: str, plan: str, predicted: float, measured: float) -> Row:
    return Row(
        cluster="c",
        model=model,
        plan=plan,
        predicted=predicted,
        measured=measured,
        steps=(measured,),
        load=0.0,
    )


def test_rows_are_judged_by_pairs_of_one_model() -> None:
    rows = [
        row("a", "data parallel", 2.0, 2.0),
        row("a", "expert", 1.0, 1.9),  # Within a tenth: whatever is predicted is right.
        row("a", "found", 0.5, 1.0),
        row("b", "data parallel", 1.0, 2.0),
        row("b", "found", 2.0, 1.0),  # The wrong way round, and not promised.
        row("c", "data parallel", 2.0, 1.0),
        row("c", "found", 1.0, 2.0),  # Promised and not kept.
    ]
    assert judged(rows) == Judgement(pairs=4, kept=2, error=0.5, promised=2, faster=1)


def test_what_changes_a_price_changes_each_pass_there_is() -> None:
    spec = Spec("float32", (2,))
    call = Call(kind="relu", inputs=(spec,), outputs=(spec,))
    origin = Origin(device="d", software="s", date="", command="")
    both = MeasuredCall(call=call, forward=Seconds(1.0), backward=Seconds(2.0))
    one = MeasuredCall(call=call, forward=Seconds(1.0))
    table = changed(PriceTable(origin=origin, rows=(both, one)), lambda seconds: seconds + 0.5)
    assert [(row.forward, row.backward) for row in table.rows] == [(1.5, 2.5), (1.5, None)]


def test_a_step_takes_as_long_as_on_the_slowest_rank() -> None:
    assert slowest([{"a": [1.0, 2.0]}, {"a": [3.0, 1.0]}]) == {"a": [3.0, 2.0]}


def test_of_two_calibrations_the_lesser_of_each_pass_counts() -> None:
    spec = Spec("float32", (2,))
    call = Call(kind="relu", inputs=(spec,), outputs=(spec,))
    origin = Origin(device="d", software="s", date="", command="")
    one = MeasuredCall(call=call, forward=Seconds(1.0), backward=Seconds(3.0))
    other = MeasuredCall(call=call, forward=Seconds(2.0), backward=Seconds(2.0))
    table = lesser(PriceTable(origin=origin, rows=(one,)), PriceTable(origin=origin, rows=(other,)))
    assert [(row.forward, row.backward) for row in table.rows] == [(1.0, 2.0)]
