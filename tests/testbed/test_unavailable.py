"""Where no testbed can be brought up: a sentence each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from meshwright.foundation.errors import InputError
from support.bed_clusters import two_by_two
from testbed import Testbed, unavailable
from testbed.owners import NOBODY, Owner, read_name


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = "the testbed makes network namespaces, which needs root; start as root."
    assert unavailable() == said
    with pytest.raises(InputError, match=said):
        Testbed(two_by_two()).up()


def test_without_iproute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = "the testbed needs 'ip', which is not installed; install iproute2 and procps."
    assert unavailable() == said


@pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")
def test_without_token_buckets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("ip", "sysctl", "sh"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    stand_in = tmp_path / "tc"
    stand_in.write_text('#!/bin/sh\necho "Error: Specified qdisc kind is unknown." >&2\nexit 2\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    said = unavailable()
    assert said is not None
    assert "Specified qdisc kind is unknown" in said


def test_owners() -> None:
    this = Owner.this()
    assert this.lives
    assert NOBODY.lives
    assert not this._replace(started=this.started + 1).lives, "the number was used again"
    found = read_name(this.name("a1", "leaf0"))
    assert found is not None
    assert (found.owner, found.part) == (this, "leaf0")
    assert read_name("rtfab") is None
    assert read_name("meshbed-leaf0") is None
