"""The answer to a small question by trying everything. Enters: a question. Leaves: its fastest plan
that fits.

The space, written from the definition; of `search` only the noun of a question is imported:

    graphs    what rules without parallel operators make of the graph in at most `REWRITES` steps
    options   the values that the question fixes; of what it leaves open, every divisor of the batch
              as the number of micro-batches, ZeRO 0 to 3, recomputation or not, gradients summed up
              one by one or (of graphs so small) all together; every schedule of a pipeline
    layouts   every legal role of every factor for every unit, idle ones at every coordinate; with
              several micro-batches only where the schedule knows the way through the stages
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from typing import NamedTuple

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SCHEDULES, Options
from meshwright.plan.plan import Plan
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.language.terms import Rule, nodes
from meshwright.rewrite.language.types import PARALLEL
from meshwright.rewrite.library import library
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import Layout, MeshFactor, factors, layouts, level_group_sizes
from meshwright.sharding.micro_batches import supports_micro_batches
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate import full
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.memory.memory_timeline import fullest
from meshwright.simulate.problem import StepModel

REWRITES = 2

Stage = tuple[int | None, ...]


class Answer(NamedTuple):
    """The fastest plan that fits."""

    nanoseconds: int
    memory: int
    plan: Plan


class Tried(NamedTuple):
    """A plan, laid out and simulated."""

    nanoseconds: int
    problem: StepModel
    layouts: tuple[Layout, ...]

    @property
    def memory(self) -> int:
        """Bytes on the fullest device."""
        roles = self.problem.codes(self.layouts)
        self.problem.lay(roles)
        return int(fullest(self.problem, roles, full.simulate(self.problem.tasks)).total)


def brute_force(question: PlanRequest) -> Answer | None:
    """The fastest plan that fits, the first of those that are equally fast; None if none fits."""
    best: Answer | None = None
    for tried in every_plan(question):
        if best is None or tried.nanoseconds < best.nanoseconds:
            memory = tried.memory
            if memory <= question.memory:
                roles = tried.problem.codes(tried.layouts)
                plan = tried.problem.plan("brute force", roles)
                best = Answer(tried.nanoseconds, memory, plan)
    return best


def every_plan(question: PlanRequest) -> Iterator[Tried]:
    """Every plan of the space."""
    prices = CollectivePrices(Pricer(question.cluster, algorithm="best"))
    operators = OperatorPricer(question.cluster.device)
    for graph, options in product(reachable(question), allowed(question)):
        if not supports_micro_batches(graph, options.micro_batches):
            continue
        for pipeline, choices in stages(graph, question, options):
            places = {layout.coordinates() for layout in pipeline}
            for schedule in SCHEDULES if len(places) > 1 else (options.schedule,):
                scheduled = msgspec.structs.replace(options, schedule=schedule)
                try:
                    problem = StepModel(
                        graph, question.cluster, scheduled,
                        pipeline=pipeline, prices=prices, operators=operators,
                    )  # fmt: skip
                except InputError:
                    continue  # It goes through a stage twice, which its schedule does not know.
                for chosen in product(*choices):
                    problem.lay(problem.codes(chosen))
                    yield Tried(full.simulate(problem.tasks).makespan, problem, chosen)


def size(question: PlanRequest) -> int:
    """How many plans there are to try, those included that go through a stage twice."""
    return len(allowed(question)) * sum(
        math.prod(len(legal(unit, question, 1)) for unit in units(graph))
        for graph in reachable(question)
    )


def stages(
    graph: OperatorGraph, question: PlanRequest, options: Options
) -> Iterator[tuple[tuple[Layout, ...], list[list[Layout]]]]:
    """Choices for every unit that make the same pipeline, each with one that tells its stages."""
    by_unit = [legal(unit, question, options.micro_batches) for unit in units(graph)]
    if options.micro_batches == 1:
        yield (), by_unit
        return
    by_stage: list[Mapping[Stage, list[Layout]]] = [_by_stage(choices) for choices in by_unit]
    for places in product(*by_stage):
        choices = [staged[place] for staged, place in zip(by_stage, places, strict=True)]
        yield tuple(layouts[0] for layouts in choices), choices


def _by_stage(choices: list[Layout]) -> dict[Stage, list[Layout]]:
    by_stage: dict[Stage, list[Layout]] = {}
    for layout in choices:
        by_stage.setdefault(layout.coordinates(), []).append(layout)
    return by_stage


def legal(unit: OpGroup, question: PlanRequest, micro_batches: int) -> list[Layout]:
    """The layouts of a unit that leave every micro-batch enough to cut."""
    mesh = factors(question.cluster)
    return [
        layout
        for layout in layouts(unit.extents, question.cluster, symmetric=False)
        if _large_enough(unit, layout, mesh, micro_batches)
    ]


def _large_enough(
    unit: OpGroup, layout: Layout, mesh: tuple[MeshFactor, ...], micro_batches: int
) -> bool:
    degrees = layout.degrees(mesh)
    return all(
        unit.cuttable(number, degrees.get(split.name, 1) * unit.micro_ways(number, micro_batches))
        for number, split in enumerate(unit.splits)
    )


def allowed(question: PlanRequest) -> tuple[Options, ...]:
    """Every value of every option."""
    fixed = dict(question.constraints.fixed)
    names = ("micro-batches", "zero", "sync-each", "shard-within", "recompute", "bucket")
    micro, zero, sync, within, again, bucket = (fixed.get(name) for name in names)
    possible = (0, *level_group_sizes(question.cluster)) if within is None else (int(within),)
    return tuple(
        msgspec.structs.replace(
            question.training,
            micro_batches=micro_batches,
            zero=stage,
            sync_each=each,
            shard_within=devices,
            recompute=recompute,
            recompute_layers=again_in,
            bucket=Bytes(size),
        )
        for micro_batches in (divisors(batch(question)) if micro is None else (int(micro),))
        for stage in (range(4) if zero is None else (int(zero),))
        for each in ((False, True) if stage > 1 and micro_batches > 1 else (False,))
        if sync in (None, "yes" if each else "no")
        for devices in (possible if stage else (0,))
        if stage or not int(within or 0)
        for recompute in ((False, True) if again is None else (again == "yes",))
        for again_in in range(max(1, sum(layer.count for layer in layers(question.graph))))
        if recompute or not again_in
        for size in ((0, 1 << 30) if bucket is None else (int(bucket),))
    )


def batch(question: PlanRequest) -> int:
    """Samples in a step."""
    return question.graph.inputs[0].shape[0]


def reachable(question: PlanRequest, steps: int = REWRITES) -> tuple[OperatorGraph, ...]:
    """The graph, and what rules make of it in at most so many steps."""
    rules = RuleSet(algebra(question.constraints.rules))
    graphs = {canonical_hash(question.graph): question.graph}
    last = [Matcher(question.graph, rules)]
    for _ in range(steps):
        rewritten = [matcher.rewrite(match) for matcher in last for match in matcher.matches]
        fresh = {canonical_hash(matcher.graph): matcher for matcher in reversed(rewritten)}
        last = [matcher for name, matcher in fresh.items() if name not in graphs]
        graphs |= {name: matcher.graph for name, matcher in fresh.items() if name not in graphs}
    return tuple(graphs.values())


@cache
def algebra(excluded: tuple[str, ...] = ()) -> tuple[Rule, ...]:
    """The rules of the library that name no parallel operator, but for the excluded ones."""
    return tuple(
        rule
        for rule in library()
        if not any(node.operator in PARALLEL for node in nodes((*rule.source, *rule.target)))
        and not any(fnmatchcase(rule.name, pattern) for pattern in excluded)
    )
