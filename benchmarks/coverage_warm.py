"""Imported by the server that `coverage_stages` forks processes from: makes a plan, so that its
compiled code is there in all of them.
"""

from __future__ import annotations

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import meshwright.run.training  # noqa: F401
from coverage_stages import planned

with redirect_stdout(StringIO()), tempfile.TemporaryDirectory() as folder:
    planned("zoo:lenet/tiny", Path(folder) / "plan.json")
