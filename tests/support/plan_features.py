"""What a plan makes use of, in words that can be counted."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.lower.schedule_merge import parts_of
from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_by_kind
from meshwright.lower.transfers import Exchange, Step
from meshwright.sharding.layout import IDLE
from meshwright.sharding.unit import OpGroup


def features(script: Script, rewrites: tuple[str, ...] = ()) -> set[str]:
    """All that occurs in it at least once."""
    return {
        *(feature for unit in script.plan.units for feature in _of_unit(script, unit)),
        *_of_options(script),
        *_of_pipeline(script),
        *_of_transfers(script),
        *(["rewrite"] if rewrites else []),
        *(f"rewrite {name}" for name in rewrites),
        *_of_machine(script),
    }


def _of_machine(script: Script) -> Iterator[str]:
    cluster = script.plan.cluster
    wired = " wired" if cluster.wired else ""
    yield f"machine {'x'.join(map(str, cluster.hierarchy))}{wired}"


def _of_unit(script: Script, unit: OpGroup) -> Iterator[str]:
    layout = script.plan.layout[unit.name]
    degrees = layout.degrees(script.plan.factors)
    if "replica" in layout.roles:
        yield "role replica"
    if any(role.startswith(IDLE) for role in layout.roles):
        yield "role idle (a subset of devices)"
    for number, split in enumerate(unit.splits):
        degree = degrees.get(split.name, 1)
        if degree == 1:
            continue
        yield f"role {split.role}"
        if any(extent % degree for extent in unit.extents[split.name]):
            yield "uneven last shard"
        if any(boundary.halo and boundary.halo[number] for boundary in unit.inputs):
            yield "halo"
        if split.statistics:
            yield "shared statistics"
        if split.exchanged:
            yield "tokens for experts"


def _of_options(script: Script) -> Iterator[str]:
    options = script.plan.options
    yield f"ZeRO {options.zero}"
    if options.micro_batches > 1:
        yield f"micro-batches {options.micro_batches}"
    if options.bucket:
        yield "buckets"
    if any(instruction.again for instruction in script.instructions):
        yield "recomputation"
    steps = [reduction.program.count(";") + 1 for reduction in script.plan.programs]
    if steps and sent_bytes_by_kind(script, 0):
        yield f"program of {max(steps)} steps"
    yield from sorted({f"{chain.collective} in steps" for chain in script.plan.chains})


def _of_pipeline(script: Script) -> Iterator[str]:
    parts = parts_of(script.plan)
    places = {script.parallel.tasks[part[0]].place for part in parts}
    if len(places) > 1:
        yield f"pipeline of {len(places)} stages"
        yield f"schedule {script.plan.options.schedule}"
    if len(parts) > len(places):
        yield "interleaved chunks"


def _of_transfers(script: Script) -> Iterator[str]:
    parallel = script.parallel
    if any(
        delivery.steps and parallel.made[delivery.tensor].parameter
        for delivery in parallel.deliveries
    ):
        yield "parameter that two units need differently"
    for step in all_steps(script):
        yield "exchange of boxes" if isinstance(step, Exchange) else step.kind.value


def all_steps(script: Script) -> list[Step]:
    """Of all transfers."""
    delivery_steps = [step for delivery in script.parallel.deliveries for step in delivery.steps]
    return delivery_steps + [
        step for transfer in script.parallel.returns for step in transfer.steps
    ]
