"""Exhaustive enumeration of the plans of a small problem, with branch and bound. Enters: a
question, the best plan so far. Leaves: the best of all.

The space: every graph that rules make, every value of every option, every layout of every unit,
idle ones at every coordinate. With several micro-batches every way to give units to stages, in
every schedule that knows it, is a problem of its own. Problems are solved by
trying all layouts or, if they are many, by branch and bound (`exhaustive`), with the best so far as
the first to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from meshwright.base.errors import InputError
from meshwright.cost.operator import OperatorPricer
from meshwright.exact.duration_tables import choices
from meshwright.exact.exhaustive import NEVER, exhaustive
from meshwright.graph.canonical import Contents
from meshwright.graph.layers import layer_count
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SCHEDULES, Options
from meshwright.rewrite.graphs.match import Matcher
from meshwright.search.candidate import Candidate
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.search.joint.coarse.global_config import (
    BUCKETS,
    micro_batches,
    savings,
    zero_group_sizes,
)
from meshwright.search.joint.request.constraints import (
    BUCKET,
    MICRO_BATCHES,
    allowed,
    option,
    stays,
)
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.allowed import Allowed
from meshwright.sharding.layout import IDLE, REPLICA, Layout, factors
from meshwright.sharding.reshard import Codes
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate import full
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.simulate.memory.memory_timeline import within
from meshwright.simulate.problem import StepModel
from meshwright.simulate.simulation import simulate

FEW_UNITS = 8
FEW_GRAPHS = 24
FEW_PLANS = 100_000
FEW_LAYOUTS = 2_000


class BestPlan(NamedTuple):
    """What is better than the best so far, if anything is."""

    candidate: Candidate | None
    steps: tuple[str, ...]
    """The rewrites of its graph."""


def everything(
    question: PlanRequest,
    prices: CollectivePrices,
    operators: OperatorPricer,
    best: Candidate | None,
    rewrites: bool,
    enough: Callable[[], bool],
) -> BestPlan | None:
    """The best of all plans; None if there are too many, or too little time."""
    graphs = _graphs(question, rewrites)
    if question.minimize != "time" or graphs is None:
        return None
    every = [
        (graph, steps, options) for graph, steps in graphs for options in _options(question, graph)
    ]
    if sum(_plans(question, graph) for graph, _, _ in every) > FEW_PLANS:
        return None
    fitting = best is not None and best.fits(question.memory)
    beat = round(best.prediction.step * NANO) if best is not None and fitting else NEVER
    fastest = BestPlan(None, ())
    for graph, steps, options in every:
        for problem in _problems(question, graph, options, prices, operators):
            if enough():
                return None
            beaten = _fastest(problem, within(problem, question.memory), beat)
            if beaten is not None:
                roles, beat = beaten
                plan = problem.plan("joint: best of all", roles)
                fastest = BestPlan(
                    Candidate(plan, simulate(plan, prices, operators).prediction), steps
                )
    return fastest


def _fastest(
    problem: StepModel, fits: Callable[[Codes], bool], beat: int
) -> tuple[Codes, int] | None:
    """The fastest plan that fits and is faster than a time: tried one by one if they are few."""
    every = choices(problem)
    if math.prod(map(len, every)) > FEW_LAYOUTS:
        optimum = exhaustive(problem, fits=fits, best=beat)
        return None if optimum.roles is None else (optimum.roles, optimum.nanoseconds)
    best = None
    for chosen in product(*every):
        roles = np.array(chosen, np.int8)
        problem.lay(roles)
        taken = full.simulate(problem.tasks).makespan
        if taken < beat and fits(roles):
            best, beat = (roles, taken), taken
    return best


def _graphs(
    question: PlanRequest, rewrites: bool
) -> list[tuple[OperatorGraph, tuple[str, ...]]] | None:
    """Every graph that rules make, with the steps; None if they, or one's plans, are many."""
    if len(units(question.graph)) > FEW_UNITS or _plans(question, question.graph) > FEW_PLANS:
        return None
    graphs: list[tuple[OperatorGraph, tuple[str, ...]]] = [(question.graph, ())]
    if not rewrites:
        return graphs
    stay = stays(question.constraints, question.graph)
    contents = Contents()
    seen = {contents.number(question.graph)}
    first = Matcher(question.graph, algebra(question.constraints.rules, question.added))
    waiting: list[tuple[Matcher, tuple[str, ...]]] = [(first, ())]
    for matcher, steps in waiting:
        for match in matcher.matches:
            after = matcher.rewrite(match)
            number = contents.number(after.graph)
            kept = stay <= {(operator.name, operator.kind) for operator in after.graph.operators}
            if number not in seen and kept:
                seen.add(number)
                graphs.append((after.graph, (*steps, str(match))))
                waiting.append((after, (*steps, str(match))))
            if len(graphs) > FEW_GRAPHS:
                return None
    return graphs


def _options(question: PlanRequest, graph: OperatorGraph) -> list[Options]:
    """Every value of every option."""
    wanted = option(question.constraints, MICRO_BATCHES)
    bucket = option(question.constraints, BUCKET)
    return [
        msgspec.structs.replace(
            question.training,
            micro_batches=count,
            zero=saving.zero,
            sync_each=saving.sync_each,
            shard_within=devices,
            recompute=saving.recompute,
            recompute_layers=again,
            bucket=size,
        )
        for count in micro_batches(graph)
        if wanted in (None, count)
        for saving in savings(question.constraints, count)
        for devices in zero_group_sizes(question, saving.zero)
        for again in range(max(1, layer_count(graph)) if saving.recompute else 1)
        for size in (BUCKETS if bucket is None else (bucket,))
    ]


def _plans(question: PlanRequest, graph: OperatorGraph) -> int:
    """How many layouts of all units there are, or more."""
    return math.prod(
        len(unit.splits) + 1 + factor.size
        for unit in units(graph)
        for factor in factors(question.cluster)
    )


def _problems(
    question: PlanRequest,
    graph: OperatorGraph,
    options: Options,
    prices: CollectivePrices,
    operators: OperatorPricer,
) -> Iterator[StepModel]:
    """The problems whose layouts are all those of a graph with some options."""

    def problem(options: Options, may: Allowed, pipeline: Sequence[Layout] = ()) -> StepModel:
        return StepModel(
            graph,
            question.cluster,
            options,
            pipeline=pipeline,
            prices=prices,
            operators=operators,
            allowed=may,
        )

    may = allowed(question.constraints, question.cluster)
    whole = problem(options, may)
    if options.micro_batches == 1:
        yield whole
        return
    seats = [_seats(whole.layouts_of(unit, roles)) for unit, roles in enumerate(choices(whole))]
    for places in product(*seats):
        layouts = [
            Layout(tuple(REPLICA if at is None else f"{IDLE}{at}" for at in place))
            for place in places
        ]
        role = _seated(may, dict(zip((unit.name for unit in whole.units), places, strict=True)))
        for schedule in SCHEDULES if len(set(places)) > 1 else (options.schedule,):
            scheduled = msgspec.structs.replace(options, schedule=schedule)
            try:
                yield problem(scheduled, may._replace(role=role), layouts)
            except InputError:
                continue  # It goes through a stage twice, which its schedule does not know.


Seat = tuple[int | None, ...]


def _seats(layouts: Sequence[Layout]) -> list[Seat]:
    """The coordinates at which a unit can sit."""
    return list(dict.fromkeys(layout.coordinates() for layout in layouts))


def _seated(may: Allowed, seat: Mapping[str, Seat]) -> Callable[[OpGroup, int, str], bool]:
    """Roles that leave every unit at its coordinates."""

    def role(unit: OpGroup, factor: int, name: str) -> bool:
        at = seat[unit.name][factor]
        inside = not name.startswith(IDLE) if at is None else name == f"{IDLE}{at}"
        return inside and may.role(unit, factor, name)

    return role
