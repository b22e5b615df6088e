"""Cluster files in TOML, read and written. Enters: TOML text with units. Leaves: a `Cluster`, or a
sentence that names the file, the key, what was given and what was expected. Writing is the inverse
of reading.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar, get_args

from msgspec import UNSET
from msgspec.structs import fields, replace

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.quantities import (
    BytesPerSecond,
    Seconds,
    parse_bandwidth,
    parse_bytes,
    parse_ops,
    parse_seconds,
)
from meshwright.cluster.cluster import Cluster, CommOverhead, Device, Duplex, Kind, Level, Link
from meshwright.cluster.device_lines import TIMES, quoted, software_lines
from meshwright.cluster.overhead import Overhead
from meshwright.cluster.rates import JudgedSteps, Rates, Software

_T = TypeVar("_T")


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster file."""
    return parse_cluster(read_cluster_text(path), str(path))


def read_cluster_text(path: str | Path) -> str:
    """What stands in a cluster file."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read cluster file {str(path)!r} ({getattr(error, 'strerror', None) or error})",
            "give the path of a readable TOML file or a name that 'meshwright clusters' lists",
        ) from None


def parse_cluster(text: str, file: str = "cluster.toml") -> Cluster:
    """Read cluster TOML that came from `file`."""
    return regular(Table(parse_toml(text, file), file, ""), file)


def parse_toml(text: str, file: str) -> dict[str, object]:
    """What TOML says."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: not valid TOML ({error})", "correct the line it names") from None
    except ValueError:
        raise InputError(
            f"{file}: a number has thousands of digits", "give a shorter one"
        ) from None
    except RecursionError:
        raise InputError(f"{file}: arrays or tables are nested too deep", "flatten them") from None


def regular(top: Table, file: str) -> Cluster:
    """A regular cluster from its table."""
    if "island" in top.content:
        raise top.error(
            "island",
            "makes it a sum of islands, and here a regular cluster is wanted",
            f"name one island of it, as {file}#NAME",
        )
    top.allow("name", "description", "source", "machine", "device", "levels")
    return top.build(
        lambda: Cluster(
            name=top.text("name", Path(file).stem),
            description=top.text("description", ""),
            source=top.text("source", ""),
            machine=top.text("machine", "") or None,
            device=device_of(top.table("device"), Path(file).parent),
            levels=tuple(level_of(level) for level in top.tables("levels")),
        )
    )


def device_of(table: Table, folder: Path) -> Device:
    """A device from its table; files of prices are found from a folder."""
    table.allow(
        "name",
        "memory",
        "memory_bandwidth",
        "peak",
        "prices",
        "toll",
        "rates",
        "fusing",
        "software",
        "overhead",
        "judged",
    )
    prices = table.text("prices", "")
    peak = table.table("peak")
    return table.build(
        lambda: Device(
            name=table.text("name"),
            memory=table.quantity("memory", parse_bytes),
            memory_bandwidth=table.quantity("memory_bandwidth", parse_bandwidth),
            peak=tuple((dtype, peak.quantity(dtype, parse_ops)) for dtype in peak.content),
            # A file is found from where the cluster's is.
            prices=str((folder / prices).resolve()) if prices.endswith(".jsonl") else prices,
            toll=_toll(table.table("toll")) if "toll" in table.content else None,
            rates=_rates(table.table("rates")) if "rates" in table.content else UNSET,
            fusing=_rates(table.table("fusing")) if "fusing" in table.content else UNSET,
            software=_software(table.table("software")) if "software" in table.content else UNSET,
            overhead=_overhead(table.table("overhead")) if "overhead" in table.content else UNSET,
            judged=_judged(table.table("judged")) if "judged" in table.content else UNSET,
        )
    )


def _rates(table: Table) -> Rates:
    names = [field.name for field in fields(Rates)]
    table.allow(*names)
    said = [name for name in names if name in table.content]
    values = {
        name: table.quantity(name, parse_seconds) if name in TIMES else table.share(name)
        for name in said
    }
    return table.build(lambda: replace(Rates(), **values))


def _software(table: Table) -> Software:
    flags = ("fuses", "flash", "wide", "joins", "adds", "scatters")
    numbers = ("hidden_exchange", "hidden_tensor", "keeps", "gradient_bytes")
    table.allow(*flags, "products", "dispatched", *numbers)
    usual = Software()
    switches = {name: table.flag(name, default=getattr(usual, name)) for name in flags}
    shares = {name: table.share(name) for name in numbers if name in table.content}
    copies = table.integer("dispatched") if "dispatched" in table.content else 0
    products = table.text("products", "")
    others = {**switches, **shares, "dispatched": copies, "products": products}
    return table.build(lambda: replace(Software(), **others))


def _toll(table: Table) -> CommOverhead:
    table.allow("message", "bandwidth")
    return table.build(
        lambda: CommOverhead(
            message=table.quantity("message", parse_seconds),
            bandwidth=table.quantity("bandwidth", parse_bandwidth),
        )
    )


def _overhead(table: Table) -> Overhead:
    table.allow("context", "communicator", "unused", "source")
    return table.build(
        lambda: Overhead(
            context=table.quantity("context", parse_bytes),
            communicator=table.quantity("communicator", parse_bytes),
            unused=table.share("unused"),
            source=table.text("source"),
        )
    )


def _judged(table: Table) -> JudgedSteps:
    table.allow("share", "steps")
    return table.build(
        lambda: JudgedSteps(share=table.share("share"), steps=table.integer("steps"))
    )


def level_of(table: Table) -> Level:
    """A level from its table."""
    table.allow("name", "cardinality", "blocks", "links")
    blocks = table.table("blocks", {})
    return table.build(
        lambda: Level(
            name=table.text("name"),
            cardinality=table.integer("cardinality"),
            blocks=tuple((name, blocks.integer(name)) for name in blocks.content),
            links=tuple(link_of(link) for link in table.tables("links")),
        )
    )


def link_of(table: Table) -> Link:
    """A link from its table."""
    table.allow(
        "name", "per", "bandwidth", "bandwidth_out", "bandwidth_in", "latency", "duplex", "kind",
        "hub", "outward",
    )  # fmt: skip
    if {"bandwidth", "bandwidth_out", "bandwidth_in"} <= table.content.keys():
        raise table.error(
            "bandwidth", "stands beside bandwidth_in and bandwidth_out", "give it or these two"
        )
    both: BytesPerSecond | None = None
    if not {"bandwidth_out", "bandwidth_in"} <= table.content.keys():
        both = table.quantity("bandwidth", parse_bandwidth)
    return table.build(
        lambda: Link(
            name=table.text("name"),
            per=table.text("per"),
            out=table.quantity("bandwidth_out", parse_bandwidth, both),
            into=table.quantity("bandwidth_in", parse_bandwidth, both),
            latency=table.quantity("latency", parse_seconds, Seconds(0.0)),
            duplex=table.one_of("duplex", get_args(Duplex), "full"),
            kind=table.one_of("kind", get_args(Kind), "port"),
            hub=table.flag("hub"),
            outward=table.flag("outward"),
        )
    )


class Table:
    """A TOML table that knows where it stands."""

    def __init__(self, content: dict[str, object], file: str, path: str) -> None:
        self.content, self._file, self._path = content, file, path

    def build(self, make: Callable[[], _T]) -> _T:
        """What `make` returns; its complaints carry the place of this table."""
        with self._at(self._path):
            return make()

    def allow(self, *keys: str) -> None:
        """Refuse all other keys, so that a misspelt one is not told as missing."""
        for key in sorted(self.content.keys() - set(keys)):
            raise self.error(key, "is not a known key", nearest(key, keys))

    def text(self, key: str, default: str | None = None) -> str:
        """A text."""
        return self._typed(key, str, "a text", default)

    def integer(self, key: str) -> int:
        """A whole number."""
        return self._typed(key, int, "a whole number", None)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        return self._typed(key, bool, "true or false", default)

    def share(self, key: str) -> float:
        """A number."""
        value: float | int = self._typed(key, (int, float), "a number", None)
        return float(value)

    def one_of(self, key: str, allowed: tuple[_T, ...], default: _T) -> _T:
        """One of some values."""
        value = self._typed(key, object, "a text", default)
        for choice in allowed:
            if choice == value:
                return choice
        known = ", ".join(map(repr, allowed))
        raise self.error(key, f"is {shown(value)}", f"expected one of {known}")

    def quantity(self, key: str, parse: Callable[[str], _T], default: _T | None = None) -> _T:
        """A text with a unit, parsed."""
        if key not in self.content and default is not None:
            return default
        text = self._typed(key, str, "a text with a unit", None)
        with self._at(self._place(key)):
            return parse(text)

    def table(self, key: str, default: dict[str, object] | None = None) -> Table:
        """A table inside of this one."""
        return Table(self._typed(key, dict, "a table", default), self._file, self._place(key))

    def tables(self, key: str) -> list[Table]:
        """An array of tables."""
        items = self._typed(key, list, f"an array of tables, [[{self._place(key)}]]", [])
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise self.error(key, f"holds {shown(item)} at {index}", "expected tables only")
        return [Table(item, self._file, f"{self._place(key)}[{i}]") for i, item in enumerate(items)]

    def _typed(
        self, key: str, kind: type[_T] | tuple[type[_T], ...], words: str, default: _T | None
    ) -> _T:
        value = self.content.get(key, default)
        if value is None:
            raise self.error(key, "is missing", f"expected {words}")
        if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
            raise self.error(key, f"is {shown(value)}", f"expected {words}")
        return value

    def _place(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def error(self, key: str, problem: str, remedy: str) -> InputError:
        """A mistake at a key."""
        return _PlacedError(f"{self._file}: {self._place(key)} {problem}", remedy)

    @contextmanager
    def _at(self, place: str) -> Iterator[None]:
        try:
            yield
        except _PlacedError:
            raise
        except InputError as error:
            where = f"{self._file}: {place}" if place else self._file
            placed = error.at(where)
            raise _PlacedError(placed.problem, placed.remedy) from None


class _PlacedError(InputError):
    """A mistake whose message already names its file and key."""


def dump_cluster(cluster: Cluster) -> str:
    """The cluster as TOML that `parse_cluster` reads back to an equal cluster.

    >>> parse_cluster(dump_cluster(Cluster.named("laptop"))) == Cluster.named("laptop")
    True
    """
    device = cluster.device
    lines = [
        f"name = {quoted(cluster.name)}",
        f"description = {quoted(cluster.description)}",
        f"source = {quoted(cluster.source)}",
        f"machine = {quoted(cluster.machine or '')}",
        "",
        "[device]",
        f"name = {quoted(device.name)}",
        f'memory = "{device.memory} B"',
        f'memory_bandwidth = "{device.memory_bandwidth!r} B/s"',
        *([f"prices = {quoted(device.prices)}"] if device.prices else []),
        "",
        "[device.peak]",
        *(f'{quoted(dtype)} = "{rate!r} FLOP/s"' for dtype, rate in device.peak),
    ]
    if device.toll is not None:
        lines += ["", "[device.toll]", f'message = "{device.toll.message!r} s"']
        lines += [f'bandwidth = "{device.toll.bandwidth!r} B/s"']
    lines += software_lines(device)
    if device.overhead is not UNSET:
        lines += ["", "[device.overhead]", f'context = "{device.overhead.context} B"']
        lines += [f'communicator = "{device.overhead.communicator} B"']
        lines += [f"unused = {device.overhead.unused!r}"]
        lines += [f"source = {quoted(device.overhead.source)}"]
    if device.judged is not UNSET:
        lines += ["", "[device.judged]", f"share = {device.judged.share!r}"]
        lines += [f"steps = {device.judged.steps}"]
    for level in cluster.levels:
        lines += ["", "[[levels]]", f"name = {quoted(level.name)}"]
        lines += [f"cardinality = {level.cardinality}"]
        if level.blocks:
            blocks = ", ".join(f"{quoted(name)} = {size}" for name, size in level.blocks)
            lines += [f"blocks = {{ {blocks} }}"]
        for link in level.links:
            lines += ["", "[[levels.links]]", *link_lines(link)]
    return "\n".join(lines) + "\n"


def link_lines(link: Link) -> list[str]:
    """A link as lines of TOML."""
    lines = [
        f"name = {quoted(link.name)}",
        f"per = {quoted(link.per)}",
        f'bandwidth_out = "{link.out!r} B/s"',
        f'bandwidth_in = "{link.into!r} B/s"',
        f'latency = "{link.latency!r} s"',
        f'duplex = "{link.duplex}"',
        f'kind = "{link.kind}"',
    ]
    lines += ["hub = true"] * link.hub + ["outward = true"] * link.outward
    return lines
