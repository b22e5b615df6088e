"""Hypothesis profiles: quick, or long on request (`HYPOTHESIS_PROFILE=long`); interrupts; width;
tests that need a GPU.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("long", parent=settings.get_profile("quick"), max_examples=3000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# Who starts tests in the background of a shell has them ignore interrupts, and what they start too:
# a verb that a test interrupts would then never end.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Several processes of pytest are told a width of their own, and tables are as wide as they say.
os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests that need a GPU out where there is none, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        reason = "there is no GPU: 'make gpu-test' runs these on a machine that has one"
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))
