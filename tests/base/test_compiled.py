"""Whose changes make compiled code old: its own modules, and those of the constants it holds."""

from __future__ import annotations

import dis
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from meshwright.base import compiled
from meshwright.base.compiled import PACKAGE, _behind_compiled_code
from meshwright.search.joint.jit_warm_up import warm_up


def test_compiled_code_reads_only_constants_and_compiled_functions() -> None:
    warm_up()
    for dispatcher in compiled._DISPATCHERS:
        function = dispatcher.py_func
        known = function.__globals__
        names = {
            instruction.argval
            for instruction in dis.get_instructions(function)
            if instruction.opname == "LOAD_GLOBAL"
        }
        held = {global_name: known[global_name] for global_name in names if global_name in known}
        for name, value in held.items():
            is_constant = isinstance(value, type(dispatcher) | ModuleType) or name.isupper()
            assert is_constant or _is_library(value), f"{function.__module__}.{name}"


def _is_library(value: object) -> bool:
    module = getattr(value, "__module__", "")
    return isinstance(value, np.generic) or not module.startswith("meshwright")


def test_where_constants_come_from_counts() -> None:
    paths = {path.relative_to(PACKAGE).as_posix() for path in _behind_compiled_code()}
    assert {"simulate/assign.py", "simulate/task_template.py", "base/compiled.py"} <= paths


def test_what_is_not_compiled_does_not_count() -> None:
    paths = _behind_compiled_code()
    assert not {path for path in paths if path.relative_to(PACKAGE).parts[0] == "capture"}
    families = importlib.import_module("meshwright.graph.families.products").__file__
    assert families is not None
    assert Path(families) not in paths


def test_two_copies_of_a_text_share_compiled_code(tmp_path: Path) -> None:
    shown = "from meshwright.base import compiled; print(compiled._folder())"
    shutil.copytree(PACKAGE, tmp_path / "meshwright", ignore=shutil.ignore_patterns("*.pyc"))
    folders = {
        subprocess.run(
            [sys.executable, "-c", shown], cwd=place, capture_output=True, text=True, check=True
        ).stdout
        for place in (PACKAGE.parent, tmp_path)
    }
    assert len(folders) == 1
    changed = tmp_path / "meshwright/simulate/task_template.py"
    changed.write_text(changed.read_text() + "\nMORE = 1\n")
    anew = subprocess.run(
        [sys.executable, "-c", shown], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert anew not in folders
