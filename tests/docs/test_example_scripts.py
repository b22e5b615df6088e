"""The scripts of `examples/` run as they stand, at tiny sizes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="models are captured with torch")

FOLDER = Path(__file__).parent.parent.parent / "examples"

PRINTED = {
    "plan_llama": ("FSDP + AC", "tokens/s, MFU"),
    "own_model": ("DDP", "plan 'joint"),
    "how_many_devices": ("32 devices", "device-hours for 1 B tokens"),
    "own_cluster": ("RTX 4090", "graph bert-large/tiny on office"),
    "explain_plan": ("exposed communication", "runner-up"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert [word for word in PRINTED[name] if word not in out] == []


def test_every_script_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == PRINTED.keys()
