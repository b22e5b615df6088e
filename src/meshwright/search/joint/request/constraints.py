"""Search constraints of the user: pin, forbid, fix, rule. Enters: texts. Leaves: `Constraints`, and
what they allow.

    pin     UNIT=ROLE ROLE ...   units, by a pattern of their names or of those of their operators,
                                 have this layout; "stage" and "idle" stand for any coordinate. No
                                 rule takes these operators away
    forbid  ROLE@LEVEL           no factor of a level has this role: a split's name, "replica",
                                 "stage" (units sit at its coordinates as stages of a pipeline), or
                                 "idle" (a unit sits at one coordinate without that)
    fix     SPLIT=DEGREE         units that have this split and can cut it so cut it so
            OPTION=VALUE         the plan has this number of stages or micro-batches, this ZeRO
                                 stage, sums after each micro-batch or recomputation; "dp" is
                                 sample, "pp" is stages
            AXIS=DEGREE          TP, CP or EP of a configuration, as "tp"; beside one of them "dp"
                                 is the configuration's DP. Only configurations by degrees keep them
    rule    PATTERN              rules of this name are not used
Whether they can be kept is told by `consistent`, whether a plan keeps them by `violations`.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

import msgspec

from meshwright.base.errors import InputError, nearest, shown
from meshwright.base.integers import parse_whole
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.allowed import Allowed
from meshwright.sharding.layout import IDLE, Layout, factors
from meshwright.sharding.unit import OpGroup

OPTIONS = ("stages", "micro-batches", "zero", "sync-each", "shard-within", "recompute", "bucket")
STAGES, MICRO_BATCHES, ZERO, SYNC_EACH, SHARD_WITHIN, RECOMPUTE, BUCKET = OPTIONS
YES_OR_NO = (SYNC_EACH, RECOMPUTE)
ABBREVIATED = {"dp": "sample", "pp": STAGES}
"""What the field calls a split and an option."""
DP, TP, CP, EP, PP = AXES = ("dp", "tp", "cp", "ep", "pp")
"""Degrees of a configuration. Of these "pp" is an option, and "dp" a split unless it is beside
others."""
WHOLE_MODEL = (TP, CP, EP)
"""Those that are several splits, each of its own op groups."""
STAGE, ALONE = "stage", "idle"
"""What "@1" is along a factor of stages, and elsewhere."""


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that a search may not change."""

    pinned: tuple[tuple[str, str], ...] = ()
    """Layouts of units, by a pattern of their names (as in `fnmatch`)."""
    forbidden: tuple[tuple[str, str], ...] = ()
    """Roles that a level may not have, as ("channel", "node")."""
    fixed: tuple[tuple[str, str], ...] = ()
    """Degrees of splits and values of options, as ("sample", "4") or ("micro-batches", "8")."""
    rules: tuple[str, ...] = ()
    """Rules that may not be used, by pattern."""


def parse_constraints(
    pins: Iterable[str] = (),
    forbids: Iterable[str] = (),
    fixes: Iterable[str] = (),
    rules: Iterable[str] = (),
) -> Constraints:
    """Constraints from the texts that a user writes.

    >>> parse_constraints(["fc*=sample channel"], ["channel@node"], ["stages=2"]).pinned
    (('fc*', 'sample channel'),)
    """
    fixed = [_halves(text, "=", "fix", "SPLIT=DEGREE or OPTION=VALUE") for text in fixes]
    whole_model = any(name.lower() in WHOLE_MODEL for name, _ in fixed)
    meant = ABBREVIATED | dict.fromkeys((*WHOLE_MODEL, *([DP] if whole_model else [])))
    return Constraints(
        pinned=tuple(_halves(text, "=", "pin", "UNIT=ROLE ROLE ...") for text in pins),
        forbidden=tuple(_halves(text, "@", "forbid", "ROLE@LEVEL") for text in forbids),
        fixed=tuple(
            _whole_value(meant.get(name.lower(), name) or name.lower(), value)
            for name, value in fixed
        ),
        rules=tuple(rules),
    )


def with_degrees(fixes: Iterable[str], **degrees: int | None) -> list[str]:
    """Fixes, and degrees by axis that are given.

    >>> with_degrees(["zero=1"], tp=8, pp=None)
    ['zero=1', 'tp=8']
    """
    return [*fixes, *(f"{axis}={degree}" for axis, degree in degrees.items() if degree is not None)]


def _halves(text: str, sign: str, what: str, form: str) -> tuple[str, str]:
    # Names of units may have the sign in them, roles and values never do.
    left, mark, right = (" ".join(part.split()) for part in text.rpartition(sign))
    if not (left and mark and right):
        raise InputError(f"{shown(text)} is nothing to {what}", f"write it as {form}")
    return left, right


def _whole_value(name: str, value: str) -> tuple[str, str]:
    """A fix whose value can be one."""
    if name in YES_OR_NO:
        if value not in ("yes", "no"):
            raise InputError(f"{name}={value} is neither yes nor no", "give 'yes' or 'no'")
        return name, value
    try:
        number = parse_whole(value)
    except InputError as error:
        raise error.at(f"{name}={value}") from None
    if name == ZERO and number > 3:
        raise InputError(f"{name}={value} is no ZeRO stage", "give 0, 1, 2 or 3")
    if name not in (ZERO, SHARD_WITHIN, BUCKET) and number < 1:
        raise InputError(f"{name}={value} is no number of ways", "give 1 or more")
    return name, str(number)


def option(constraints: Constraints, name: str) -> int | None:
    """The value that an option must have, None if it is free; YES_OR_NO are True or False.

    >>> constraints = parse_constraints(fixes=["zero=1", "recompute=no"])
    >>> [option(constraints, name) for name in OPTIONS]
    [None, None, 1, None, None, False, None]
    """
    if name not in OPTIONS:
        raise InputError(f"{name!r} is no option", nearest(name, OPTIONS))
    for key, value in constraints.fixed:
        if key == name:
            return value == "yes" if name in YES_OR_NO else int(value)
    return None


def held_degrees(constraints: Constraints) -> dict[str, int]:
    """The degrees that a configuration must have, by axis; nothing where layouts are free.

    >>> held_degrees(parse_constraints(fixes=["tp=8", "pp=4", "zero=1"]))
    {'tp': 8, 'pp': 4}
    >>> held_degrees(parse_constraints(fixes=["dp=8", "pp=4"]))
    {}
    """
    degrees = {
        PP if name == STAGES else name: int(value)
        for name, value in constraints.fixed
        if name in (*AXES, STAGES)
    }
    return degrees if any(axis in degrees for axis in WHOLE_MODEL) else {}


def rule_allowed(constraints: Constraints, rule: str) -> bool:
    """Whether a rule may be used.

    >>> rule_allowed(parse_constraints(rules=["fuse-*"]), "fuse-linear-relu")
    False
    """
    return not any(fnmatchcase(rule, pattern) for pattern in constraints.rules)


def pins_of(constraints: Constraints, unit: OpGroup) -> tuple[tuple[str, ...], ...]:
    """The roles of every pin that is about a unit."""
    names = (unit.name, *(member.operator for member in unit.members))
    return tuple(
        tuple(layout.split())
        for pattern, layout in constraints.pinned
        if any(fnmatchcase(name, pattern) for name in names)
    )


def stays(constraints: Constraints, graph: OperatorGraph) -> frozenset[tuple[str, str]]:
    """The operators that pins are about, by name and kind: no rule may take them away."""
    return frozenset(
        (operator.name, operator.kind)
        for operator in graph.operators
        if any(fnmatchcase(operator.name, pattern) for pattern, _ in constraints.pinned)
    )


def allowed(
    constraints: Constraints, cluster: Cluster, staged: frozenset[int] = frozenset()
) -> Allowed:
    """What units may choose from where pipeline stages lie along some factors, by number."""
    levels = [cluster.level_names[factor.level] for factor in factors(cluster)]
    degrees = {n: int(value) for n, value in constraints.fixed if n not in (*OPTIONS, *AXES)}
    forbidden = frozenset(constraints.forbidden)
    pins: dict[str, tuple[tuple[str, ...], ...]] = {}

    def role_allowed(unit: OpGroup, factor: int, role: str) -> bool:
        kind = _kind(role, factor in staged)
        if (factor in staged) != (kind == STAGE) or (kind, levels[factor]) in forbidden:
            return False
        if unit.name not in pins:
            pins[unit.name] = pins_of(constraints, unit)
        return all(words[factor] in (role, kind) for words in pins[unit.name])

    def degree(unit: OpGroup, split: str) -> int | None:
        wanted = degrees.get(split)
        if wanted is None or not supports_degree(unit, split, wanted):
            return None
        return wanted

    return Allowed(role_allowed, degree)


def _kind(role: str, staged: bool) -> str:
    if not role.startswith(IDLE):
        return role
    return STAGE if staged else ALONE


def supports_degree(unit: OpGroup, split: str, degree: int) -> bool:
    """Whether a unit has a split and can cut it so many ways."""
    names = [known.name for known in unit.splits]
    return split in names and unit.cuttable(names.index(split), degree)


def allows(
    constraints: Constraints,
    unit: OpGroup,
    layout: Layout,
    cluster: Cluster,
    staged: frozenset[int] = frozenset(),
) -> bool:
    """Whether a unit may have a layout; to ask often, ask what `allowed` returns."""
    return allowed(constraints, cluster, staged).layout(unit, layout, factors(cluster))


def sitting(constraints: Constraints, cluster: Cluster) -> tuple[bool, ...]:
    """For each factor whether some pin puts a unit at one of its coordinates."""
    every = [layout.split() for _, layout in constraints.pinned]
    return tuple(
        any(words[number].startswith((IDLE, STAGE, ALONE)) for words in every)
        for number in range(len(factors(cluster)))
    )
