"""Kernel rates and software of a device as TOML. Enters: a device. Leaves: lines of text."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import fields

from meshwright.cluster.cluster import Device
from meshwright.cluster.rates import Rates, Software

TIMES = ("launch", "dispatch")
"""The rates that are times."""


def software_lines(device: Device) -> list[str]:
    """What kernels reach, and what runs them, where it is said."""
    lines = []
    if device.rates is not UNSET:
        lines += ["", "[device.rates]", *_rate_lines(device.rates)]
    if device.fusing is not UNSET:
        lines += ["", "[device.fusing]", *_rate_lines(device.fusing)]
    if device.software is not UNSET:
        lines += ["", "[device.software]"]
        values = {field.name: getattr(device.software, field.name) for field in fields(Software)}
        lines += [f"{name} = {_told(value)}" for name, value in values.items()]
    return lines


def _told(value: bool | float | str) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case _:
            return repr(value)


def _rate_lines(rates: Rates) -> list[str]:
    lines = []
    for field in fields(rates):
        value = getattr(rates, field.name)
        if value != field.default:
            text = f'"{value!r} s"' if field.name in TIMES else repr(float(value))
            lines.append(f"{field.name} = {text}")
    return lines


def quoted(text: str) -> str:
    """A text as TOML has it."""
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return '"' + "".join(escapes.get(c, c) for c in text) + '"'
