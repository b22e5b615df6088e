"""Where no testbed can be brought up: a sentence each."""

from __future__ import annotations

import errno
import os

import pytest
from pyroute2 import IPRoute, NetlinkError

from meshwright.base.errors import InputError
from support.bed_clusters import two_by_two
from testbed import Testbed, netlink, unavailable
from testbed.owners import NOBODY, Owner, read_name


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = "the testbed makes network namespaces, which needs root; start as root."
    assert unavailable() == said
    with pytest.raises(InputError, match=said):
        Testbed(two_by_two()).up()


def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("testbed.netlink.find_spec", lambda name: None)
    said = (
        "the testbed needs the package 'pyroute2', which is not installed; "
        'pip install "meshwright[dev]".'
    )
    assert unavailable() == said


@pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")
def test_without_token_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(route: IPRoute, *words: object, **fields: object) -> None:
        raise NetlinkError(errno.ENOENT, "Specified qdisc kind is unknown")

    monkeypatch.setattr(IPRoute, "tc", unknown, raising=False)
    said = unavailable()
    assert said is not None
    assert "the kernel refused the testbed's token buckets (tbf)" in said
    assert "Specified qdisc kind is unknown" in said
    assert not [
        it for it in map(read_name, netlink.namespaces()) if it and it.owner == Owner.this()
    ]


def test_a_namespace_that_is_gone_is_no_mistake() -> None:
    netlink.remove_namespace("meshbed-gone")
    assert netlink.processes("meshbed-gone") == []


def test_owners() -> None:
    this = Owner.this()
    assert this.lives
    assert NOBODY.lives
    assert not this._replace(started=this.started + 1).lives, "the number was used again"
    parsed = read_name(this.name("a1", "leaf0"))
    assert parsed is not None
    assert (parsed.owner, parsed.part) == (this, "leaf0")
    assert read_name("rtfab") is None
    assert read_name("meshbed-leaf0") is None
