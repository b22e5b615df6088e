"""The constants of predicted training steps. Enters: the file that ships. Leaves: `Constants`, and
for each of them what was known before any row was seen.

A constant c has a published or expected value m and a spread s, a share: the fit (`step_fit`) pays
for log(c / m) / s, and so leaves it only where rows say so.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import msgspec


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """All that is fitted; by default what was expected beforehand."""

    best: float = 0.80
    half: float = 64.0
    odd: float = 0.27
    streaming: float = 0.85
    scanning: float = 0.60
    dispatch_s: float = 50e-6
    collective_s: float = 90e-6
    micro_batch_s: float = 1e-3
    update_bytes: float = 34.0
    nvswitch: float = 220e9
    nvswitch_latency_s: float = 4e-6
    nccl_launch_s: float = 30e-6
    nic: float = 90e9
    straggling: float = 1.10


class Known(NamedTuple):
    """What a constant means and how far from its expected value it may plausibly lie."""

    spread: float
    low: float
    high: float
    unit: str
    meaning: str


KNOWN: dict[str, Known] = {
    "best": Known(0.1, 0.5, 0.9, "", "share of 312 TFLOP/s that a large product reaches"),
    "half": Known(0.7, 8, 256, "", "extent at which a product reaches half of that"),
    "odd": Known(0.3, 0.1, 0.6, "", "share left for the odd vocabulary at tensor 1"),
    "streaming": Known(0.1, 0.6, 0.95, "", "share of 2039 GB/s, element-wise"),
    "scanning": Known(0.3, 0.3, 0.95, "", "share of 2039 GB/s, softmax and dropout"),
    "dispatch_s": Known(0.5, 5e-6, 200e-6, "s", "host, a kernel, with Python of a module"),
    "collective_s": Known(0.5, 10e-6, 400e-6, "s", "host, a collective or transfer"),
    "micro_batch_s": Known(1.0, 1e-5, 1e-2, "s", "host, a micro-batch: data, loss, schedule"),
    "update_bytes": Known(0.4, 28, 80, "B", "memory traffic of Adam, a weight"),
    "nvswitch": Known(0.1, 150e9, 300e9, "B/s", "a GPU's port, as NCCL uses it"),
    "nvswitch_latency_s": Known(0.5, 1e-6, 15e-6, "s", "a hop of a ring"),
    "nccl_launch_s": Known(0.5, 5e-6, 100e-6, "s", "starting an all-reduce"),
    "nic": Known(0.1, 40e9, 100e9, "B/s", "a node, 100 GB/s nominal"),
    "straggling": Known(0.15, 1.0, 1.3, "", "compute across nodes waits for the slowest GPU"),
}


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """Constants and the half of the embedded rows that they were fitted on."""

    seed: int
    constants: Constants


def shipped_constants() -> Shipped:
    """The constants that ship with Meshwright."""
    text = files("meshwright.validate").joinpath("data/step_constants.json").read_bytes()
    return msgspec.json.decode(text, type=Shipped)
