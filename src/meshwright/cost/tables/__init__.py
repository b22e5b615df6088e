"""Operator pricer of a device, from the profile table that it names. Enters: a device. Leaves: the
table that it names, a pricer by it.

Tables of devices that we calibrated come with Meshwright, in this folder.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from msgspec.structs import replace

from meshwright.base.errors import InputError, nearest
from meshwright.cluster.cluster import Device
from meshwright.cluster.rates import Software
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.profile_table import PriceTable, load_table, parse_table


def pricer_of(device: Device) -> OperatorPricer:
    """Prices calls by what was measured on a device if it says so, else by its roofline. What was
    measured holds for PyTorch's own kernels, not where others run.

    >>> from meshwright import Cluster
    >>> pricer_of(Cluster.named("gcp-v100").device).estimates
    True
    >>> pricer_of(Cluster.named("h200").device).estimates
    False
    """
    file = Path(device.prices)
    return _pricer(device, file.stat().st_mtime_ns if _is_file(device) and file.exists() else 0)


@lru_cache(maxsize=4)
def _pricer(device: Device, changed: int) -> OperatorPricer:
    return OperatorPricer(device, table_of(device) if is_measured(device) else None)


def is_measured(device: Device) -> bool:
    """Whether a device is priced by what was measured on it, not by rates.

    >>> from meshwright import Cluster
    >>> is_measured(Cluster.named("h200").device), is_measured(Cluster.named("dgx-h200").device)
    (True, False)
    """
    return bool(device.prices) and replace(device.running, wide=False) == Software()


def table_of(device: Device) -> PriceTable | None:
    """The measured prices that a device names; None if it names none."""
    if not device.prices:
        return None
    return load_table(device.prices) if _is_file(device) else _shipped(device.prices)


def _is_file(device: Device) -> bool:
    return device.prices.endswith(".jsonl")


def _shipped(name: str) -> PriceTable:
    folder = files(__name__)
    known = [path.name[:-6] for path in folder.iterdir() if path.name.endswith(".jsonl")]
    if name not in known:
        raise InputError(
            f"no measured prices {name!r} come with Meshwright",
            f"{nearest(name, known)}; or name a .jsonl file that 'meshwright calibrate' wrote",
        )
    return parse_table(folder.joinpath(f"{name}.jsonl").read_text(encoding="utf-8"), name)
