"""What ranks do in tests and benchmarks of whole trainings; they import it by name."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from meshwright.plan.model import Measurement
from meshwright.run.training import Task, train


def trains_each(tasks: Sequence[Task]) -> list[Measurement]:
    """Train one task after the other; each begins with the memory that the first had."""
    found = []
    for task in tasks:
        found.append(train(task))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return found
