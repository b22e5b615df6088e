"""The page about running: its scripts are run as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ranks

PAGE = (Path(__file__).parents[2] / "docs" / "running.md").read_text()


def test_the_training_script(tmp_path: Path) -> None:
    torchrun = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun is None:
        pytest.skip("torchrun is not beside this Python")
    for name, text in re.findall(r"```py\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    command = re.search(r"^meshwright (plan model\.py.*)$", PAGE, re.MULTILINE)
    assert command is not None
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    environment = os.environ | {"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    planned = subprocess.run(
        [sys.executable, "-m", "meshwright", *command[1].split()],
        timeout=400,
        **options,  # type: ignore[call-overload]
    )
    assert planned.returncode == 0, planned.stderr
    result = subprocess.run(
        [torchrun, "--standalone", "--nproc-per-node", "2", "train.py"],
        env=environment,
        timeout=240,
        **options,  # type: ignore[call-overload]
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines[:5]] == [f"step {n}" for n in range(5)]
    assert lines[5] == "the plain model takes its state"
