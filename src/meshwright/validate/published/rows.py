"""The table of published training steps. Enters: a CSV file with its columns. Leaves: a
`PublishedRow` for each line, with what could not be read as None.

A line is never refused: what it lacks is found where it is needed, and told there.
"""

from __future__ import annotations

import csv
import io
import math

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.validate.csv_table import embedded_table, read_table

TABLES = {"published": "steps_published.csv", "vtrain": "steps_vtrain.csv"}
"""Those that ship with Meshwright. vTrain's stands apart: most of its rows look simulated, and no
rate is fitted to any."""
NEEDED = ("source", "model", "gpu", "gpus")
OOM = "oom"
GIBIBYTES = "torchtitan"
"""The sources that give memory in GiB begin so; all others give GB."""


class PublishedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One published training step with its configuration."""

    source: str
    model: str
    gpu: str
    dtype: str
    recompute: str
    compile: str
    zero: str
    note: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq: int | None
    gpus: int | None
    tp: int | None
    pp: int | None
    vp: int | None
    cp: int | None
    ep: int | None
    dp: int | None
    micro_batch: int | None
    global_batch: int | None
    measured_s: Seconds | None
    """Seconds of one optimizer step."""
    measured_bytes: Bytes | None
    """Peak memory of a device."""
    failed: bool
    """Whether it ran out of memory."""

    @property
    def origin(self) -> str:
        """The source without its date and revision: what was measured by the same people."""
        name = self.source.split(" @")[0]
        words = [word for word in name.split() if not word[:1].isdigit() and word[:2] != "v5"]
        return " ".join(words[:3])


WHOLES = (
    "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "gpus", "tp", "pp", "vp", "cp",
    "ep", "dp", "micro_batch", "global_batch",
)  # fmt: skip
TEXTS = ("source", "model", "gpu", "dtype", "recompute", "compile", "zero", "note")


def load_published(table: str = "published") -> list[PublishedRow]:
    """The rows of a table that ships with Meshwright, or of a file with the same columns.

    >>> len(load_published()), len(load_published("vtrain"))
    (433, 763)
    """
    if table in TABLES:
        return parse_published(embedded_table(TABLES[table]), TABLES[table])
    return parse_published(read_table(table, NEEDED), table)


def parse_published(text: str, file: str) -> list[PublishedRow]:
    """The rows of a text; `file` is what it is called in sentences."""
    try:
        reader = csv.DictReader(io.StringIO(text))
        missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
        records = [] if missing else list(reader)
    except csv.Error as error:
        raise InputError(f"{file}: not valid CSV ({error})", "correct that line") from None
    if missing:
        raise InputError(f"{file}: there is no column {missing[0]!r}", "add it to the first line")
    return [_row({key: (value or "").strip() for key, value in record.items()
                  if isinstance(key, str) and not isinstance(value, list)})
            for record in records]  # fmt: skip


def _row(cells: dict[str, str]) -> PublishedRow:
    wholes = {name: _whole(cells.get(name, "")) for name in WHOLES}
    source = cells.get("source", "")
    memory = cells.get("peak_memory_gb", "")
    failed = OOM in (cells.get("value", "").lower(), memory.lower())
    unit = 2**30 if source.startswith(GIBIBYTES) else 10**9
    held = _number(memory)
    step = _step(cells, wholes["gpus"], wholes["seq"], wholes["global_batch"])
    return msgspec.convert(
        {name: cells.get(name, "") for name in TEXTS}
        | wholes
        | {
            "measured_s": None if failed else step,
            "measured_bytes": None if held is None else round(held * unit),
            "failed": failed,
        },
        PublishedRow,
    )


def _step(
    cells: dict[str, str], gpus: int | None, seq: int | None, batch: int | None
) -> Seconds | None:
    """Seconds of a step, as given or by throughput."""
    stated = _number(cells.get("step_s_if_derivable", ""))
    if stated is not None:
        return Seconds(stated)
    value, metric = _number(cells.get("value", "")), cells.get("metric", "")
    if value is None:
        return None
    if metric == "step_s":
        return Seconds(value)
    if batch is None:
        return None
    if metric == "samples_per_s":
        return Seconds(batch / value)
    if seq is not None and metric == "tokens_per_s":
        return Seconds(batch * seq / value)
    if seq is not None and gpus is not None and metric == "tokens_per_s_per_gpu":
        return Seconds(batch * seq / (value * gpus))
    return None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None or number != int(number) else int(number)


def _number(text: str) -> float | None:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value > 0 and math.isfinite(value) else None
