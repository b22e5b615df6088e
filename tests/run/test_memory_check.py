"""Memory is looked at before anything is allocated."""

from __future__ import annotations

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes
from meshwright.run import memory_check as enough

CPU = torch.device("cpu")


def test_what_is_free_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enough, "available", lambda device: 3 << 30)
    enough.require_real(Bytes(3 << 30), 4, CPU)
    with pytest.raises(InputError, match=r"hold 4 GiB here, and 3 GiB are free: 1 GiB too little"):
        enough.require_real(Bytes(4 << 30), 4, CPU)


def test_where_nobody_tells_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enough, "available", lambda device: None)
    enough.require_real(Bytes(1 << 60), 4, CPU)


def test_linux_tells_what_is_free() -> None:
    free = enough.available(CPU)
    assert free is None or 0 < free < 1 << 50
