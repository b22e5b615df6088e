"""Bytes of a unit under many layouts, without a timeline. Enters: a problem, a unit, the roles of
layouts. Leaves: for each layout what the unit adds to a device, so that sums over the units of a
device come near to what `held` finds on it.

For unit u under a layout, with w in flight (micro-batches between their passes), let
    P, G, S, U   its part of parameters, their gradients, the optimizer's state, the update's
    K            what its members keep of one micro-batch                               `unit_parts`
    R            what its layer has again when it runs again, which one layer of a device does at a
                 time: a share of it for each layer of the device
Then u adds, always and at the fullest moment,
    standing = P + S,       kept = max(K + R, G + U)     with one micro-batch: gradients come as
                                                         what was kept goes
    standing = P + S + G,   kept = max(w K + R, U)       with several                   `unit_bytes`
A tensor that several units keep counts with the first of them, as if all had its layout. While u
runs there pass besides, and only then, at most
    max(what it reads, makes and hands on that nobody keeps, gradients of what it made and reads and
        what its backward pass needs)                                                 `unit_passing`
Summed over the units of a device, standing + kept and the largest of what passes are about what it
holds. Given all layouts one can do better: in the last backward pass, when it is at u, what units up
to u keep is there, the gradients of u and those behind it, and what passes at u  `held_by_roles`.
Inputs, buffers and libraries are not counted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.foundation.once import once
from meshwright.graph.layers import layers
from meshwright.graph.model import OperatorGraph
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import PARTIAL
from meshwright.parallelize.units import units
from meshwright.plan.model import Options
from meshwright.simulate.inventory import FOREIGN, inventory, micro_ways, pieced
from meshwright.simulate.parts import (
    Lying,
    degrees,
    devices,
    lying_each,
    parameters_of,
    passing_inside,
    pieces,
    ways,
)
from meshwright.simulate.problem import Problem
from meshwright.simulate.schedule import order
from meshwright.simulate.skeleton import NONE, Bytes8, Floats
from meshwright.simulate.tasks import Flags, Indices, Ints


class UnitParts(NamedTuple):
    """What a unit has on a device, for each of some layouts."""

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    update: Floats
    kept: Floats
    """Of one micro-batch."""
    rerun: Floats
    """What its layer has again, as a share of it for each layer of the device."""


def unit_bytes(
    problem: Problem, unit: int, roles: Codes, in_flight: int = 1
) -> tuple[Floats, Floats]:
    """[layouts] what stands, and what is there at the fullest moment besides."""
    own = unit_parts(problem, unit, roles)
    standing = own.parameters + own.optimizer
    if problem.options.micro_batches == 1:
        return standing, np.maximum(own.kept + own.rerun, own.gradients + own.update)
    return standing + own.gradients, np.maximum(in_flight * own.kept + own.rerun, own.update)


def unit_parts(problem: Problem, unit: int, roles: Codes) -> UnitParts:
    """[layouts] what a unit has on a device under the roles [layouts, factors]."""
    cut = degrees(problem, roles)
    sources = parameters_of(problem)
    sources = sources[problem.bones.source_maker[sources] == unit]
    lying = lying_each(problem, np.repeat(sources, len(cut)), np.tile(cut, (len(sources), 1)))
    lies = Lying(*(size.reshape(len(sources), len(cut)).sum(axis=0) for size in lying))
    distinct, which = np.unique(
        cut * micro_ways(problem.graph, problem.options.micro_batches)[unit],
        axis=0,
        return_inverse=True,
    )
    kept = np.array([_kept(problem, unit, tuple(row)) for row in distinct.tolist()]).reshape(-1, 2)
    kept, rerun = kept[which.ravel()].T
    return UnitParts(**lies._asdict(), kept=kept, rerun=rerun / _layers_here(problem, unit, roles))


def unit_passing(problem: Problem, unit: int, roles: Codes) -> Floats:
    """[layouts] what only passes while a unit runs, under the roles [layouts, factors]."""
    cut, bones, known = degrees(problem, roles), problem.bones, inventory(problem.graph)
    passed = len(known.passed_root)
    kept = np.isin(known.passed_root, list(_first_keepers(problem.graph)))
    made = np.flatnonzero(bones.maker[:passed] == unit)
    legs = np.flatnonzero(bones.leg_unit[: bones.leg_start[passed]] == unit)
    read = bones.leg_source[legs]
    new = made[~kept[made] & ~known.passed_view[made]]
    there = _total(problem, new, bones.source_there[new], cut)
    came = ~kept[read]
    there += _total(problem, read[came], bones.leg_there[legs[came]], cut)
    back = np.zeros(len(cut))
    if bones.flows[unit]:
        returning = made[(bones.source_back[made] != NONE).any(axis=1)]
        flows = bones.leg_flows[legs]
        back += _total(problem, returning, bones.source_there[returning], cut)
        back += _total(problem, read[flows], bones.leg_there[legs[flows]], cut)
    rows = (cut * micro_ways(problem.graph, problem.options.micro_batches)[unit]).tolist()
    inside = np.array([_inside(problem, unit, tuple(row)) for row in rows]).reshape(-1, 2)
    most: Floats = np.maximum(there + inside[:, 0], back + inside[:, 1])
    return most


def _total(problem: Problem, sources: Ints | Indices, states: Bytes8, cut: Ints) -> Floats:
    """[layouts] bytes of some tensors together, each in its states under a unit's splits."""
    sizes = problem.bones.source_bytes[sources]
    total = np.zeros(len(cut))
    for size, own in zip(sizes, states, strict=True):
        total += size / ways(own, cut)
    return total


def _inside(problem: Problem, unit: int, cut: tuple[int, ...]) -> tuple[int, int]:
    """The most that passes inside of a unit in each pass, cut so many ways."""
    handled, kept = inventory(problem.graph).handled[unit], _first_keepers(problem.graph)
    members = zip(handled, pieces(problem, unit, cut), strict=True)
    found = [passing_inside(own, piece, kept) for own, piece in members]
    return max(there for there, _ in found), max(back for _, back in found)


def _kept(problem: Problem, unit: int, cut: tuple[int, ...]) -> tuple[float, float]:
    """What a unit keeps, and what it has again, cut so many ways."""
    known, again = inventory(problem.graph), problem.options.recompute
    first, seen = _first_keepers(problem.graph), set[int]()
    kept = rerun = 0.0
    for own, piece in zip(known.handled[unit], pieces(problem, unit, cut), strict=True):
        if not own.flows:
            continue
        sizes: list[tuple[float, bool]] = [(piece.extra, again and own.extra_again)]
        for slot, share in piece.kept:
            root = own.root[slot]
            if root != FOREIGN and first[root] == unit and root not in seen:
                seen.add(root)
                sizes.append((known.root_bytes[root] * share, again and own.again[slot]))
        kept += sum(size for size, back in sizes if not back)
        rerun += sum(size for size, back in sizes if back)
    return kept, rerun


@once
def _first_keepers(graph: OperatorGraph) -> dict[int, int]:
    """For each root that is kept the first unit that does."""
    found: dict[int, int] = {}
    for number, (unit, handled) in enumerate(
        zip(units(graph), inventory(graph).handled, strict=True)
    ):
        for member, own in zip(unit.members, handled, strict=True):
            whole = pieced(member, (1,) * len(unit.splits))
            for slot, _ in whole.kept:
                found.setdefault(own.root[slot], number)
    return found


def _layers_here(problem: Problem, unit: int, roles: Codes) -> Floats:
    """[layouts] how many copies of a unit's layer a device has, if stages have equally many."""
    sizes = np.array([factor.size for factor in problem.factors], np.int64)
    stages = np.where(roles < PARTIAL, sizes, 1).prod(axis=1)
    found: Floats = np.maximum(1.0, _copies(problem.graph)[unit] / stages)
    return found


@once
def _copies(graph: OperatorGraph) -> Ints:
    """[units] of how many layers that repeat a unit's is one; 1 if of none."""
    count = {
        graph.operators[position].name: repeat.count
        for repeat in layers(graph)
        for position in range(repeat.start, repeat.stop)
    }
    return np.array([count.get(unit.name, 1) for unit in units(graph)], np.int64)


def held_by_roles(problem: Problem, roles: Codes) -> Floats:
    """[devices] about what each device holds, under the roles [units, factors].

    Stages are sets of devices in the order of the graph, as in `stages`.
    """
    rows = range(len(roles))
    found = [unit_parts(problem, unit, roles[unit : unit + 1]) for unit in rows]
    own = UnitParts(*(np.concatenate(column) for column in zip(*found, strict=True)))
    passing = np.array([unit_passing(problem, unit, roles[unit : unit + 1])[0] for unit in rows])
    others = own.kept * (_flights(problem.options, roles) - 1.0)
    staying = own.parameters + own.optimizer + own.rerun + others
    alone = problem.options.micro_batches == 1
    return np.array(
        [
            staying[units].sum() + _walked(own, passing, units, alone)
            for _, units in devices(problem, roles)
        ]
    )


def _walked(own: UnitParts, passing: Floats, units: Flags, alone: bool) -> float:
    """The fullest moment of the last micro-batch on a device; it is `alone` if the only one."""
    if not units.any():
        return 0.0
    gradients = own.gradients[units]
    there = np.cumsum(gradients[::-1])[::-1] if alone else gradients.sum()
    walking = np.cumsum(own.kept[units]) + there + passing[units]
    return float(max(walking.max(), gradients.sum() + own.update[units].sum()))


def _flights(options: Options, roles: Codes) -> list[int]:
    """For each unit how many micro-batches its stage has in flight."""
    where = [np.where(own < PARTIAL, own, 0).tobytes() for own in roles]
    stages = {stage: number for number, stage in enumerate(dict.fromkeys(where))}
    runs = 1 + sum(before != after for before, after in pairwise(where))
    chunks = runs // len(stages) if options.schedule == "interleaved" else 1
    waiting = [
        in_flight(options, len(stages), stage, max(1, chunks)) for stage in range(len(stages))
    ]
    return [waiting[stages[own]] for own in where]


def in_flight(options: Options, stages: int, stage: int, chunks: int = 1) -> int:
    """How many micro-batches a stage has between their passes at most, in each of its chunks.

    >>> [in_flight(Options(micro_batches=8), 4, stage) for stage in range(4)]
    [4, 3, 2, 1]
    """
    most = 0
    waiting = [0] * chunks
    for slot in order(options.schedule, stages, stage, options.micro_batches, chunks):
        waiting[slot.chunk] += 1 if slot.pass_ == "forward" else -1
        most = max(most, sum(waiting))
    return -(-most // chunks)
