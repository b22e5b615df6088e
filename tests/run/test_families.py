"""Models of uncommon operators on real ranks: random plans give the numbers of one device."""

from __future__ import annotations

from itertools import islice

import pytest

from support.drawn_plans import drawn_plans
from support.proved import verdicts

pytestmark = pytest.mark.ranks

MODELS = tuple(
    f"support.family_models:{name}" for name in ("mixture", "spectral", "metric", "shuffled")
)


def test_random_plans_equal_one_device() -> None:
    drawn = (
        candidate for candidate in drawn_plans(1, MODELS) if candidate.plan.cluster.devices == 4
    )
    for verdict in verdicts(list(islice(drawn, 6))):
        assert verdict.strict, str(verdict)
