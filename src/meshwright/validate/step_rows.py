"""The tables of vTrain's training iterations. Enters: a CSV file with their columns. Leaves:
checked rows, or a sentence that names the file, the line, the column and what was expected there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.units import Seconds
from meshwright.validate.megatron import MegatronSizes
from meshwright.validate.table import (
    Cells,
    embedded_table,
    parse_table,
    positive,
    read_table,
    whole,
)

NODE = 8
"""GPUs of a node."""

WHOLES = (
    "gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "sequence",
    "tensor", "data", "pipeline",
)  # fmt: skip
COLUMNS = (*WHOLES, "iteration_ms")
EMBEDDED = ("vtrain_single_node.csv", "vtrain_multi_node.csv")
MOST_MICRO_BATCHES = 4096
"""More of them than any row has; a simulation of so many takes seconds."""


class IterationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the tables: a GPT, how it is split, and what an iteration took."""

    gpus: int
    global_batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tensor: int
    data: int
    pipeline: int
    iteration_ms: float

    def __post_init__(self) -> None:
        for problem, remedy in _problems(self):
            raise InputError(problem, remedy)

    @property
    def reference_s(self) -> Seconds:
        """What the table says."""
        return Seconds(self.iteration_ms / 1e3)

    @property
    def micro_batches(self) -> int:
        """How many a pipeline, or the accumulation of gradients, works through."""
        return self.global_batch // (self.data * self.micro_batch)

    @property
    def across_nodes(self) -> bool:
        """Whether the GPUs of several nodes take part."""
        return self.gpus > NODE

    @property
    def sizes(self) -> MegatronSizes:
        """What the calls of its layers depend on."""
        return MegatronSizes(self.hidden, self.heads, self.sequence, self.tensor, self.micro_batch)

    @property
    def machine(self) -> tuple[int, ...]:
        """The model and the number of GPUs."""
        return (self.hidden, self.layers, self.heads, self.sequence, self.gpus)


def _problems(row: IterationRow) -> Iterator[tuple[str, str]]:
    """What does not fit together, with the remedy."""
    ways = row.tensor * row.data * row.pipeline
    if ways != row.gpus:
        yield (
            f"tensor {row.tensor} x data {row.data} x pipeline {row.pipeline} is {ways} GPUs",
            f"make it the {row.gpus} of column 'gpus'",
        )
    if row.gpus > NODE and row.gpus % NODE:
        yield f"gpus is {row.gpus}", f"give at most {NODE} or a multiple of {NODE}"
    if row.across_nodes and NODE % row.tensor and row.tensor % NODE:
        yield f"tensor is {row.tensor}", f"give a divisor or a multiple of {NODE}"
    if row.global_batch % (row.data * row.micro_batch):
        yield (
            f"a global batch of {row.global_batch} over data {row.data} is not made of micro "
            f"batches of {row.micro_batch}",
            f"give a multiple of {row.data * row.micro_batch}",
        )
    if row.micro_batches > MOST_MICRO_BATCHES:
        yield (
            f"an iteration has {row.micro_batches} micro-batches",
            f"give a global batch of at most {MOST_MICRO_BATCHES * row.data * row.micro_batch}",
        )
    if row.heads % row.tensor:
        yield f"{row.heads} heads are split {row.tensor} ways", f"give a multiple of {row.tensor}"
    if row.hidden % row.heads:
        yield f"hidden is {row.hidden}", f"give a multiple of the {row.heads} heads"
    if row.pipeline > row.layers:
        yield (
            f"a model of {row.layers} layers has {row.pipeline} stages",
            "give at most as many",
        )


def embedded_step_rows() -> list[IterationRow]:
    """The rows that ship with Meshwright.

    >>> len(embedded_step_rows())
    763
    """
    tables = (parse_table(embedded_table(name), name, COLUMNS, _row) for name in EMBEDDED)
    return [row for table in tables for row in table]


def load_step_rows(path: str) -> list[IterationRow]:
    """The rows of a file with the same columns."""
    rows = list(parse_table(read_table(path, COLUMNS), path, COLUMNS, _row))
    if not rows:
        raise InputError(f"{path!r} has no rows", f"give some under {', '.join(COLUMNS)}")
    return rows


def _row(cells: Cells) -> IterationRow:
    numbers = {column: whole(cells, column) for column in WHOLES}
    milliseconds = positive(cells, "iteration_ms", "milliseconds")
    return IterationRow(**numbers, iteration_ms=milliseconds)


class Straightness(msgspec.Struct, frozen=True, kw_only=True):
    """How many triples of rows that differ only in micro-batches lie on a line to 1 ns."""

    triples: int
    exact: int


def straightness(rows: Sequence[IterationRow]) -> Straightness:
    """Whether times look summed rather than taken: separate runs do not agree to a nanosecond."""
    alike: dict[IterationRow, dict[int, int]] = defaultdict(dict)
    for row in rows:
        key = msgspec.structs.replace(row, global_batch=row.data * row.micro_batch, iteration_ms=1)
        alike[key][row.micro_batches] = round(row.iteration_ms * 1e6)
    triples = exact = 0
    for found in alike.values():
        for (a, at_a), (b, at_b), (c, at_c) in combinations(sorted(found.items()), 3):
            triples += 1
            exact += abs((at_b - at_a) * (c - a) - (at_c - at_a) * (b - a)) <= c - a
    return Straightness(triples=triples, exact=exact)
