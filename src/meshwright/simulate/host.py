"""A host's kernel launches, ahead of its device (eager PyTorch, Megatron without CUDA graphs).
Enters: op groups, layouts, a schedule, what launching each op group takes. Leaves:
`HostLaunches`, tasks of the task graph with the edges between them and compute tasks.

A slot is a micro-batch that goes through a chunk, there or back. A host launches the kernels of its
slots one after the other in the order of the schedule,
    launched(s) = begun(s) + what launching the kernels of slot s takes
and what ends a slot's computing starts no earlier: inside a slot the host is ahead of long kernels
as far as it is behind short ones, so that whoever takes longer in all sets the pace. It never waits
for the device, begun(s) = launched(s - 1), but in a pipeline: there it waits for what it receives,
and for its device before it does (Megatron synchronizes when it sends), so that begun(s) is also
after the computing of slot s - 1, and of the same micro-batch on the stage before. Degrees cut
kernels, not launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshwright.cost.operator import OperatorPricer
from meshwright.lower.bundles import TensorEdge
from meshwright.plan.options import Options
from meshwright.sharding.layout import Layout
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.collective_table import NANO
from meshwright.simulate.schedule_edges import Label, slots_of_stages, tasks_of
from meshwright.simulate.tasks import Flags

LAUNCH = "launch"


class HostLaunches(NamedTuple):
    """A task for every slot."""

    nanoseconds: tuple[int, ...] = ()
    units: tuple[int, ...] = ()
    """An op group that the slot ends with, for people."""
    micro_batches: tuple[int, ...] = ()
    edges: tuple[tuple[Label, Label], ...] = ()
    """From a launch to the next of the same host, and to what ends the slot's computing."""


NO_LAUNCHES = HostLaunches()


def host_launches(
    units: Sequence[OpGroup],
    layouts: Sequence[Layout],
    bundles: Sequence[TensorEdge],
    options: Options,
    pricer: OperatorPricer,
    again: Flags,
) -> HostLaunches:
    """The launches of all hosts; none where launching takes no time."""
    if not pricer.rates.dispatch:
        return NO_LAUNCHES
    seconds = [launching(unit, pricer, rerun) for unit, rerun in zip(units, again, strict=True)]
    stages = tuple(slots_of_stages(units, layouts, bundles, options))
    waiting = len(stages) > 1 and options.micro_batches > 1
    closing = {
        (slot.pass_, stage.runs[slot.chunk], slot.micro_batch): tuple(
            tasks_of(slot, stage.ends, first=False)
        )
        for stage in stages
        for slot in stage.slots
    }
    launches: list[tuple[int, int, int]] = []
    edges: list[tuple[Label, Label]] = []
    for stage in stages:
        before: tuple[Label, ...] = ()
        for slot in stage.slots:
            run, backward = stage.runs[slot.chunk], slot.pass_ == "backward"
            last = closing[slot.pass_, run, slot.micro_batch]
            if not last:
                continue
            launch = LAUNCH, len(launches), 0
            spent = NANO * sum(seconds[unit][backward] for unit in stage.chunks[slot.chunk])
            launches.append((max(1, round(spent)), last[-1][1], slot.micro_batch))
            sent = closing.get((slot.pass_, run + (1 if backward else -1), slot.micro_batch), ())
            edges += [(task, launch) for task in (*before, *(sent if waiting else ()))]
            edges += [(launch, task) for task in last]
            before = (launch, *last) if waiting else (launch,)
    return HostLaunches(
        nanoseconds=tuple(spent for spent, _, _ in launches),
        units=tuple(unit for _, unit, _ in launches),
        micro_batches=tuple(micro for _, _, micro in launches),
        edges=tuple(edges),
    )


def launching(unit: OpGroup, pricer: OperatorPricer, again: bool) -> tuple[float, float]:
    """Seconds that launching an op group takes, there and back."""
    passes = [pricer.launching(member.call, member.wanted) for member in unit.members]
    forward, backward = (sum(times) for times in zip(*passes, strict=True))
    return forward, backward + (forward if again and unit.flows else 0.0)
