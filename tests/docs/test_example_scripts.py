"""The scripts of `examples/` run as they stand, at tiny sizes."""

from __future__ import annotations

import ast
import json
import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="models are captured with torch")

from meshwright.capture.load import load_model  # noqa: E402

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


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in order; what a cell ends with shows itself in a notebook."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads((FOLDER / "first_plan.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = tree.body[-1]
        exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
            shown += [value._repr_html_()] if hasattr(value, "_repr_html_") else []
        else:
            exec(compile(ast.Module([last], []), "cell", "exec"), names)
    assert len(shown) == 4
    assert "FSDP (ZeRO 3)" in shown[1]
    assert (tmp_path / "llama.json").exists()


@pytest.mark.parametrize(
    ("name", "parameters", "small"),
    [
        ("dit", 675_129_632, "depth=2&width=64&heads=4&side=8"),
        ("sdxl_unet", 2_567_463_684, "width=32&text=64&pooled=96&side=16"),
    ],
)
def test_a_model_file_is_as_large_as_published_and_is_captured(
    name: str, parameters: int, small: str
) -> None:
    path = FOLDER / "models" / f"{name}.py"
    with torch.device("meta"):
        model = runpy.run_path(str(path))["build"](1)[0]
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    captured = load_model(f"{path}:build?{small}", 2)
    assert captured.graph.loss is not None
