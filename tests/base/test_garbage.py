"""Circles of objects are looked for as before, once work is over."""

from __future__ import annotations

import gc

import pytest

from meshwright.base.garbage import THRESHOLDS, reduced_garbage_collection


def test_work_changes_how_often_and_leaves_it_as_it_was() -> None:
    before = gc.get_threshold()
    with reduced_garbage_collection():
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@reduced_garbage_collection()
def failing() -> None:
    raise KeyError


def test_work_that_fails_leaves_it_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError):
        failing()
    assert gc.get_threshold() == before
