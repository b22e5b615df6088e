"""Minimal unsatisfiable subset of constraints that contradict each other. Enters: constraints,
units, a cluster. Leaves: the fewest that cannot be kept together, and why.

A set of constraints is consistent if pipeline stages can lie along some factors in a row such that
every unit has a layout that is allowed (`_stuck`). Along the factors f of the machine
    D(0) = {no split is cut},   D(f + 1) = {d with factor f added to a split, or d itself if f may
                                            have another role: d in D(f)}
are the degrees that the first factors can give, and a unit has a layout if D of all of them has
degrees that it can be cut to and that are fixed (`_has_layout`). Of constraints that are not
consistent the fewest that are not either are named (`_fewest`): two wherever two suffice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from meshwright.cluster.cluster import Cluster
from meshwright.search.joint.request.constraints import (
    STAGE,
    STAGES,
    Constraints,
    allowed,
    option,
    pins_of,
)
from meshwright.sharding.allowed import Allowed
from meshwright.sharding.layout import IDLE, REPLICA, divides, factors
from meshwright.sharding.unit import OpGroup

MOST_NAMED = 3
"""Contradicting constraints that are looked for in all their combinations."""


def contradiction(
    constraints: Constraints, units: Sequence[OpGroup], cluster: Cluster
) -> tuple[list[str], str] | None:
    """The fewest constraints that cannot be kept together, as written, and why; None if all can."""
    reason = _stuck(constraints, units, cluster)
    return (_fewest(tuple(parts(constraints)), units, cluster), reason) if reason else None


def stage_runs(constraints: Constraints, cluster: Cluster) -> list[frozenset[int]]:
    """The factors along which stages may lie, for every number of stages that is left.

    >>> stage_runs(Constraints(forbidden=((STAGE, "node"),)), Cluster.named("summit", node=2))
    [frozenset(), frozenset({1}), frozenset({1, 2}), frozenset({2})]
    """
    mesh_factors, stages = factors(cluster), option(constraints, STAGES)
    barred = {level for role, level in constraints.forbidden if role == STAGE}
    free = [] if stages not in (None, 1) else [frozenset[int]()]
    return free + [
        frozenset(run)
        for run, sizes in runs(cluster).items()
        if stages in (None, math.prod(sizes))
        and not any(cluster.level_names[mesh_factors[f].level] in barred for f in run)
    ]


def runs(cluster: Cluster) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Factors in a row, by number, and their sizes."""
    mesh_factors, count = factors(cluster), len(factors(cluster))
    rows = [tuple(range(a, b)) for a in range(count) for b in range(a + 1, count + 1)]
    return {row: tuple(mesh_factors[f].size for f in row) for row in rows}


def _stuck(constraints: Constraints, units: Sequence[OpGroup], cluster: Cluster) -> str:
    """Why units have no layouts that are allowed; "" if they have."""
    if not (possible := stage_runs(constraints, cluster)):
        return "no factors are left for the stages"
    alike = {
        (tuple(unit.extents.items()), pins_of(constraints, unit)): unit for unit in reversed(units)
    }
    reason = ""
    for staged in possible:
        judge = allowed(constraints, cluster, staged)
        stuck = [unit for unit in alike.values() if not _has_layout(unit, judge, cluster)]
        if not stuck:
            return ""
        # What is wrong without stages is the plainest thing to say.
        reason = reason or f"unit {stuck[-1].name!r} has no layout that keeps to them"
    return reason


def _has_layout(unit: OpGroup, judge: Allowed, cluster: Cluster) -> bool:
    """Whether some layout of a unit is allowed."""
    wanted = {split.name: judge.degree(unit, split.name) for split in unit.splits}
    reached = {(1,) * len(wanted)}
    for number, factor in enumerate(factors(cluster)):
        others = (REPLICA, *(f"{IDLE}{place}" for place in range(factor.size)))
        free = any(judge.role(unit, number, role) for role in others)
        # Where a factor may stay out, only splits with a given degree need it.
        cuts = [
            index
            for index, (name, degree) in enumerate(wanted.items())
            if not (free and degree is None) and judge.role(unit, number, name)
        ]
        added = {
            (*degrees[:index], degrees[index] * factor.size, *degrees[index + 1 :])
            for degrees in reached
            for index in cuts
        }
        reached = {degrees for degrees in reached if free} | {
            degrees for degrees in added if _within(degrees, wanted)
        }
    extents = unit.extents
    return any(
        all(
            need in (None, degree) and divides(extents[name], degree)
            for degree, (name, need) in zip(degrees, wanted.items(), strict=True)
        )
        for degrees in reached
    )


def _within(degrees: tuple[int, ...], wanted: dict[str, int | None]) -> bool:
    """Whether no degree is beyond the given one."""
    return all(
        need is None or need % degree == 0
        for degree, need in zip(degrees, wanted.values(), strict=True)
    )


def parts(constraints: Constraints) -> Iterator[tuple[str, Constraints]]:
    """Every constraint by itself, as the user wrote it."""
    for pin in constraints.pinned:
        yield "=".join(pin), Constraints(pinned=(pin,))
    for forbid in constraints.forbidden:
        yield "@".join(forbid), Constraints(forbidden=(forbid,))
    for fix in constraints.fixed:
        yield "=".join(fix), Constraints(fixed=(fix,))


def _fewest(
    every: Sequence[tuple[str, Constraints]], units: Sequence[OpGroup], cluster: Cluster
) -> list[str]:
    """The fewest constraints that contradict; of many that do, as few as leaving out finds."""
    for count in range(1, MOST_NAMED + 1):
        for chosen in combinations(every, count):
            if _stuck(_joined(chosen), units, cluster):
                return [text for text, _ in chosen]
    kept = list(every)
    for part in every:
        rest = [other for other in kept if other is not part]
        if _stuck(_joined(rest), units, cluster):
            kept = rest
    return [text for text, _ in kept]


def _joined(chosen: Iterable[tuple[str, Constraints]]) -> Constraints:
    every = [constraints for _, constraints in chosen]
    return Constraints(
        pinned=tuple(pin for constraints in every for pin in constraints.pinned),
        forbidden=tuple(forbid for constraints in every for forbid in constraints.forbidden),
        fixed=tuple(fix for constraints in every for fix in constraints.fixed),
    )
