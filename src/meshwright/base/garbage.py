"""Python's cyclic garbage collector, made to run rarely (`gc.freeze`, thresholds)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (100_000, 50, 100)
"""Objects made before the youngest are looked at; how often these, and then those, before older."""


@contextmanager
def reduced_garbage_collection() -> Iterator[None]:
    """For work that makes millions of objects and no circles: what there is already is not looked
    at, and what it makes rarely.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
