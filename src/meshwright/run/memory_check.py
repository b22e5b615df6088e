"""The memory check before a run. Enters: what a plan was predicted to hold. Leaves: nothing, or a
sentence before anything is allocated. It does not know how memory was predicted.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, counted, format_gibibytes
from meshwright.plan.plan import Plan, Prediction

REMEDY = (
    "plan for more devices, a smaller batch or less memory ('meshwright plan' then shards the "
    "optimizer, runs layers again or pipelines)"
)


def require_planned(plan: Plan, prediction: Prediction) -> None:
    """A plan runs only if its fullest device was predicted to have enough memory."""
    if prediction.missing:
        raise InputError(
            f"the plan is predicted to hold {format_gibibytes(prediction.memory.total)} on "
            f"{prediction.memory.device}, and a device of cluster {plan.cluster.name!r} has "
            f"{format_gibibytes(plan.cluster.device.memory)}: "
            f"{format_gibibytes(prediction.missing)} too little",
            REMEDY,
        )


def require_real(needed: Bytes, ranks: int, device: torch.device) -> None:
    """The memory that is there now must be enough for ranks that share it.

    >>> require_real(Bytes(2**62), 4, torch.device("cpu"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    meshwright.base.errors.InputError: 4 ranks are predicted to hold ...
    """
    free = available(device)
    if free is not None and needed > free:
        where = "here" if device.type == "cpu" else f"on {device}"
        raise InputError(
            f"{counted(ranks, 'rank')} are predicted to hold {format_gibibytes(needed)} {where}, "
            f"and {format_gibibytes(free)} are free: {format_gibibytes(needed - free)} too little",
            f"free some, or {REMEDY}",
        )


def available(device: torch.device) -> int | None:
    """Bytes that can be had now: of the GPU, or of this machine if the device is a CPU."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    try:
        match = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None
