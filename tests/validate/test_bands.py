"""Error bands: read off judged rows, looked up for a cluster and a plan, told in reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.baselines.data import data_parallel
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Rates, Software
from meshwright.cluster.toml import dump_cluster, parse_cluster
from meshwright.graph.operator_graph import Operator, OperatorGraph
from meshwright.plan.file import save_plan
from meshwright.report.page.summary_section import summary_section
from meshwright.report.text.plans import describe_search
from meshwright.search.compare import Comparison
from meshwright.search.mcmc.parallel_chains import ChainsResult
from meshwright.simulate.simulation import simulate
from meshwright.validate import bands
from meshwright.validate.bands import (
    DENSE,
    EAGER,
    EXPERTS,
    FUSED,
    Band,
    band_of,
    bands_of,
)
from meshwright.validate.own_steps import calibrated_by_steps, load_measured_steps
from meshwright.validate.published.predicted_rows import JudgedRow
from meshwright.validate.published.rows import load_published
from support.baseline_graphs import convolutional, transformer
from support.planned import answer, asked

ROW = next(row for row in load_published() if row.gpu == "h100_80gb" and row.measured_s)
EMPTY = OperatorGraph(name="none", inputs=())
ROUTED = replace(
    EMPTY, operators=(Operator(name="e", kind="routed_experts", inputs=(), outputs=()),)
)


def judged(ratio: float, note: str = "", source: str = "Megatron-LM") -> JudgedRow:
    row = replace(ROW, measured_s=Seconds(2.0), note=note, source=source, compile="no")
    return JudgedRow(row=row, predicted_s=Seconds(2.0 * ratio))


def test_a_band_holds_nine_rows_of_ten() -> None:
    rows = [judged(1 + n / 100) for n in range(11)] + [judged(2.0, "MoE 8 experts top 2")] * 3
    rows += [judged(1.5, source="torchtitan")] * 6
    kind_bands = bands_of(rows)
    fused, eager = f"H100, {DENSE}, {FUSED}", f"H100, {DENSE}, {EAGER}"
    assert kind_bands[fused] == Band(share=0.09, rows=11, of=fused)
    assert kind_bands[eager] == Band(share=0.5, rows=6, of=eager)
    assert kind_bands[f"H100, {DENSE}"].rows == 17
    # Three rows are too few for a band of their own.
    assert f"H100, {EXPERTS}" not in kind_bands
    assert kind_bands["H100"].rows == 20


def test_bands_that_ship_are_read() -> None:
    kind_bands = bands.shipped_bands()
    assert all(band.of == of and band.rows >= bands.LEAST for of, band in kind_bands.items())
    assert all(0.02 < band.share < 0.8 for band in kind_bands.values())


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> dict[str, Band]:
    """Bands of H100s and A100s, of which nobody published mixtures."""
    kinds = (
        "A100", f"A100, {DENSE}", "B200", "H100", f"H100, {DENSE}", f"H100, {DENSE}, {FUSED}",
        f"H100, {EXPERTS}", f"H100, {EXPERTS}, {FUSED}",
    )  # fmt: skip
    kind_bands = {of: Band(share=0.5, rows=9, of=of) for of in kinds}
    monkeypatch.setattr(bands, "shipped_bands", lambda: kind_bands)
    return kind_bands


@pytest.mark.parametrize(
    ("cluster", "graph", "fuses", "of"),
    [
        ("dgx-h100", EMPTY, True, f"H100, {DENSE}, {FUSED}"),
        ("dgx-h100", EMPTY, False, f"H100, {DENSE}"),
        ("dgx-h200", EMPTY, False, f"H100, {DENSE}"),
        ("dgx-h100", ROUTED, True, f"H100, {EXPERTS}, {FUSED}"),
        ("dgx-h100", ROUTED, False, f"H100, {EXPERTS}"),
        ("aws-p4d", EMPTY, True, f"A100, {DENSE}"),
        ("dgx-b200", EMPTY, True, "B200"),
        ("aws-p4d", ROUTED, False, None),
        ("dgx-b200", ROUTED, True, None),
        ("laptop", EMPTY, False, None),
        # Published rows judge rates, not operators that were measured.
        ("h200", EMPTY, False, None),
        ("h200", EMPTY, True, f"H100, {DENSE}, {FUSED}"),
    ],
)
def test_steps_have_the_narrowest_band_of_their_kind(
    shipped: dict[str, Band], cluster: str, graph: OperatorGraph, fuses: bool, of: str | None
) -> None:
    machine = Cluster.named(cluster)
    device = replace(machine.device, software=Software(fuses=fuses))
    machine = replace(machine, device=device)
    assert band_of(machine, graph, 1.0) == (None if of is None else shipped[of])


def test_no_published_step_was_so_short(shipped: dict[str, Band]) -> None:
    machine = Cluster.named("dgx-h100")
    bands = [band_of(machine, EMPTY, step) for step in (0.001, 0.1)]
    assert bands == [None, shipped[f"H100, {DENSE}"]]


def test_compare_and_the_report_tell_the_error(shipped: dict[str, Band]) -> None:
    planned = answer(asked(convolutional(), Cluster.named("dgx-h100", node=2, gpu=2)))
    prediction = replace(planned.best.prediction, step=Seconds(1.0))
    planned = planned._replace(best=planned.best._replace(prediction=prediction))
    said = "90 % of 9 published steps (H100, dense models) were within ±50%"
    assert f"<strong>error of such steps: </strong>{said}" in summary_section(planned)
    name, slower = max(planned.baselines, key=lambda baseline: baseline[1].prediction.step)
    best = planned.best.prediction.step
    close = slower._replace(prediction=replace(slower.prediction, step=Seconds(1.2 * best)))
    chains = ChainsResult(np.zeros((1, 1), np.int8), 1, name, "budget", False, 1, 1.0, ())
    text = describe_search(Comparison(((name, close), ("search", planned.best)), (), chains))
    assert text.splitlines()[1] == (
        f"Error of such steps: {said}; 1.20x as fast as the fastest baseline that fits is inside "
        "of that."
    )


def test_steps_of_ones_own_machine_fit_rates_and_narrow_the_band(tmp_path: Path) -> None:
    """Steps of a machine half as fast as described, one of them 10 % off."""
    cluster = Cluster.named("dgx-h100", node=1, gpu=2)
    half = replace(Rates(), best=0.4, streaming=0.425, scanning=0.425)
    slow = replace(cluster, device=replace(cluster.device, rates=half))
    usual = replace(cluster, device=replace(cluster.device, rates=Rates()))
    lines = ["plan,seconds"]
    for number, (batch, off) in enumerate(((256, 1), (512, 1), (768, 1), (1024, 1.1))):
        graph = transformer(batch=batch, sequence=64, width=128)
        save_plan(data_parallel(graph, usual), tmp_path / f"{number}.json")
        step = simulate(data_parallel(graph, slow)).prediction.step
        lines.append(f"{number}.json,{step * off}")
    table = tmp_path / "steps.csv"
    table.write_text("\n".join(lines))
    fitted = calibrated_by_steps(usual, load_measured_steps(str(table)))
    assert fitted.factor == pytest.approx(0.5, rel=0.01)
    assert fitted.held_out == pytest.approx((1, 1, 1, 1 / 1.1), abs=0.01)
    read = parse_cluster(dump_cluster(fitted.cluster))
    assert read == fitted.cluster
    assert str(band_of(read, EMPTY, 1.0)) == "all 4 steps measured on this machine were within ±9%"
    table.write_text("\n".join(lines[:3]))
    with pytest.raises(InputError, match="2 steps, and each is judged by the others"):
        load_measured_steps(str(table))
    table.write_text("\n".join(lines))
    steps = load_measured_steps(str(table))
    with pytest.raises(InputError, match="a plan is for 'dgx-h100' with H100-SXM5-80GB"):
        calibrated_by_steps(Cluster.named("dgx-a100"), steps)
