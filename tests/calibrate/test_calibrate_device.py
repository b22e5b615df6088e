"""The command that measures a device, on this processor and tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from meshwright.cost.profile_table import load_table

ROOT = Path(__file__).parents[2]
SCRIPT = "benchmarks/calibrate_device.py"


def test_the_command_leaves_a_table_and_steps(tmp_path: Path) -> None:
    arguments = ["--device", "cpu", "--tiny", "--budget", "5", "--out", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sorted(file.name for file in tmp_path.iterdir()) == ["prices.jsonl", "steps.json"]
    table = load_table(tmp_path / "prices.jsonl")
    assert table.origin.command == f"python3 {SCRIPT} {' '.join(arguments)}"
    findings = json.loads((tmp_path / "steps.json").read_text())
    assert findings["dispatch"]["forward"] > 0
    first = findings["steps"][0]
    assert (first["workload"], first["batch"], first["optimizer"]) == ("bert-tiny", 2, "adam")
    assert f"{len(table.rows)} prices in {tmp_path / 'prices.jsonl'}" in completed.stdout
