"""The random plans of `make gpu-test`, by the version of PyTorch that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from support.drawn_plans import MODELS, Drawn, drawn_plans

RECURRENT = ("nmt", "rnnlm", "rnntc")
"""PyTorch 2.11 cannot trace an LSTM that is called again with its own state."""

SEEDS = range(5)
COUNTS = ((4, 16), (6, 2), (8, 4))
"""Of plans for so many devices, with each seed."""


def traced(version: str = torch.__version__) -> tuple[str, ...]:
    """The models that a PyTorch can trace."""
    return tuple(model for model in MODELS if version >= "2.12" or model not in RECURRENT)


def sampled(
    seed: int,
    devices: int,
    count: int,
    dtype: str = "float64",
    models: tuple[str, ...] | None = None,
) -> list[Drawn]:
    """Plans for so many devices; of the models that can be traced here, if none are named."""
    drawn = drawn_plans(seed, traced() if models is None else models, dtype)
    return list(
        islice((sample for sample in drawn if sample.plan.cluster.devices == devices), count)
    )


def random_plans(models: tuple[str, ...]) -> Iterator[Drawn]:
    """All that the suite runs in float64."""
    for seed in SEEDS:
        for devices, count in COUNTS:
            yield from sampled(seed, devices, count, models=models)
