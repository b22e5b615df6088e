"""Data sharding across ranks: which rows of a batch each rank reads. Enters: a script. Leaves:
`DataShares`: into how many parts ranks cut the samples of a batch, which part each reads, and which
rows of the batch these are.

A device reads of an input what its pieces of the operators that read it need. Devices that read the
same rows have one share, as all ranks of a tensor-parallel group or of a pipeline; with data
parallelism there are as many shares as replicas. A share's rows need not be neighbours: of each
micro-batch a replica has a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.script import Script

Rows = frozenset[int]


class DataShares(NamedTuple):
    """How ranks share a batch."""

    shares: int
    """1: every rank reads all samples."""
    own: tuple[int, ...]
    """The share of each rank."""
    rows: tuple[tuple[int, ...], ...]
    """The rows of the batch that each share has, in order."""
    cut: frozenset[str]
    """Inputs of which each rank reads its rows alone."""
    gathered: frozenset[str]
    """Others with as many rows, which ranks read whole: targets, of which a mean counts those that
    are not ignored. Of inputs that are in neither every rank gives all."""


def data_shares(script: Script) -> DataShares:
    """The shares of a plan's ranks; one where rows cannot be told apart by rank.

    All ranks have to give everything where a model branches on the data of the whole batch.
    """
    graph, machine = script.plan.graph, script.parallel.machine
    devices = [machine.coordinates(device) for device in range(script.plan.cluster.devices)]
    sizes = {tensor.name: tensor.shape[0] for tensor in graph.inputs if tensor.shape}
    read = {name: [_rows(script, name, coordinates) for coordinates in devices] for name in sizes}
    cut = {name: rows for name, rows in read.items() if _is_cut(rows, sizes[name])}
    whole = DataShares(1, (0,) * len(devices), (), frozenset(), frozenset())
    if not cut or graph.guards:
        return whole
    batch = {sizes[name] for name in cut}
    needed = [_united(cut, device) for device in range(len(devices))]
    kinds = sorted({rows for rows in needed if rows}, key=min)
    covered = sorted(row for rows in kinds for row in rows)
    even = len({len(rows) for rows in kinds}) == 1
    if len(batch) > 1 or covered != list(range(*batch)) or not even:
        return whole
    places, every = {rows: place for place, rows in enumerate(kinds)}, list(enumerate(needed))
    return DataShares(
        len(kinds),
        tuple(places[rows or needed[_nearest(devices, needed, device)]] for device, rows in every),
        tuple(tuple(sorted(rows)) for rows in kinds),
        frozenset(cut),
        frozenset(name for name, size in sizes.items() if size in batch and name not in cut),
    )


def _nearest(devices: Sequence[Coordinates], needed: Sequence[Rows], device: int) -> int:
    """The device that reads samples whose coordinates are most like those of one that reads none,
    as a later stage does: so every share has as many ranks.
    """

    def distance(other: int) -> int:
        pairs = zip(devices[device], devices[other], strict=True)
        return sum(one != two for one, two in pairs)

    return min((other for other, rows in enumerate(needed) if rows), key=distance)


def _is_cut(read: list[Rows], size: int) -> bool:
    return any(rows and len(rows) < size for rows in read)


def _united(cut: Mapping[str, list[Rows]], device: int) -> Rows:
    return Rows().union(*(rows[device] for rows in cut.values()))


def _rows(script: Script, name: str, coordinates: Coordinates) -> Rows:
    """The rows of an input that a device reads in a step."""
    parallel, rows = script.parallel, set[int]()
    graph = script.plan.graph
    for tasks in parallel.tasks:
        places = [
            (member, index)
            for member, unit_member in enumerate(tasks.unit.members)
            for index, read in enumerate(graph.named[unit_member.operator].inputs)
            if read == name
        ]
        if not places or not tasks.works(coordinates):
            continue
        for micro in range(parallel.samples.micro_batches):
            pieces = tasks.pieces(coordinates, micro)
            for member, index in places:
                box = pieces[member].inputs[index]
                if box:
                    rows.update(range(*box[0]))
    return frozenset(rows)
