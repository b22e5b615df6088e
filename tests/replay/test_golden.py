"""The comparison itself: words may change, numbers may not."""

from __future__ import annotations

import pytest

from replay import golden
from replay.record import ranges


def test_whole_words_change_all_at_once() -> None:
    mapping = {"unit": "op group", "op": "operator", "layers run again": "recomputed"}
    text = "unit 3: a united unit_1; layers run again"
    assert golden.reworded(text, mapping) == "op group 3: a united unit_1; recomputed"


def test_numbers_in_short() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2 5 7-8"


def test_a_changed_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE", raising=False)
    lines = (golden.GOLDEN / "tiny" / "mlp.txt").read_text().splitlines()
    lines = golden.reworded("\n".join(lines), golden.words()).splitlines()
    golden.compare("tiny/mlp", lines)
    with pytest.raises(AssertionError, match=r"-graph: 32 51 992\n\+graph: 33 51 992"):
        golden.compare("tiny/mlp", ["graph: 33 51 992", *lines[1:]])
