"""Plans on NCCL ranks that share one GPU, held against one device as the gloo runs are."""

from __future__ import annotations

import os
from itertools import islice

import pytest
import torch

from meshwright.base.units import Seconds
from meshwright.run.launch.ranks import Home
from support.drawn_plans import MODELS, Drawn, drawn_plans
from support.found_plans import found_plan
from support.proved import verdicts

pytestmark = pytest.mark.gpu

GPU = Home(gpus=1)


def without_tf32(rank: int) -> None:
    """Products and convolutions in float32 as the CPU has them, not with 10 bits of a mantissa."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


RECURRENT = ("nmt", "rnnlm", "rnntc")
"""PyTorch 2.11 cannot trace an LSTM that is called again with its own state."""

TRACED = tuple(own for own in MODELS if torch.__version__ >= "2.12" or own not in RECURRENT)


def sampled(seed: int, devices: int, count: int, dtype: str = "float64") -> list[Drawn]:
    drawn = drawn_plans(seed, TRACED, dtype)
    return list(islice((own for own in drawn if own.plan.cluster.devices == devices), count))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("devices", "count"), [(4, 16), (6, 2), (8, 4)])
def test_random_plans_equal_one_device(devices: int, count: int, seed: int) -> None:
    wrong = [str(own) for own in verdicts(sampled(seed, devices, count), home=GPU) if not own.right]
    assert not wrong


def test_random_plans_equal_one_device_in_single_precision() -> None:
    home = GPU._replace(enter=without_tf32)
    wrong = [str(own) for own in verdicts(sampled(9, 4, 8, "float32"), home=home) if not own.right]
    assert not wrong


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 2, 2)])
def test_found_plans_of_all_tiny_models_equal_one_device(sizes: tuple[int, ...]) -> None:
    found = [
        found_plan(Seconds(1.0), model, sizes, tight=number % 2 == 1)
        for number, model in enumerate(TRACED)
    ]
    wrong = [str(own) for own in verdicts(found, home=GPU) if not own.right]
    assert not wrong
