"""Error bands: read off judged rows, looked up for a cluster and a plan, told in reports."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from meshwright.base.units import Seconds
from meshwright.cluster.model import Cluster
from meshwright.graph.model import OperatorGraph
from meshwright.validate.bands import DENSE, EXPERTS, Band, band_of, bands_of, inside, shipped_bands
from meshwright.validate.published.predict import JudgedRow
from meshwright.validate.published.rows import embedded_published

ROW = next(row for row in embedded_published() if row.gpu == "h100_80gb" and row.measured_s)
EMPTY = OperatorGraph(name="none", inputs=())


def judged(ratio: float, note: str = "") -> JudgedRow:
    row = replace(ROW, measured_s=Seconds(2.0), note=note)
    return JudgedRow(row=row, predicted_s=Seconds(2.0 * ratio))


def test_a_band_holds_nine_rows_of_ten() -> None:
    rows = [judged(1 + n / 100) for n in range(11)] + [judged(2.0, "MoE 8 experts top 2")] * 3
    found = bands_of(rows)
    assert found[f"H100, {DENSE}"] == Band(share=0.09, rows=11, of=f"H100, {DENSE}")
    # Three rows are too few for a band of their own.
    assert f"H100, {EXPERTS}" not in found
    assert found["H100"].rows == 14


@pytest.mark.parametrize(
    ("cluster", "of"),
    [("dgx-h100", f"H100, {DENSE}"), ("dgx-h200", f"H100, {DENSE}"),
     ("aws-p4d", f"A100, {DENSE}"), ("gb200-nvl72", f"GB200, {DENSE}")],
)  # fmt: skip
def test_machines_have_the_band_of_their_chip(cluster: str, of: str) -> None:
    band = band_of(Cluster.named(cluster), EMPTY)
    assert band == shipped_bands()[of]
    assert 0.02 < band.share < 0.6


def test_nobody_published_steps_of_a_laptop() -> None:
    assert band_of(Cluster.named("laptop"), EMPTY) is None
    assert not inside(None, 1.01)
