"""Measured prices that come with Meshwright: one file for each device that was calibrated."""

from __future__ import annotations

from importlib.resources import files

from meshwright.cluster.model import Device
from meshwright.price.table import PriceTable, parse_table


def shipped_table(device: Device) -> PriceTable | None:
    """The measured prices of a device of the catalogue, if it was calibrated.

    >>> from meshwright import Cluster
    >>> shipped_table(Cluster.named("gcp-v100").device) is None
    True
    """
    name = f"{device.name}.jsonl"
    file = files(__name__).joinpath(name)
    return parse_table(file.read_text(encoding="utf-8"), name) if file.is_file() else None
