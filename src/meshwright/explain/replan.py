"""What-if analysis with re-planning: other batches, machines and memory limits, searched anew.
Enters: a plan, its question, a budget for each search. Leaves: for each change the best plan that a
search finds.

    batch      twice the samples
    node       one more of the outermost level, or twice as many where the samples of a step could
               not be spread over one more
    device     the next generation of the catalogue, on the same links
    sequence   twice the tokens of a sample: the model is captured anew, if the plan says from what
    memory     a device with twice as much

Each search starts from the fastest that fits of what is known beforehand: the layouts of the plan
if they still are one (twice as many nodes take twice as many samples), what simulating them with
the change has found (`what_if`), and, where none of these fits or is faster than the plan is now,
what people would train with, which who asks knows (`Known`). More of a machine never makes a step
longer: where a search finds nothing faster, that is what is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, plural
from meshwright.cluster.catalogue import catalogue_names, catalogued
from meshwright.cluster.cluster import Cluster, Device
from meshwright.cost.backend import backend_named
from meshwright.explain.what_if import Improvement
from meshwright.graph.batch import with_batch
from meshwright.graph.workload import workload
from meshwright.plan.plan import Plan, Prediction
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan, whole
from meshwright.search.joint.request.question import PlanRequest, PlanResult
from meshwright.search.resolve import graph_of, with_sequence
from meshwright.sharding.layout import REPLICA, Layout
from meshwright.sharding.unit import SAMPLE
from meshwright.simulate.simulation import simulate

MORE = 2
"""How many times as much of something a change gives."""

LADDER = ("K80", "P100", "V100", "A100", "H100", "H200", "B200", "B300")
"""NVIDIA's cards, one generation after the other."""


Known = Callable[[PlanRequest], Plan | None]
"""For a question a plan that needs no search."""


class Replanned(NamedTuple):
    """A change, and the best plan found for it."""

    change: str
    planned: PlanResult | None
    """None if it cannot be planned."""
    note: str = ""
    """Why not."""


def replanned(
    plan: Plan,
    question: PlanRequest,
    budget: Budget,
    tell: Callable[[str], None] = lambda doing: None,
    *,
    helps: Sequence[Improvement] = (),
    known: Known = lambda question: None,
) -> Iterator[Replanned]:
    """Every change, one after the other, so much budget for each; `helps` are the changes that were
    simulated.
    """
    step = simulate(plan).prediction.step
    simulated = {improvement.change: improvement.plan for improvement in helps}
    for change, asked in _changes(plan, question):
        tell(f"planning for {change}")
        try:
            other, changed = asked()
            start = _start(other, (changed, simulated.get(change)), known, step)
            planned = whole(
                best_plan(other, budget, backend=backend_named(plan.backend), start=start)
            )
        except InputError as error:
            yield Replanned(change, None, f"cannot be planned: {error.problem}")
            continue
        more = other.graph is plan.graph
        if not planned.best.fits(other.memory):
            yield Replanned(change, None, "no plan that fits was found with this budget")
        elif more and planned.best.prediction.step > step:
            yield Replanned(change, None, "nothing faster was found with this budget")
        else:
            yield Replanned(change, planned)


_Asked = tuple[PlanRequest, Plan | None]
"""What is asked after a change, and the plan with it, if it still is one."""


def changes_not_replanned(
    helps: Sequence[Improvement], what_ifs: Sequence[Replanned]
) -> tuple[Improvement, ...]:
    """What was simulated of changes that were not planned anew: a question has one answer."""
    answered = {what_if.change for what_if in what_ifs if what_if.planned is not None}
    return tuple(improvement for improvement in helps if improvement.change not in answered)


def _start(
    question: PlanRequest, starts: Sequence[Plan | None], known: Known, step: float
) -> Plan | None:
    """The fastest of some plans that fits, or the smallest; of what is known too, unless one of
    them fits and takes less than a step takes now.
    """

    def order(it: tuple[Prediction, Plan]) -> tuple[bool, float]:
        over = it[0].memory.total > question.memory
        return over, it[0].memory.total if over else it[0].step

    plans = (plan.changed(cluster=question.cluster) for plan in starts if plan is not None)
    tried = [(simulate(plan).prediction, plan) for plan in plans]
    if not any(order(it) < (False, step) for it in tried):
        other = known(question)
        tried += [] if other is None else [(simulate(other).prediction, other)]
    return min(tried, key=order)[1] if tried else None


def _changes(plan: Plan, question: PlanRequest) -> Iterator[tuple[str, Callable[[], _Asked]]]:
    cluster = plan.cluster
    yield "twice the batch", partial(_larger_batch, plan, question)
    level, samples = cluster.levels[0], workload(plan.graph).samples
    count = level.cardinality + 1
    each = cluster.devices // level.cardinality
    change = f"one more {level.name}"
    if samples % (count * each):
        count, change = MORE * level.cardinality, f"twice as many {plural(level.name)}"
    yield change, partial(_larger, plan, question, count)
    other = faster_device(cluster.device)
    if other is not None:
        yield f"{other.name} instead", partial(_on, plan, question, other, other.memory)
    if workload(plan.graph).sequence:
        yield "twice the sequence", partial(_longer, plan, question)
    roomy = replace(cluster.device, memory=Bytes(MORE * cluster.device.memory))
    limit = Bytes(MORE * question.memory)
    yield "twice the memory on each device", partial(_on, plan, question, roomy, limit)


def _larger_batch(plan: Plan, question: PlanRequest) -> _Asked:
    graph = with_batch(plan.graph, MORE)
    return replace(question, graph=graph), _changed(plan, graph=graph)


def _larger(plan: Plan, question: PlanRequest, count: int) -> _Asked:
    outer = question.cluster.levels[0]
    cluster = question.cluster.resized({outer.name: count})
    twice = count == MORE * outer.cardinality
    return replace(question, cluster=cluster), _spread(plan, cluster) if twice else None


def _spread(plan: Plan, cluster: Cluster) -> Plan | None:
    """The plan on twice as many of the outermost level: the factor that comes first cuts samples
    of what has them.
    """
    rows = []
    for unit in plan.units:
        layout = plan.layout[unit.name]
        wider = Layout((SAMPLE, *layout.roles))
        names = [split.name for split in unit.splits]
        ways = MORE * layout.degrees(plan.factors).get(SAMPLE, 1)
        if SAMPLE in names:
            number = names.index(SAMPLE)
            ways *= unit.micro_ways(number, plan.options.micro_batches)
        if SAMPLE not in names or not unit.cuttable(names.index(SAMPLE), ways):
            wider = Layout((REPLICA, *layout.roles))
        rows.append((unit.name, str(wider)))
    return _changed(plan, cluster=cluster, layouts=tuple(rows))


def _on(plan: Plan, question: PlanRequest, device: Device, memory: Bytes) -> _Asked:
    cluster: Cluster = replace(plan.cluster, device=device)
    asked = replace(question, cluster=cluster, memory=memory)
    return asked, _changed(plan, cluster=cluster)


def _longer(plan: Plan, question: PlanRequest) -> _Asked:
    if not plan.model:
        raise InputError("the plan does not say what its model was captured from", "")
    if not plan.model.startswith(("zoo:", "hf:")):
        raise InputError(f"{plan.model!r} decides the length of its samples itself", "")
    work = workload(plan.graph)
    model = with_sequence(plan.model, MORE * work.sequence)
    graph = graph_of(model, plan.batch, work.dtype, None)
    return replace(question, graph=graph), None


def _changed(plan: Plan, **values: object) -> Plan | None:
    """The plan with other values, if it still is one."""
    try:
        return plan.changed(**values)
    except InputError:
        return None


def faster_device(device: Device) -> Device | None:
    """A device with the datasheet of the one that came after it; None if it is none of LADDER or
    the last.

    >>> from meshwright.cluster.catalogue import catalogued
    >>> faster_device(catalogued("dgx-h100").device).name
    'H200-SXM-141GB'
    """
    place = next((n for n, name in enumerate(LADDER) if device.name.startswith(name)), None)
    if device.prices or place is None or place + 1 == len(LADDER):
        return None  # Where prices are measured, those of another device are not known.
    known = (catalogued(name).device for name in catalogue_names())
    later = [candidate for candidate in known if candidate.name.startswith(LADDER[place + 1])]
    best = max(later, key=lambda candidate: candidate.memory, default=None)
    if best is None:
        return None
    # What kernels reach and what the framework holds stays: else the two would be two softwares.
    return replace(
        device,
        name=best.name,
        memory=best.memory,
        memory_bandwidth=best.memory_bandwidth,
        peak=best.peak,
    )
