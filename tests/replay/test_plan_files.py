"""Plan files as they were written before are read and say what they said, or are refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from meshwright.base.errors import InputError
from meshwright.plan.file import KEY, load_plan
from meshwright.plan.plan import VERSION
from replay.golden import FOLDER, compare
from replay.record import judged_again

FILES = sorted((FOLDER / "plans").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_as_before(path: Path) -> None:
    version = msgspec.json.decode(path.read_bytes())[KEY]
    if version != VERSION:
        with pytest.raises(InputError, match=f"it has version {version}.*make it anew"):
            load_plan(path)
        return
    plan = load_plan(path)
    compare(f"plans/{path.stem}", judged_again(plan, plan.cluster.device.memory))
