"""Exposed communication and utilisation. Enters: a `Simulation` and its critical path. Leaves: a
line for each kind of link, each kind of operator, each collective.

    seconds    of all tasks of a step; where tasks overlap they count by themselves
    exposed    what of the critical path (`path_breakdown`) goes to the same: what a step would be
               shorter by, if it took no time and nothing else came in its place
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from meshwright.base.quantities import Bytes, Seconds
from meshwright.cluster.cluster import Cluster, Link
from meshwright.collectives import dsl
from meshwright.explain.critical_path import PathPiece
from meshwright.explain.path_breakdown import PathPart, by_category, dealt, purpose, stretches
from meshwright.explain.utilisation import is_op_group_pass, occupancies
from meshwright.graph.counts import backward, forward
from meshwright.sharding.reshard import ALL_REDUCE, NAMES
from meshwright.sharding.unit import Member
from meshwright.simulate.collective_implementations import CollectiveWay
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.host import LAUNCH
from meshwright.simulate.listed_collectives import moves, ways_by_level
from meshwright.simulate.memory.shard_bytes import degrees
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import Simulation


class LinkCost(msgspec.Struct, frozen=True):
    """What goes through the busiest link of a kind."""

    link: str
    """With its level, as "node/nic"."""
    bytes: Bytes
    """That it could send in the time for which it is busy."""
    seconds: Seconds = msgspec.field(name="busy_s")
    """For which it is busy."""
    share: float
    """Of the step."""
    exposed: Seconds = msgspec.field(name="exposed_s")
    """What the step waits for it, latencies not counted."""


class KindCost(msgspec.Struct, frozen=True):
    """What the operators of one kind take, both passes."""

    kind: str
    operators: int
    seconds: Seconds = msgspec.field(name="predicted_s")
    """On a device that runs them, over all micro-batches."""
    share: float
    """Of what all operators take."""
    roofline: float
    """What they would take at the peak rates of the device, as a share of what they take."""
    exposed: Seconds = msgspec.field(name="exposed_s")


class CollectiveCost(msgspec.Struct, frozen=True):
    """What a collective takes that runs, for the same purpose, several times in a step."""

    operation: str
    over: str
    """How many members of which level."""
    bytes: float
    """That each member holds."""
    purpose: str
    program: str | None
    """Of a sum that all members get; none for other collectives."""
    link: str
    """Which paces it."""
    times: int
    seconds: Seconds = msgspec.field(name="predicted_s")
    """All times together."""
    exposed: Seconds = msgspec.field(name="exposed_s")


def link_costs(simulation: Simulation, path: Sequence[PathPiece]) -> tuple[LinkCost, ...]:
    """Every kind of link, the busiest first."""
    links, waited = _links(simulation.plan.cluster), by_category(stretches(simulation, path))
    costs = [
        LinkCost(
            occupancy.kind,
            Bytes(round(occupancy.busiest * links[occupancy.kind].out)),
            occupancy.busiest,
            occupancy.busiest_share,
            waited.get(occupancy.kind, Seconds(0.0)),
        )
        for occupancy in occupancies(simulation)
        if occupancy.kind in links
    ]
    return tuple(sorted(costs, key=lambda cost: -cost.seconds))


def _links(cluster: Cluster) -> dict[str, Link]:
    return {f"{level.name}/{link.name}": link for level in cluster.levels for link in level.links}


class _Pass(NamedTuple):
    """What one member of a unit takes in one pass of one micro-batch."""

    kind: str
    seconds: float
    ideal: float


def kind_costs(simulation: Simulation, path: Sequence[PathPiece]) -> tuple[KindCost, ...]:
    """Every kind of operator, the costliest first."""
    problem, labels = simulation.problem, simulation.problem.labels
    passes = _passes(problem)

    def parts(piece: PathPiece) -> list[tuple[str, float]]:
        unit_passes = passes.get((labels.kind[piece.task], labels.subject[piece.task]), ())
        return [(each.kind, each.seconds) for each in unit_passes]

    waited, micro = dealt(path, parts), problem.options.micro_batches
    spent: dict[str, list[_Pass]] = {}
    for members in passes.values():
        for each in members:
            spent.setdefault(each.kind, []).append(each)
    total = micro * math.fsum(each.seconds for alike in spent.values() for each in alike)
    costs = []
    for kind, kind_passes in spent.items():
        seconds = micro * math.fsum(each.seconds for each in kind_passes)
        if seconds:
            roofline = micro * math.fsum(each.ideal for each in kind_passes) / seconds
            count = sum(op.kind == kind for op in problem.graph.operators)
            exposed = _seconds(waited.get(kind))
            share = seconds / total
            costs.append(KindCost(kind, count, Seconds(seconds), share, roofline, exposed))
    return tuple(sorted(costs, key=lambda cost: -cost.seconds))


def _passes(problem: StepModel) -> dict[tuple[str, int], tuple[_Pass, ...]]:
    """The members of every unit, in each pass of one micro-batch."""
    micro, passes = problem.options.micro_batches, {}
    for unit, row in enumerate(degrees(problem, problem.roles).tolist()):
        group = problem.units[unit]
        cut = {s: row[s] * group.micro_ways(s, micro) for s in range(len(group.splits))}
        both = [_both(problem, member, cut) for member in group.members]
        again = problem.rates.again[unit]
        passes["forward", unit] = tuple(forward_pass for forward_pass, _ in both)
        returned = [backward_pass for _, backward_pass in both] + (
            [forward_pass for forward_pass, _ in both] if again else []
        )
        passes["backward", unit] = tuple(returned) if group.flows else ()
    return passes


def _both(problem: StepModel, member: Member, cut: dict[int, int]) -> tuple[_Pass, _Pass]:
    piece, pricer = member.piece(cut), problem.operators
    price = pricer.price(piece, member.wanted)
    forward_counts, backward_counts = forward(piece), backward(piece, member.wanted)
    return (
        _Pass(piece.kind, price.forward.seconds, pricer.ideal(forward_counts, piece)),
        _Pass(piece.kind, price.backward.seconds, pricer.ideal(backward_counts, piece)),
    )


def collective_costs(
    simulation: Simulation, path: Sequence[PathPiece]
) -> tuple[CollectiveCost, ...]:
    """Every different collective, the costliest first."""
    problem, labels = simulation.problem, simulation.problem.labels
    cluster = simulation.plan.cluster
    carried: dict[int, list[tuple[CollectiveCost, float]]] = {}
    every = moves(problem)
    for task in simulation.timeline.order.tolist():
        kind, subject = labels.kind[task], labels.subject[task]
        if is_op_group_pass(kind) or kind in (LAUNCH, "update"):
            continue
        what = purpose(kind, problem.bundles[subject].parameters)
        carried[task] = [
            (
                CollectiveCost(
                    move.operation,
                    ways_by_level(cluster, move.over),
                    move.held,
                    what,
                    _program(move.operation, move.way),
                    move.link(cluster),
                    times=1,
                    seconds=move.seconds,
                    exposed=Seconds(0.0),
                ),
                move.seconds,
            )
            for move in every[kind, subject]
        ]
    return _summed(carried.values(), dealt(path, lambda piece: carried.get(piece.task, ())))


def _summed(
    tasks: Iterable[Sequence[tuple[CollectiveCost, float]]], waited: dict[CollectiveCost, PathPart]
) -> tuple[CollectiveCost, ...]:
    times: dict[CollectiveCost, int] = {}
    for task in tasks:
        for collective, _ in task:
            times[collective] = times.get(collective, 0) + 1
    costs = (
        msgspec.structs.replace(
            cost,
            times=count,
            seconds=Seconds(cost.seconds * count),
            exposed=_seconds(waited.get(cost)),
        )
        for cost, count in times.items()
    )
    return tuple(sorted(costs, key=lambda cost: (-cost.exposed, -cost.seconds)))


def _program(operation: str, way: CollectiveWay) -> str | None:
    return str(way.program or dsl.ALL_REDUCE) if operation == NAMES[ALL_REDUCE] else None


def _seconds(part: PathPart | None) -> Seconds:
    return Seconds(part.nanoseconds / NANO if part else 0.0)
