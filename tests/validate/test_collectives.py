"""AllReduce inside a machine: what plans are priced with against vTrain's tables."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.validate.collectives import (
    AllReduceRow,
    compare,
    embedded_rows,
    load_rows,
    summarize,
)
from support.typed import typed

MIB = 1 << 20
HEADER = "gpu,ranks,bytes,out_of_place_ns,in_place_ns\n"
GOOD = "A100,4,1048576,44210,45100\n"


def test_the_rows_are_those_of_the_tables() -> None:
    rows = embedded_rows()
    assert Counter((row.gpu, row.ranks) for row in rows) == {
        (gpu, ranks): 1024 for gpu in ("A100", "V100") for ranks in (2, 4, 8)
    }
    assert {row.bytes for row in rows} == {i * MIB for i in range(1, 1025)}


def test_errors_are_those_that_the_docs_tell() -> None:
    means = {
        (summary.gpu, summary.ranks): round(summary.mean, 3)
        for summary in summarize(compare(embedded_rows()))
    }
    assert means == {
        ("A100", 2): 0.178, ("A100", 4): 0.062, ("A100", 8): 0.023,
        ("V100", 2): 0.665, ("V100", 4): 0.155, ("V100", 8): 0.008,
    }  # fmt: skip


def test_a_large_all_reduce_goes_round_the_ring_of_the_catalogue() -> None:
    """Each of 8 GPUs sends 2 (n - 1) / n of its bytes over a port of 229 GB/s."""
    row = AllReduceRow(gpu="A100", ranks=8, bytes=Bytes(1 << 30), measured_s=Seconds(1.0))
    (it,) = compare([row])
    assert it.predicted_s == pytest.approx(2 * 7 / 8 * 2**30 / 229e9, rel=0.01)


def validate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return typed("validate", "collectives", *arguments)


def test_a_table_of_other_sizes(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text(HEADER + GOOD + "V100,8,104857600,2150000,2151000\n")
    result = validate("--rows", str(table), "--json")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert [(row["gpu"], row["ranks"], row["bytes"]) for row in document["rows"]] == [
        ("A100", 4, 1048576),
        ("V100", 8, 104857600),
    ]
    assert document["rows"][0]["measured_s"] == 44210e-9
    errors = [row["predicted_s"] / row["measured_s"] - 1 for row in document["rows"]]
    assert [row["error"] for row in document["rows"]] == pytest.approx(errors)
    one, other = document["summary"]
    assert one == {
        "gpu": "A100", "ranks": 4, "rows": 1, "mean": abs(errors[0]), "small": abs(errors[0]),
        "worst": abs(errors[0]), "largest": errors[0],
    }  # fmt: skip
    assert other["small"] is None
    assert "V100         8     1" in validate("--rows", str(table)).stdout


MISTAKES = [
    ("A100,", "H100,", "line 2: gpu is 'H100'; did you mean"),
    (",4,", ",1,", "line 2: ranks is 1; give 2 or more."),
    (",4,", ",3,", "line 2: ranks is 3; give a divisor of 8, the A100s of a machine."),
    (",4,", ",16,", "line 2: ranks is 16; give a divisor of 8, the A100s of a machine."),
    (",4,", ",two,", "line 2: ranks: 'two' is not a whole number; write digits only, as '16'."),
    ("1048576", "0", "line 2: bytes is 0; give 1 or more."),
    ("1048576", "-4", "line 2: bytes: '-4' is not a whole number;"),
    ("44210", "0", "line 2: out_of_place_ns is 0; give 1 or more."),
    ("44210", "", "line 2: out_of_place_ns: '' is not a whole number;"),
    (GOOD, "A100,4\n", "line 2: bytes: '' is not a whole number;"),
    (GOOD, "", "has no rows; give a CSV file with the columns gpu, ranks, bytes, out_of_place_ns."),
    ("ranks,", "members,", "there is no column 'ranks'; add it to the first line."),
    (HEADER, "", "there is no column 'gpu'; add it to the first line."),
    ("44210", "4" * 131_073, "line 2: not valid CSV (field larger than field limit (131072));"),
]


@pytest.mark.parametrize(("right", "wrong", "sentence"), MISTAKES)
def test_a_mistake_in_a_table_gets_a_sentence(
    tmp_path: Path, right: str, wrong: str, sentence: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text((HEADER + GOOD).replace(right, wrong, 1))
    with pytest.raises(InputError) as caught:
        load_rows(str(table))
    assert sentence in str(caught.value)


def test_a_table_that_is_not_there() -> None:
    result = validate("--rows", "nowhere.csv")
    assert (result.returncode, result.stdout) == (2, "")
    assert "cannot read 'nowhere.csv' (No such file or directory); give a CSV" in result.stderr
