"""A device is priced by the table that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.toml import dump_cluster, load_cluster
from meshwright.cost.profile_table import MeasuredCall, Origin, format_header, format_row
from meshwright.cost.tables import pricer_of, table_of
from meshwright.graph.operator_graph import Call, Spec

CALL = Call(kind="relu", inputs=(Spec("float32", (64, 64)),), outputs=(Spec("float32", (64, 64)),))


def written(folder: Path, seconds: float) -> Path:
    origin = Origin(device="a desk", software="none", date="today", command="by hand")
    row = MeasuredCall(call=CALL, forward=Seconds(seconds), backward=Seconds(seconds))
    (folder / "prices.jsonl").write_text(format_header(origin) + format_row(row))
    text = dump_cluster(Cluster.named("laptop")).replace(
        "[device]\n", '[device]\nprices = "prices.jsonl"\n'
    )
    (folder / "desk.toml").write_text(text)
    return folder / "desk.toml"


def test_a_file_is_found_beside_the_cluster(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, 0.25))
    assert Path(cluster.device.prices) == tmp_path / "prices.jsonl"
    assert pricer_of(cluster.device).price(CALL).forward.seconds == 0.25
    assert load_cluster(written(tmp_path, 0.25)) == cluster


def test_a_table_that_changed_is_read_again(tmp_path: Path) -> None:
    pricer_of(load_cluster(written(tmp_path, 0.25)).device)
    cluster = load_cluster(written(tmp_path, 0.5))
    assert pricer_of(cluster.device).price(CALL).forward.seconds == 0.5


def test_a_cluster_with_prices_is_written_and_read_back(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, 0.25))
    (tmp_path / "again.toml").write_text(dump_cluster(cluster))
    assert load_cluster(tmp_path / "again.toml") == cluster


def test_no_table_no_measured_price() -> None:
    assert table_of(Cluster.named("laptop").device) is None
    assert pricer_of(Cluster.named("laptop").device).estimates


@pytest.mark.parametrize(
    ("prices", "sentence"),
    [
        ("H100", "no measured prices 'H100' come with Meshwright"),
        ("/nowhere/prices.jsonl", "cannot read the prices in '/nowhere/prices.jsonl'"),
    ],
)
def test_a_table_that_is_not_there_is_told(prices: str, sentence: str) -> None:
    device = replace(Cluster.named("laptop").device, prices=prices)
    with pytest.raises(InputError, match=sentence):
        pricer_of(device)
