"""Files are written whole or not at all, and nothing is left of those that are not."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.base.files import write_atomically


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plan.json").write_bytes(b"old")

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"cannot write .*plan.json.* \(No space left on device\)"):
        write_atomically(tmp_path / "plan.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_bytes() == b"old"
