"""Prices of operators: measured ones are kept, others are read off their neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.profile_table import (
    MeasuredCall,
    Origin,
    PriceTable,
    format_header,
    format_row,
    load_table,
)
from meshwright.graph.operator_graph import Call, Spec

H100 = replace(Cluster.named("dgx-h100").device, rates=UNSET, fusing=UNSET)
"""With the usual rates."""
ORIGIN = Origin(device="test", software="none", date="2026-11-15", command="by hand")


def linear(rows: int, wide: int, deep: int, dtype: str = "bfloat16") -> Call:
    return Call(
        kind="linear",
        inputs=(Spec(dtype, (rows, deep)), Spec(dtype, (wide, deep))),
        outputs=(Spec(dtype, (rows, wide)),),
    )


def table(*rows: tuple[Call, float, float]) -> PriceTable:
    measured = tuple(
        MeasuredCall(call=call, forward=Seconds(forward), backward=Seconds(backward))
        for call, forward, backward in rows
    )
    return PriceTable(origin=ORIGIN, rows=measured)


def test_an_estimate_obeys_the_roofline() -> None:
    price = OperatorPricer(H100).price(linear(8192, 8192, 8192))
    flops = 2 * 8192**3
    assert price.forward.source == "estimated"
    assert price.forward.error is None
    assert flops / 989e12 < price.forward.seconds < 2 * flops / 989e12
    assert price.backward.seconds > price.forward.seconds


def test_small_products_are_bound_by_launching() -> None:
    price = OperatorPricer(H100).price(linear(8, 8, 8))
    assert price.forward.seconds == pytest.approx(2e-6, rel=0.1)


def test_unaligned_products_are_slower() -> None:
    pricer = OperatorPricer(H100)
    even = pricer.price(linear(4096, 4096, 4096)).forward.seconds
    odd = pricer.price(linear(4096, 4096, 4095)).forward.seconds
    assert odd > 1.4 * even


def test_a_measured_call_has_the_measured_price() -> None:
    call = linear(512, 512, 512)
    price = OperatorPricer(H100, table((call, 7e-6, 11e-6))).price(call)
    assert (price.forward.seconds, price.backward.seconds) == (7e-6, 11e-6)
    assert price.forward.source == "measured"


def test_gradients_that_are_not_wanted_are_not_paid() -> None:
    call = linear(4096, 4096, 4096)
    pricer = OperatorPricer(H100, table((call, 1e-3, 2e-3)))
    assert pricer.price(call, (False, True)).backward.seconds == pytest.approx(1e-3, rel=0.05)
    assert not pricer.price(call, (False, False)).backward.seconds


def test_between_measured_calls_prices_are_corrected() -> None:
    """If the device is twice as slow as estimated everywhere, so is what lies between."""
    plain = OperatorPricer(H100)
    sizes = [(r, w, 1024) for r in (512, 2048) for w in (512, 2048)]
    rows = []
    for size in sizes:
        price = plain.price(linear(*size))
        rows.append((linear(*size), 2 * price.forward.seconds, 2 * price.backward.seconds))
    pricer = OperatorPricer(H100, table(*rows))
    between, estimated = (
        pricer.price(linear(1024, 1024, 1024)),
        plain.price(linear(1024, 1024, 1024)),
    )
    assert between.forward.source == "interpolated"
    assert between.forward.seconds == pytest.approx(2 * estimated.forward.seconds)
    assert between.forward.error == pytest.approx(0.0, abs=1e-9)
    other_dtype = pricer.price(linear(1024, 1024, 1024, "float32"))
    assert other_dtype.forward.source == "estimated"


def test_views_are_free() -> None:
    call = Call(
        kind="transpose",
        inputs=(Spec("float32", (64, 32)),),
        outputs=(Spec("float32", (32, 64)),),
        attributes=(("dim0", 0), ("dim1", 1)),
    )
    price = OperatorPricer(H100).price(call)
    assert not price.forward.seconds
    assert not price.backward.seconds


def test_a_table_reads_back_and_a_cut_off_line_is_left_out(tmp_path: Path) -> None:
    rows = table((linear(1, 2, 3), 1e-6, 2e-6), (linear(2, 3, 4), 3e-6, 4e-6))
    file = tmp_path / "prices.jsonl"
    lines = [format_header(ORIGIN), *map(format_row, rows.rows)]
    file.write_text("".join(lines))
    assert load_table(file) == rows
    file.write_text("".join(lines)[:-20])
    assert load_table(file).rows == rows.rows[:1]


def test_what_is_no_table(tmp_path: Path) -> None:
    file = tmp_path / "prices.jsonl"
    file.write_text("hello\n")
    with pytest.raises(InputError, match="is not a table of prices"):
        load_table(file)
    with pytest.raises(InputError, match="cannot read the prices in 'nowhere'"):
        load_table("nowhere")


def test_pieces_that_differ_only_in_where_they_lie_cost_the_same() -> None:
    table_spec, rows = Spec("bfloat16", (512, 64)), Spec("int64", (4, 8))
    out = Spec("bfloat16", (4, 8, 64))

    def piece(first: int) -> Call:
        attributes = (("first", first),)
        return Call(
            kind="embedding", inputs=(table_spec, rows), outputs=(out,), attributes=attributes
        )

    pricer = OperatorPricer(H100, table((piece(0), 5e-6, 9e-6)))
    assert pricer.price(piece(1024)) == pricer.price(piece(0))
    assert pricer.price(piece(1024)).forward.source == "measured"
