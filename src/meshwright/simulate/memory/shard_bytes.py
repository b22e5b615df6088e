"""Bytes of shards on each device: parameters, gradients, optimizer states, activations. Enters: a
problem and roles. Leaves: `ShardBytes`: for each unit what its pieces keep, hand on and need. When
is told by `memory_timeline`.

With d(u, s) how many ways the factors cut split s of unit u,
    ways(t)    = product of d over the splits that cut t: a device has bytes(t) / ways        `ways`
    copies(p)  = product of d over the splits that leave p's gradient as a pending sum, of d only
                 what cuts within the devices among which ZeRO shards
    shard(p)   = ceil(rows / copies) / rows of a piece's rows: the largest that ZeRO gives a device
    ZeRO       leaves of the optimizer's state and what is summed of gradients (1, 2) and of
               parameters (3) a shard                                  `parameter_bytes_by_source`
Gradients are added up over micro-batches whole, and summed over devices, and so cut, once a step.
A tensor that several units keep in the same layout counts once, and so do views of one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Device
from meshwright.cluster.overhead import Overhead
from meshwright.cost.memory import LIBRARY, STATES, UPDATE
from meshwright.lower.script import WHOLLY_SHARDED
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL
from meshwright.sharding.unit import SAMPLE
from meshwright.simulate.collective_table import COMPUTE
from meshwright.simulate.memory.saved_tensors import (
    FOREIGN,
    HandledTensors,
    PieceBytes,
    inventory,
    micro_ways,
    piece_bytes_cache,
    piece_bytes_of,
)
from meshwright.simulate.operator_table import MOST_SPLITS
from meshwright.simulate.problem import StepModel
from meshwright.simulate.resources import subcube
from meshwright.simulate.task_template import Bytes8, Floats
from meshwright.simulate.tasks import Flags, Ints

SIXTEEN_BITS = 2
"""Bytes of a number."""


class ResidentBytes(NamedTuple):
    """Bytes that a device holds all the time."""

    parameters: float
    optimizer: float
    inputs: float
    libraries: float


class ParameterBytes(NamedTuple):
    """Of each of some parameters, or of those that lie with each unit, the part of a device."""

    parameters: Floats
    gradients: Floats
    """Before they are summed over devices."""
    summed: Floats
    """Of gradients, afterwards."""
    optimizer: Floats
    update: Floats
    """What the optimizer holds on the way."""
    fetched: Floats
    """What comes besides when sharded parameters are put together."""


class ShardBytes:
    """What devices hold of a problem's tensors under given roles."""

    def __init__(self, problem: StepModel, roles: Codes) -> None:
        self.problem, self.roles = problem, roles
        self.inventory = inventory(problem.graph)
        self.degrees = degrees(problem, roles)
        self.shards = degrees(problem, roles, problem.rates.shards)
        """[units, splits] of the degrees the part along which ZeRO shards."""
        count = len(problem.units)
        self.kept, self.rerun = [0.0] * count, [0.0] * count
        """For each unit what it keeps from its forward to its backward pass, and what it has again
        when its layer runs again."""
        self.forward, self.backward = [0.0] * count, [0.0] * count
        """For each unit what passes inside of it, in each pass."""
        self._kept: set[int] = set()
        """The roots that some unit keeps."""
        self._weigh_pieces()
        self.lying = self._lying()

    def standing(self, units: Flags) -> ResidentBytes:
        """What a device on which these units work holds all the time."""
        return ResidentBytes(
            parameters=sum(self.lying.parameters[units].tolist()),
            optimizer=sum(self.lying.optimizer[units].tolist()),
            inputs=self._inputs,
            libraries=LIBRARY,
        )

    @property
    def passed_kept(self) -> Flags:
        """[tensors that leave a unit] whether some unit keeps it, or what it is a view of."""
        return np.isin(self.inventory.passed_root, list(self._kept))

    @cached_property
    def _inputs(self) -> float:
        """Buffers, and the share of the inputs that the samples of a device take."""
        graph, micro = self.problem.graph, self.problem.options.micro_batches
        ways = 1
        for unit, row in zip(self.problem.units, self.degrees.tolist(), strict=True):
            samples = (row[s] for s, split in enumerate(unit.splits) if split.name == SAMPLE)
            ways = max(ways, next(samples, 1))
        fed = sum(tensor.spec.bytes for tensor in graph.inputs)
        return sum(tensor.spec.bytes for tensor in graph.buffers) + fed / ways / micro

    def _lying(self) -> ParameterBytes:
        """The parameters that lie with each unit, and what belongs to them."""
        sources, count = parameters_of(self.problem), len(self.problem.units)
        unit = self.problem.template.source_maker[sources]
        each = (
            np.bincount(unit, weights=size, minlength=count)
            for size in parameter_bytes_by_source(self, sources)
        )
        return ParameterBytes(*(size.astype(np.float64) for size in each))

    def _weigh_pieces(self) -> None:
        seen: set[tuple[int, bytes]] = set()
        micro = micro_ways(self.problem.graph, self.problem.options.micro_batches)
        cut = [
            pieces(self.problem, unit, tuple(row))
            for unit, row in enumerate((self.degrees * micro).tolist())
        ]
        for unit, handled in enumerate(self.inventory.handled):
            where = self.roles[unit].tobytes()
            for member, piece in zip(handled, cut[unit], strict=True):
                if member.flows:
                    self._weigh_kept(unit, member, piece, where, seen)
        for unit, handled in enumerate(self.inventory.handled):
            for member, piece in zip(handled, cut[unit], strict=True):
                forward, backward = member_transient_bytes(member, piece, self._kept)
                self.forward[unit] = max(self.forward[unit], forward)
                self.backward[unit] = max(self.backward[unit], backward)

    def _weigh_kept(
        self,
        unit: int,
        member: HandledTensors,
        piece: PieceBytes,
        where: bytes,
        seen: set[tuple[int, bytes]],
    ) -> None:
        """Count what a member keeps: as kept, or as there again when its layer runs again."""
        again = self.problem.rates.again[unit]
        (self.rerun if again and member.extra_again else self.kept)[unit] += piece.extra
        for slot, share in piece.kept:
            root = member.root[slot]
            if root == FOREIGN or (root, where) in seen:
                continue
            seen.add((root, where))
            size = self.inventory.root_bytes[root] * share
            if again and member.again[slot]:
                self.rerun[unit] += size
            else:
                self.kept[unit] += size
                self._kept.add(root)


def member_transient_bytes(
    member: HandledTensors, piece: PieceBytes, kept: Container[int]
) -> tuple[int, int]:
    """What a member reads and makes that stays in its unit, and what it needs besides.

    In the forward pass, where what is kept does not count, and in the backward pass.
    """
    touched = {
        root: (size, read)
        for slot, root, read in member.inside
        if (size := piece.bytes[slot]) is not None
    }
    forward = sum(size for root, (size, _) in touched.items() if root not in kept)
    handed = sum(size for size, read in touched.values() if read)
    return forward, handed + piece.scratch if member.flows else 0


def devices(problem: StepModel, roles: Codes) -> Iterator[tuple[str, Flags]]:
    """Every device that stands for its class, with whether each unit works on it."""
    places = problem.places
    inside = np.zeros((len(places.kind), len(roles)), np.bool_)
    rows: dict[bytes, list[int]] = {}
    for unit, row in enumerate(roles):
        rows.setdefault(row.tobytes(), []).append(unit)
    for units in rows.values():
        cube = subcube(roles[units[0]], places.radix)
        resources = places.set_resource[places.set_start[cube] : places.set_start[cube + 1]]
        inside[resources[:, None], units] = True
    for resource in np.flatnonzero(places.kind == COMPUTE):
        yield places.names[resource], inside[resource]


def degrees(problem: StepModel, roles: Codes, along: Flags | bool = True) -> Ints:
    """[rows, splits] how many ways each of some rows of roles cuts the splits of its unit, along
    some of the factors.
    """
    sizes = np.where(along, [factor.size for factor in problem.factors], 1).astype(np.int64)
    return np.stack(
        [np.where(roles == split, sizes, 1).prod(axis=1) for split in range(MOST_SPLITS)], axis=1
    )


def communicators(roles: Codes) -> int:
    """How many groups a device talks in: one for each set of factors that cut some unit alike, and
    one for what goes between stages.

    >>> communicators(np.array([[0, 0, 1], [0, 0, -1], [2, 2, 2]], np.int8))
    3
    """
    groups = {
        tuple(f for f, other in enumerate(row) if other == role)
        for row in np.unique(roles, axis=0).tolist()
        for role in row
        if role >= 0
    }
    return len(groups) + int((roles < PARTIAL).any())


def framework(device: Device, roles: Codes, tensors: int) -> Bytes:
    """What a device holds beside so many bytes of tensors, where its description has an `Overhead`;
    one law for the simulation and for what a search estimates.
    """
    if not isinstance(device.overhead, Overhead):
        return Bytes(0)
    return device.overhead.held(tensors, communicators(roles))


def ways(states: Bytes8, degrees: Ints) -> Ints:
    """Into how many parts tensors are cut, given their states under each split and its degree."""
    counts: Ints = np.where(states >= 0, degrees, 1).prod(axis=1)
    return counts


def pieces(problem: StepModel, unit: int, cut: tuple[int, ...]) -> tuple[PieceBytes, ...]:
    """The pieces of a unit's members; equal units that are cut alike have the same.

    `cut` says for each split how many ways layouts and micro-batches cut it.
    """
    software = problem.cluster.device.running
    known, members = piece_bytes_cache(problem.graph, software), problem.units[unit].members
    key = inventory(problem.graph).kind[unit], cut
    if key not in known:
        known[key] = tuple(piece_bytes_of(member, cut, software) for member in members)
    return known[key]


def parameters_of(problem: StepModel) -> Ints:
    """The sources that are parameters, by number."""
    template = problem.template
    return np.flatnonzero(np.repeat(template.parameters, np.diff(template.source_start)))


def parameter_bytes_by_source(parts: ShardBytes, sources: Ints) -> ParameterBytes:
    """[rows] parameters and what belongs to them.

    Those that do not learn have neither gradients nor an optimizer's state.
    """
    problem, template, options = parts.problem, parts.problem.template, parts.problem.options
    unit = template.source_maker[sources]
    degrees = parts.degrees[unit]
    share = template.source_bytes[sources] / ways(template.source_there[sources], degrees)
    summed = template.leg_back[problem.joined.first_leg[sources]] == PARTIAL
    copies = np.where(summed, parts.shards[unit], 1).prod(axis=1)
    wide = share * np.maximum(1.0, 4 / problem.joined.width[sources])
    numbers, copy = (wide, wide) if options.mixed else (share, np.zeros(len(share)))
    software = problem.cluster.device.running
    held = wide if software.wide else share
    if software.gradient_bytes:
        narrow = problem.joined.width[sources] == SIXTEEN_BITS
        held = np.where(narrow, share * software.gradient_bytes / SIXTEEN_BITS, held)
    trained = template.trained[sources]
    cut = np.ones(len(share))
    if options.zero:
        rows = _rows(problem, sources, degrees)
        cut = np.where(trained, rows / -(-rows // copies), 1.0)
    return ParameterBytes(
        parameters=share / cut if options.zero == WHOLLY_SHARDED else share,
        gradients=np.where(trained, held, 0.0),
        summed=np.where(trained, held / cut, 0.0),
        optimizer=np.where(trained, (STATES[options.optimizer] * numbers + copy) / cut, 0.0),
        update=np.where(trained, UPDATE[options.optimizer] * numbers / cut, 0.0),
        fetched=share - share / cut if options.zero == WHOLLY_SHARDED else np.zeros(len(share)),
    )


def _rows(problem: StepModel, sources: Ints, degrees: Ints) -> Ints:
    """[rows] of parameters: into what the largest pieces can be cut (`lower.buckets`)."""
    shape, states = problem.joined.shape[sources], problem.template.source_there[sources]
    for split in range(states.shape[1]):
        cut_rows = np.flatnonzero(states[:, split] >= 0)
        dim = states[cut_rows, split].astype(np.int64)
        shape[cut_rows, dim] = -(-shape[cut_rows, dim] // degrees[cut_rows, split])
    first = (shape > 1).argmax(axis=1)
    rows: Ints = shape[np.arange(len(shape)), first]
    return np.where(problem.joined.stacked[sources], shape[:, :2].prod(axis=1), rows)
