"""Feasibility check of search constraints (pin, forbid, fix, rule). Enters: constraints, units, a
cluster. Leaves: nothing, or a sentence that says what names nothing, what nothing can be, or which
constraints contradict.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from meshwright.base.errors import InputError, nearest
from meshwright.cluster.cluster import Cluster
from meshwright.plan.options import SHARDS_GRADIENTS
from meshwright.search.joint.request.constraints import (
    ALONE,
    AXES,
    MICRO_BATCHES,
    OPTIONS,
    SHARD_WITHIN,
    STAGE,
    STAGES,
    SYNC_EACH,
    ZERO,
    Constraints,
    held_degrees,
    option,
    supports_degree,
)
from meshwright.search.joint.request.contradictions import contradiction, parts, runs
from meshwright.search.joint.request.question import PlanRequest, Stopped
from meshwright.sharding.layout import (
    IDLE,
    REPLICA,
    Layout,
    checked_layout,
    factors,
    inner_group_sizes,
)
from meshwright.sharding.micro_batches import micro_batch_states
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units as units_of

LISTED = 12
"""Names that a sentence lists at most."""


def checked(constraints: Constraints, units: Sequence[OpGroup], cluster: Cluster) -> None:
    """Refuse constraints that cannot be kept."""
    _refuse_values_given_twice(constraints)
    _refuse_sharding_without_zero(constraints)
    for pattern, layout in constraints.pinned:
        _check_pin(pattern, layout, units, cluster)
    splits = sorted({split.name for unit in units for split in unit.splits})
    for role, level in constraints.forbidden:
        if level not in cluster.level_names:
            raise InputError(
                f"cluster {cluster.name!r} has no level {level!r} on which to forbid {role!r}",
                _near(level, cluster.level_names),
            )
        if role not in (known := (*splits, REPLICA, ALONE, STAGE)):
            raise InputError(f"{role!r}, forbidden on {level!r}, is no role", _near(role, known))
    for name, value in constraints.fixed:
        _check_fix(name, value, splits, units, cluster)
    conflict = contradiction(constraints, units, cluster)
    if conflict is not None:
        raise _contradiction(*conflict)


def _refuse_values_given_twice(constraints: Constraints) -> None:
    seen: dict[str, str] = {}
    for name, value in constraints.fixed:
        if seen.setdefault(name, value) != value:
            both = _quoted([f"{name}={seen[name]}", f"{name}={value}"])
            raise InputError(f"{both} contradict each other", "keep one of them")


def _refuse_sharding_without_zero(constraints: Constraints) -> None:
    devices, zero = option(constraints, SHARD_WITHIN), option(constraints, ZERO)
    if devices and zero == 0:
        both = [f"{ZERO}=0", f"{SHARD_WITHIN}={devices}"]
        raise _contradiction(both, "ZeRO 0 shards nothing")
    if option(constraints, SYNC_EACH) and zero is not None and zero < SHARDS_GRADIENTS:
        both = [f"{ZERO}={zero}", f"{SYNC_EACH}=yes"]
        raise _contradiction(both, "gradients are in shards from ZeRO 2 on")


def _check_pin(pattern: str, text: str, units: Sequence[OpGroup], cluster: Cluster) -> None:
    mesh_factors = factors(cluster)
    known = {name: unit for unit in units for name in (unit.name, *_operators(unit))}
    meant = {unit.name: unit for name, unit in known.items() if fnmatchcase(name, pattern)}
    if not meant:
        raise InputError(f"pin '{pattern}={text}' names no unit", _near(pattern, list(known)))
    # Any coordinate will do where the pin leaves it open; 0 is one.
    roles = tuple(f"{IDLE}0" if word in (STAGE, ALONE) else word for word in text.split())
    for unit in meant.values():
        what = f"unit {unit.name!r}, pinned by '{pattern}={text}',"
        checked_layout(Layout(roles), unit.extents, mesh_factors, what)


def _operators(unit: OpGroup) -> Iterator[str]:
    return (member.operator for member in unit.members)


def _check_fix(
    name: str, value: str, splits: Sequence[str], units: Sequence[OpGroup], cluster: Cluster
) -> None:
    if name == STAGES:
        _check_stages(int(value), units, cluster)
    elif name == MICRO_BATCHES:
        _check_micro_batches(int(value), units)
    elif name == SHARD_WITHIN:
        _check_shard_within(int(value), cluster)
    elif name not in (*OPTIONS, *AXES):
        if name not in splits:
            problem = f"'{name}={value}' fixes what is neither a split of any unit nor an option"
            raise InputError(problem, _near(name, (*splits, *OPTIONS)))
        if cluster.devices % int(value):
            raise InputError(
                f"'{name}={value}' does not divide the {cluster.devices} devices",
                "give a degree that does",
            )
        if not any(supports_degree(unit, name, int(value)) for unit in units):
            raise InputError(
                f"'{name}={value}' is more ways than any unit can be cut along {name!r}",
                "give a degree that divides what there is to cut",
            )


def _check_stages(stages: int, units: Sequence[OpGroup], cluster: Cluster) -> None:
    if stages > 1 and not any(math.prod(sizes) == stages for sizes in runs(cluster).values()):
        possible = sorted({math.prod(sizes) for sizes in runs(cluster).values()})
        raise InputError(
            f"'{STAGES}={stages}' is the product of no factors in a row of cluster "
            f"{cluster.name!r}",
            f"give one of {', '.join(map(str, [1, *possible]))}",
        )
    if stages > len(units):
        raise InputError(
            f"'{STAGES}={stages}' is more than the graph's {len(units)} units", "give fewer"
        )


def _check_shard_within(devices: int, cluster: Cluster) -> None:
    possible = inner_group_sizes(factors(cluster))
    if devices not in (0, *possible):
        raise InputError(
            f"'{SHARD_WITHIN}={devices}' is the product of no inner factors of cluster "
            f"{cluster.name!r}",
            f"give one of {', '.join(map(str, [0, *possible]))}; 0 is all devices",
        )


def _check_micro_batches(count: int, units: Sequence[OpGroup]) -> None:
    """Refuse what does not cut the batch evenly; one sample is read whole by every micro-batch."""
    for unit in units:
        for extent in unit.sample_extents:
            if extent > 1 and extent % count:
                raise InputError(
                    f"'{MICRO_BATCHES}={count}' does not divide the {extent} samples of "
                    f"unit {unit.name!r}",
                    "give a number that does, or another batch",
                )


def _contradiction(texts: Sequence[str], reason: str) -> InputError:
    if len(texts) == 1:
        return InputError(f"{_quoted(texts)} cannot be kept: {reason}", "take it away")
    return InputError(
        f"{_quoted(texts)} contradict each other: {reason}", "take one of them away or change it"
    )


def _quoted(texts: Sequence[str]) -> str:
    *first, last = [f"'{text}'" for text in texts]
    return f"{', '.join(first)} and {last}" if first else last


def _near(word: str, known: Sequence[str]) -> str:
    """The known names, or of many those nearest to what was given."""
    if len(known) <= LISTED:
        return nearest(word, known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.0)
    return f"did you mean {' or '.join(map(repr, close))}?"


def refuse_impossible(question: PlanRequest) -> None:
    """Refuse a question without an answer, in a sentence."""
    if not question.graph.operators:
        raise InputError(
            f"graph {question.graph.name!r} has no operators, which leaves nothing to plan",
            "give a model that computes something",
        )
    if question.memory <= 0:
        raise InputError(f"the memory limit is {question.memory} bytes", "give more than 0")
    checked(question.constraints, units_of(question.graph), question.cluster)
    wanted = option(question.constraints, MICRO_BATCHES)
    if wanted is not None:
        micro_batch_states(question.graph, wanted)


def no_plan_error(question: PlanRequest, stopped: Stopped) -> InputError:
    """Why a search has no plan."""
    if stopped != "complete":
        return InputError(
            "the search was ended before it had any plan", "let it run for longer (--budget)"
        )
    wanted = ", ".join(f"'{text}'" for text, _ in parts(question.constraints))
    kind = "configuration by degrees" if held_degrees(question.constraints) else "plan"
    return InputError(
        f"no {kind} that can run keeps to {wanted or 'what is asked'}: all were tried",
        "take one of these away or change it" if wanted else "give another batch or cluster",
    )
