"""Quantities with units: text in, plain numbers in base units out, and back to text.

Base units are bytes, seconds, bytes per second and operations per second. Decimal prefixes
(k, M, G, T, P) are powers of 1000, binary ones (Ki, Mi, Gi, Ti, Pi) of 1024; `b` is a bit and
`B` a byte, so that "100 Gb/s" and "12.5 GB/s" are the same bandwidth.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import NewType

from meshwright.base.errors import InputError, shown

Bytes = NewType("Bytes", int)
Seconds = NewType("Seconds", float)
BytesPerSecond = NewType("BytesPerSecond", float)
OpsPerSecond = NewType("OpsPerSecond", float)

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {f"{p}i": 1024.0**i for i, p in enumerate(("K", "M", "G", "T", "P"), start=1)}
_PREFIXES = _DECIMAL | _BINARY
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12}
_SMALL |= {"\N{MICRO SIGN}": 1e-6, "\N{GREEK SMALL LETTER MU}": 1e-6}

_MOST = 1e30
"""No quantity is larger, so that sums and products of quantities stay finite."""

_DATA = {p + unit: f / per for p, f in _PREFIXES.items() for unit, per in (("B", 1), ("b", 8))}
_DATA |= {f"{p}bit": f / 8 for p, f in _PREFIXES.items()}
_RATE = {f"{unit}/s": factor for unit, factor in _DATA.items()} | {
    f"{p}bps": f / 8 for p, f in _DECIMAL.items()
}
_TIME = {f"{p}s": f for p, f in _SMALL.items()} | {"min": 60.0}
_OPS = {f"{p}{unit}": f for p, f in _DECIMAL.items() for unit in ("FLOP/s", "OP/s", "FLOPS")}

# Possessive, so that a long text that does not match is refused at once.
_QUANTITY = re.compile(r"\s*+([+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][+-]?\d++)?)\s*+(\S*+)\s*")


def _parse(text: str, units: dict[str, float], kind: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(
            f"{shown(text)} is not a {kind}", f"write a number and a unit, as {example!r}"
        )
    number, unit = match.groups()
    if unit not in units:
        problem = f"the unit {shown(unit)}" if unit else "no unit"
        near = " or ".join(map(repr, _near(unit, units)))
        guess = f"did you mean {near}? Give" if near else "give"
        raise InputError(
            f"{shown(text)} has {problem}", f"{guess} a {kind} with a unit, as {example!r}"
        )
    try:
        # Through decimals, so that "5 us" is 5e-06 and not its neighbour.
        value = float(Decimal(number) * Decimal(repr(units[unit])))
    except ArithmeticError:
        value = math.inf
    if not abs(value) <= _MOST:
        raise InputError(f"{shown(text)} is out of range", f"give a {kind} such as {example!r}")
    return value


def _near(unit: str, units: Iterable[str]) -> list[str]:
    """Units that differ from what was given in their capitals, and kilo as 1000 and as 1024.

    >>> _near("KB", _DATA), _near("gb/s", _RATE)
    (['kB', 'KiB'], ['GB/s', 'Gb/s'])
    """
    folded = unit.casefold()
    near = [u for u in units if u.casefold() in (folded, re.sub("^k", "ki", folded))]
    if folded == unit:
        return near
    return [u for u in near if u[1:].removeprefix("i") == unit[1:].removeprefix("i")]


def parse_bytes(text: str) -> Bytes:
    """Bytes from text.

    >>> parse_bytes("8 GiB"), parse_bytes("1kB")
    (8589934592, 1000)
    """
    return Bytes(round(_parse(text, _DATA, "size", "8 GiB")))


def parse_bandwidth(text: str) -> BytesPerSecond:
    """Bytes per second from text.

    >>> parse_bandwidth("100 Gb/s") == parse_bandwidth("12.5 GB/s")
    True
    """
    return BytesPerSecond(_parse(text, _RATE, "bandwidth", "12.5 GB/s"))


def parse_seconds(text: str) -> Seconds:
    """Seconds from text.

    >>> parse_seconds("5 us")
    5e-06
    """
    return Seconds(_parse(text, _TIME, "time", "5 us"))


def parse_ops(text: str) -> OpsPerSecond:
    """Operations per second from text.

    >>> parse_ops("312 TFLOP/s")
    312000000000000.0
    """
    return OpsPerSecond(_parse(text, _OPS, "compute rate", "312 TFLOP/s"))


def _format(value: float, scale: dict[str, float], unit: str) -> str:
    fitting = [(f, p) for p, f in scale.items() if abs(value) >= f]
    factor, prefix = max(fitting, default=min((f, p) for p, f in scale.items()))
    return f"{value / factor:.4g} {prefix}{unit}"


def format_bytes(value: float) -> str:
    """Bytes as text; binary prefixes where they are exact, decimal ones elsewhere.

    >>> format_bytes(8 * 2**30), format_bytes(2_000_000_000), format_bytes(12)
    ('8 GiB', '2 GB', '12 B')
    """
    for prefix, factor in reversed(_BINARY.items()):
        if factor <= value < 1024 * factor and (value / factor * 16).is_integer():
            return f"{value / factor:g} {prefix}B"
    return _format(value, _DECIMAL, "B")


def format_gibibytes(value: float) -> str:
    """Bytes as a short text with a binary prefix, rounded.

    >>> format_gibibytes(7_892_000_000), format_gibibytes(3 << 20)
    ('7.35 GiB', '3 MiB')
    """
    return _format(value, {"": 1.0, **_BINARY}, "B")


def format_traffic(value: float) -> str:
    """Bytes as a short text with a decimal prefix, rounded.

    >>> format_traffic(3 << 30), format_traffic(0)
    ('3.221 GB', '0 B')
    """
    return _format(value, _DECIMAL, "B")


def format_rate(value: float) -> str:
    """A rate with three digits.

    >>> format_rate(310_674.8), format_rate(38.41), format_rate(0.25)
    ('310,675', '38.4', '0.25')
    """
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_count(value: float) -> str:
    """A large number as a short text.

    >>> format_count(335_174_458), format_count(4.474e12)
    ('335.2 M', '4.474 T')
    """
    return _format(value, _DECIMAL | {"E": 1e18}, "").rstrip()


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "program"), counted(3, "program")
    ('1 program', '3 programs')
    """
    return f"{count} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Several of a thing.

    >>> plural("node"), plural("process")
    ('nodes', 'processes')
    """
    return f"{noun}es" if noun.endswith(("s", "x")) else f"{noun}s"


def format_bandwidth(value: float) -> str:
    """Bytes per second as text.

    >>> format_bandwidth(12.5e9)
    '12.5 GB/s'
    """
    return _format(value, _DECIMAL, "B/s")


def format_seconds(value: float) -> str:
    """Seconds as text.

    >>> format_seconds(0.0123), format_seconds(4.5e-6), format_seconds(0)
    ('12.3 ms', '4.5 us', '0 s')
    """
    scale = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
    return _format(value, scale, "s") if value else "0 s"


def format_ops(value: float) -> str:
    """Operations per second as text.

    >>> format_ops(312e12)
    '312 TFLOP/s'
    """
    return _format(value, _DECIMAL, "FLOP/s")
