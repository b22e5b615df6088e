"""Plans on NCCL ranks that share one GPU, held against one device as the gloo runs are."""

from __future__ import annotations

import os

import pytest

from meshwright.base.quantities import Seconds
from meshwright.run.launch.ranks import Home
from support.found_plans import found_plan
from support.nccl_sample import COUNTS, SEEDS, sampled, traced
from support.proved import verdicts

pytestmark = pytest.mark.gpu

GPU = Home(gpus=1)


def without_tf32(rank: int) -> None:
    """Products and convolutions in float32 as the CPU has them, not with 10 bits of a mantissa."""
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("devices", "count"), COUNTS)
def test_random_plans_equal_one_device(devices: int, count: int, seed: int) -> None:
    wrong = [
        str(verdict)
        for verdict in verdicts(sampled(seed, devices, count), home=GPU)
        if not verdict.right
    ]
    assert not wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_random_plans_equal_one_device(seed: int) -> None:
    """What ranks compute between collectives as graphs of Inductor's."""
    drawn = sampled(seed, 4, 2)
    wrong = [
        str(verdict)
        for verdict in verdicts(drawn, home=GPU, backend="inductor")
        if not verdict.right
    ]
    assert not wrong


def test_random_plans_equal_one_device_in_single_precision() -> None:
    home = GPU._replace(enter=without_tf32)
    wrong = [
        str(verdict)
        for verdict in verdicts(sampled(9, 4, 8, "float32"), home=home)
        if not verdict.right
    ]
    assert not wrong


@pytest.mark.parametrize("sizes", [(2,), (2, 2), (2, 2, 2)])
def test_found_plans_of_all_tiny_models_equal_one_device(sizes: tuple[int, ...]) -> None:
    plans = [
        found_plan(Seconds(1.0), model, sizes, tight=number % 2 == 1)
        for number, model in enumerate(traced())
    ]
    wrong = [str(verdict) for verdict in verdicts(plans, home=GPU) if not verdict.right]
    assert not wrong
