"""One-decision alternatives of a plan: micro-batches, recomputation, ZeRO, stages, placement.
Enters: a plan. Leaves: for each decision about the whole graph what was chosen, and the plans with
something else in its place.

Options: micro-batches halved and doubled, recomputation, the stage of ZeRO, when gradients are
summed. Stages: half as many,
or whatever is left without the innermost factor that they lie along, which then cuts samples.
Placement: for each two levels the roles of a factor of one and of a factor of the other exchanged,
in all units at once. Alternatives that are no plans raise an `InputError` when they are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import msgspec

from meshwright.plan.options import SHARDS_GRADIENTS
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import IDLE, REPLICA, Layout, level_group_sizes
from meshwright.sharding.unit import SAMPLE, OpGroup


class Alternatives(NamedTuple):
    """A decision, and what else it could be."""

    subject: str
    chosen: str
    others: tuple[tuple[str, Callable[[], Plan]], ...]
    fixable: bool = False
    """Whether a search can be told `--fix subject=other`."""


def alternatives(plan: Plan) -> Iterator[Alternatives]:
    """Every decision about the whole graph that can be changed."""
    options = plan.options
    counts = [
        options.micro_batches * 2,
        *([options.micro_batches // 2] if options.micro_batches > 1 else []),
    ]
    yield _of_option(plan, "micro-batches", options.micro_batches, "micro_batches", counts)
    yield _of_option(plan, "recompute", options.recompute, "recompute", [not options.recompute])
    others = [stage for stage in range(4) if stage != options.zero]
    yield Alternatives(
        "zero",
        str(options.zero),
        tuple((str(stage), partial(_with_zero, plan, stage)) for stage in others),
        fixable=True,
    )
    if options.zero >= SHARDS_GRADIENTS and options.micro_batches > 1:
        yield _of_option(plan, "sync-each", options.sync_each, "sync_each", [not options.sync_each])
    within = (0, *level_group_sizes(plan.cluster))
    if options.zero and len(within) > 1:
        among = [devices for devices in within if devices != options.shard_within]
        yield _of_option(plan, "shard-within", options.shard_within, "shard_within", among)
    staged = pipeline_stage_factors(plan)
    if staged:
        fewer = str(_places(plan, staged[:-1])), partial(_fewer_stages, plan, staged[-1])
        yield Alternatives("stages", str(_places(plan, staged)), (fewer,), fixable=True)
    yield from _placements(plan)


def _with_zero(plan: Plan, stage: int) -> Plan:
    return plan.changed(options=plan.options.with_zero(stage))


def pipeline_stage_factors(plan: Plan) -> list[int]:
    """The factors along which every unit sits at one coordinate, not all at the same."""
    along = [{layout.roles[f] for layout in plan.layout.values()} for f in range(len(plan.factors))]
    return [
        number
        for number, roles in enumerate(along)
        if len(roles) > 1 and all(role.startswith(IDLE) for role in roles)
    ]


def _places(plan: Plan, along: Sequence[int]) -> int:
    """At how many places units sit along some factors."""
    return len({tuple(layout.roles[f] for f in along) for layout in plan.layout.values()})


def _of_option(
    plan: Plan, subject: str, chosen: int, field: str, others: Iterable[int]
) -> Alternatives:
    variants = (
        (_text(other), msgspec.structs.replace(plan.options, **{field: other})) for other in others
    )
    return Alternatives(
        subject,
        _text(chosen),
        tuple((text, partial(plan.changed, options=options)) for text, options in variants),
        fixable=True,
    )


def _text(value: int) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def _fewer_stages(plan: Plan, factor: int) -> Plan:
    rows = []
    for unit in plan.units:
        roles = list(plan.layout[unit.name].roles)
        roles[factor] = REPLICA
        cut = Layout((*roles[:factor], SAMPLE, *roles[factor + 1 :]))
        rows.append((unit.name, str(cut if _can_be(plan, unit, cut) else Layout(tuple(roles)))))
    return plan.changed(layouts=tuple(rows))


def _can_be(plan: Plan, unit: OpGroup, layout: Layout) -> bool:
    """Whether a unit can cut its samples so many ways, micro-batches being cut too."""
    names = [split.name for split in unit.splits]
    if SAMPLE not in names:
        return False
    number = names.index(SAMPLE)
    ways = unit.micro_ways(number, plan.options.micro_batches)
    return unit.cuttable(number, ways * layout.degrees(plan.factors)[SAMPLE])


def _placements(plan: Plan) -> Iterator[Alternatives]:
    """For each two levels the exchanges of their factors that are not equal."""
    names, every = plan.cluster.level_names, range(len(plan.factors))
    columns = [tuple(layout.roles[f] for layout in plan.layout.values()) for f in every]
    factors = [[f for f in every if plan.factors[f].level == level] for level in range(len(names))]
    for one, other in combinations(range(len(names)), 2):
        pairs: dict[object, tuple[int, int]] = {}
        for f, g in product(factors[one], factors[other]):
            if columns[f] != columns[g]:
                sizes = plan.factors[f].size, plan.factors[g].size
                pairs.setdefault((columns[f], columns[g], sizes), (f, g))
        if pairs:
            where = f"{{}} on {names[one]}, {{}} on {names[other]}"
            along = [[role for f in factors[at] for role in columns[f]] for at in (one, other)]
            chosen = where.format(*map(_used, along))
            others = []
            for f, g in pairs.values():
                text = where.format(_used(columns[g]), _used(columns[f]))
                if text == chosen:  # Most units do the same along both.
                    sizes = plan.factors[f].size, plan.factors[g].size
                    text = f"{sizes[0]} of {names[one]} and {sizes[1]} of {names[other]} exchanged"
                others.append((text, partial(_exchanged, plan, f, g)))
            yield Alternatives(
                f"placement on {names[one]} and {names[other]}", chosen, tuple(others)
            )


def _used(column: Iterable[str]) -> str:
    """What most units do along a factor, but for copies."""
    counted = Counter("idle" if role.startswith(IDLE) else role for role in column)
    busy = [role for role, _ in counted.most_common() if role != REPLICA]
    return busy[0] if busy else REPLICA


def _exchanged(plan: Plan, f: int, g: int) -> Plan:
    rows = []
    for name, layout in plan.layout.items():
        roles = list(layout.roles)
        roles[f], roles[g] = roles[g], roles[f]
        rows.append((name, " ".join(roles)))
    return plan.changed(layouts=tuple(rows))
