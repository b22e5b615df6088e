"""Whose changes make compiled code old: everything that its modules load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from meshwright.foundation.compiled import PACKAGE, _behind_compiled_code

LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*(own.__file__ for name, own in sys.modules.items() if name.startswith("meshwright.")))
"""


def test_all_that_is_loaded_counts() -> None:
    found = _behind_compiled_code()
    names = [
        ".".join(own.relative_to(PACKAGE.parent).with_suffix("").parts)
        for own in found
        if own.name != "__init__.py"
    ]
    printed = subprocess.run(
        [sys.executable, "-c", LOADED, *names], capture_output=True, text=True, check=True
    ).stdout
    loaded = {Path(own) for own in printed.split()}
    assert {own for own in loaded if own.name != "__init__.py"} <= found


def test_what_needs_no_compiled_code_does_not_count() -> None:
    found = {own.relative_to(PACKAGE).parts[0] for own in _behind_compiled_code()}
    assert "simulate" in found
    assert found.isdisjoint({"cli", "report", "run", "validate"})
