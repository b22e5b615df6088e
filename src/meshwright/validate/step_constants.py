"""The constants of predicted training steps. Enters: the file that ships. Leaves: `StepConstants`,
and for each of them what to expect without looking at rows.

A constant c has an expected value m and a spread s, a share: the fit (`step_fit`) pays for
log(c / m) / s, and so leaves it only where rows say so. Published: best, odd and streaming as in
`cluster.rates`, nic is Calculon's 90 %. Of the host, of how softmax differs and of large machines
little is known: m is a guess and s is wide.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import msgspec


class StepConstants(msgspec.Struct, frozen=True, kw_only=True):
    """All that is fitted; by default what was expected beforehand."""

    best: float = 0.80
    half: float = 96.0
    odd: float = 0.27
    streaming: float = 0.85
    scanning: float = 0.85
    dispatch_s: float = 20e-6
    skew_s: float = 5e-6
    micro_batch_s: float = 2e-4
    update_bytes: float = 34.0
    nic: float = 90e9
    straggling: float = 1.02


class Known(NamedTuple):
    """What a constant means and how far from its expected value it may plausibly lie."""

    spread: float
    low: float
    high: float
    unit: str
    meaning: str


KNOWN: dict[str, Known] = {
    "best": Known(0.1, 0.5, 0.9, "", "share of 312 TFLOP/s that a large product reaches"),
    "half": Known(1.0, 8, 256, "", "extent at which a product reaches half of that"),
    "odd": Known(0.3, 0.1, 0.6, "", "share left for the odd vocabulary at tensor 1"),
    "streaming": Known(0.1, 0.6, 0.95, "", "share of 2039 GB/s, element-wise"),
    "scanning": Known(0.5, 0.3, 0.95, "", "share of 2039 GB/s, softmax and dropout"),
    "dispatch_s": Known(2.0, 5e-6, 200e-6, "s", "host, a kernel, collective or transfer"),
    "skew_s": Known(2.0, 1e-6, 100e-6, "s", "how late a GPU comes to an all-reduce"),
    "micro_batch_s": Known(2.0, 1e-5, 1e-2, "s", "host, a micro-batch: data, loss, schedule"),
    "update_bytes": Known(0.4, 28, 80, "B", "memory traffic of Adam, a weight"),
    "nic": Known(0.1, 40e9, 100e9, "B/s", "a node, 100 GB/s nominal"),
    "straggling": Known(0.3, 1.0, 1.3, "", "compute across nodes waits for the slowest GPU"),
}


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """Constants and the half of the embedded rows that they were fitted on."""

    seed: int
    constants: StepConstants


def shipped_constants() -> Shipped:
    """The constants that ship with Meshwright."""
    text = files("meshwright.validate").joinpath("data/step_constants.json").read_bytes()
    return msgspec.json.decode(text, type=Shipped)
