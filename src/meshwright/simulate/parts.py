"""How many bytes of a problem's tensors each device has. Enters: a problem and roles.
Leaves: `Parts`: for each unit what its pieces keep, hand on and need. When is told by `held`.

With d(u, s) how many ways the factors cut split s of unit u,
    ways(t)    = product of d over the splits that cut t              a device has bytes(t) / ways
    copies(p)  = product of d over the splits that leave p's gradient as a pending sum
    ZeRO       divides the optimizer's state (1), gradients (2), parameters (3) by copies  `_weigh`
A tensor that several units keep in the same layout counts once, and so do views of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.graph.model import ITEM_BYTES
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import PARTIAL
from meshwright.parallelize.units import SAMPLE
from meshwright.price.memory import LIBRARY, STATES, UPDATE
from meshwright.simulate.inventory import (
    FOREIGN,
    Handled,
    Pieced,
    inventory,
    micro_ways,
    pieced,
    pieces_known,
)
from meshwright.simulate.places import subcube
from meshwright.simulate.prices import COMPUTE
from meshwright.simulate.problem import Problem
from meshwright.simulate.skeleton import Bytes8, Floats
from meshwright.simulate.tasks import Flags, Ints
from meshwright.simulate.times import MOST_SPLITS


class Standing(NamedTuple):
    """Bytes that a device holds all the time."""

    parameters: float
    optimizer: float
    inputs: float
    libraries: float


class Lying(NamedTuple):
    """For each unit its part of the parameters that lie with it, and of what belongs to them."""

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    update: Floats
    """What the optimizer holds on the way."""


class Parts:
    """What devices hold of a problem's tensors under given roles."""

    def __init__(self, problem: Problem, roles: Codes) -> None:
        self.problem, self.roles = problem, roles
        self.inventory = inventory(problem.graph)
        self.degrees = degrees(problem, roles)
        count = len(problem.units)
        self.kept, self.rerun = [0.0] * count, [0.0] * count
        """For each unit what it keeps from its forward to its backward pass, and what it has again
        when its layer runs again."""
        self.forward, self.backward = [0.0] * count, [0.0] * count
        """For each unit what passes inside of it, in each pass."""
        self._kept = [False] * len(self.inventory.root_bytes)
        """Whether some unit keeps a root."""
        self._weigh_pieces()
        self.lying = lying(problem, self.degrees)

    def devices(self) -> Iterator[tuple[str, Flags]]:
        """Every device that stands for its class, with whether each unit works on it."""
        places = self.problem.places
        inside = np.zeros((len(places.kind), len(self.roles)), np.bool_)
        rows: dict[bytes, list[int]] = {}
        for unit, own in enumerate(self.roles):
            rows.setdefault(own.tobytes(), []).append(unit)
        for units in rows.values():
            cube = subcube(self.roles[units[0]], places.radix)
            resources = places.set_resource[places.set_start[cube] : places.set_start[cube + 1]]
            inside[np.ix_(resources, units)] = True
        for resource in np.flatnonzero(places.kind == COMPUTE):
            yield places.names[resource], inside[resource]

    def standing(self, units: Flags) -> Standing:
        """What a device on which these units work holds all the time."""
        return Standing(
            parameters=sum(self.lying.parameters[units].tolist()),
            optimizer=sum(self.lying.optimizer[units].tolist()),
            inputs=self._inputs,
            libraries=LIBRARY,
        )

    @property
    def passed_kept(self) -> Flags:
        """[tensors that leave a unit] whether some unit keeps it, or what it is a view of."""
        kept = np.array([*self._kept, False], np.bool_)
        return kept[self.inventory.passed_root]

    @cached_property
    def _inputs(self) -> float:
        """Buffers, and the share of the inputs that the samples of a device take."""
        graph, micro = self.problem.graph, self.problem.options.micro_batches
        ways = 1
        for unit, row in zip(self.problem.units, self.degrees.tolist(), strict=True):
            samples = (row[s] for s, own in enumerate(unit.splits) if own.name == SAMPLE)
            ways = max(ways, next(samples, 1))
        fed = sum(tensor.spec.bytes for tensor in graph.inputs)
        return sum(tensor.spec.bytes for tensor in graph.buffers) + fed / ways / micro

    def _weigh_pieces(self) -> None:
        seen: set[tuple[int, bytes]] = set()
        cut = pieces(self.problem, self.degrees)
        for unit, handled in enumerate(self.inventory.handled):
            where = self.roles[unit].tobytes()
            for own, piece in zip(handled, cut[unit], strict=True):
                if own.flows:
                    self._weigh_kept(unit, own, piece, where, seen)
        for unit, handled in enumerate(self.inventory.handled):
            for own, piece in zip(handled, cut[unit], strict=True):
                self._weigh_passing(unit, own, piece)

    def _weigh_kept(
        self, unit: int, own: Handled, piece: Pieced, where: bytes, seen: set[tuple[int, bytes]]
    ) -> None:
        """Count what a member keeps: as kept, or as there again when its layer runs again."""
        again = self.problem.options.recompute
        (self.rerun if again and own.extra_again else self.kept)[unit] += piece.extra
        for slot, share in piece.kept:
            root = own.root[slot]
            if root == FOREIGN or (root, where) in seen:
                continue
            seen.add((root, where))
            size = self.inventory.root_bytes[root] * share
            if again and own.again[slot]:
                self.rerun[unit] += size
            else:
                self.kept[unit] += size
                self._kept[root] = True

    def _weigh_passing(self, unit: int, own: Handled, piece: Pieced) -> None:
        """Count what a member reads and makes that stays in its unit, and what it needs besides."""
        touched = {
            root: (size, read)
            for slot, root, read in own.inside
            if (size := piece.bytes[slot]) is not None
        }
        there = sum(size for root, (size, _) in touched.items() if not self._kept[root])
        self.forward[unit] = max(self.forward[unit], there)
        if own.flows:
            handed = sum(size for size, read in touched.values() if read)
            self.backward[unit] = max(self.backward[unit], handed + piece.scratch)


def degrees(problem: Problem, roles: Codes) -> Ints:
    """[rows, splits] how many ways each of some rows of roles cuts the splits of its unit."""
    sizes = np.array([factor.size for factor in problem.factors], np.int64)
    return np.stack(
        [np.where(roles == split, sizes, 1).prod(axis=1) for split in range(MOST_SPLITS)], axis=1
    )


def ways(states: Bytes8, degrees: Ints) -> Ints:
    """Into how many parts tensors are cut, given their states under each split and its degree."""
    return np.where(states >= 0, degrees, 1).prod(axis=1)


def pieces(problem: Problem, degrees: Ints) -> list[tuple[Pieced, ...]]:
    """The pieces of every unit's members; equal units that are cut alike have the same."""
    known = pieces_known(problem.graph)
    cut = (degrees * micro_ways(problem.graph, problem.options.micro_batches)).tolist()
    found = []
    for unit, kind, row in zip(problem.units, problem.times.type.tolist(), cut, strict=True):
        key = kind, tuple(row[: len(unit.splits)])
        if key not in known:
            known[key] = tuple(pieced(member, key[1]) for member in unit.members)
        found.append(known[key])
    return found


def lying(problem: Problem, degrees: Ints) -> Lying:
    """The parameters of all units, and what belongs to them."""
    bones, options, count = problem.bones, problem.options, len(problem.units)
    kept = np.repeat(bones.parameters, np.diff(bones.source_start))
    leg = np.full(len(kept), -1, np.int64)
    leg[bones.leg_source[::-1]] = np.arange(len(bones.leg_source))[::-1]
    unit, leg = bones.source_maker[kept], leg[kept]
    own = bones.source_bytes[kept] / ways(bones.source_there[kept], degrees[unit])
    summed = bones.leg_back[leg] == PARTIAL
    copies = np.where(summed, degrees[unit], 1).prod(axis=1)
    width = [
        ITEM_BYTES[problem.graph.specs[source.name].dtype]
        for bundle in problem.bundles
        if bundle.parameters
        for source in bundle.sources
    ]
    wide = own * np.maximum(1.0, 4 / np.array(width, np.float64))
    numbers, copy = (wide, wide) if options.mixed else (own, np.zeros(len(own)))
    trained = bones.trained[kept]

    def total(size: Floats, least: int, which: Flags) -> Floats:
        shared = size / (copies if options.zero >= least else 1)
        return np.bincount(unit[which], weights=shared[which], minlength=count)

    return Lying(
        parameters=total(own, 3, np.ones(len(own), np.bool_)),
        gradients=total(own, 2, trained),
        optimizer=total(STATES[options.optimizer] * numbers + copy, 1, trained),
        update=total(UPDATE[options.optimizer] * numbers, 1, trained),
    )
