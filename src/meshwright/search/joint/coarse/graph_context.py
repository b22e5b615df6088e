"""Graph context: cost tables, step-time estimates and candidates of one graph, computed once.
Enters: global configs. Leaves: layouts for them, estimates, candidates.

    estimate = again · (chain + crossing + (m - 1) · pace) + update / p
             + max(0, sums - hidden) / p                                                `_estimate`
with chain a micro-batch through everything, `again` more than 1 if layers run again, m
micro-batches, p stages, and what `chain_partition` says of them: how long the slowest takes for one
micro-batch, and what crosses between them. Gradients are summed up during the last micro-batch's
backward pass, or during each one's: HIDDEN of the time for a micro-batch hides its sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshwright.base.integers import to_digits
from meshwright.cost.memory import LIBRARY
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.layers import layer_count
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.lower.bundles import bundles
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.candidate import Candidate
from meshwright.search.joint.coarse.global_config import GlobalConfig
from meshwright.search.joint.coarse.layout_dp import FactorTotals, LayoutDP, LayoutWeights, nodes
from meshwright.search.joint.coarse.pipeline_partition import PipelinePartitions
from meshwright.search.joint.coarse.weigh import MemoryWeigher
from meshwright.search.joint.request.constraints import ALONE, STAGE, allowed, pins_of
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.allowed import Allowed
from meshwright.sharding.layout import IDLE, REPLICA, Layout, factors
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, at
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.memory.shard_bytes import framework
from meshwright.simulate.problem import codes_of, layouts_of
from meshwright.simulate.simulation import simulate
from meshwright.solvers.chain_partition import Staging

HIDDEN = 0.5
AGAIN = 1 / 3
"""The share of the forward pass in computing."""

COARSE = 400
"""Layouts of a node with one role for each level, at most."""


class CoarseSolution(NamedTuple):
    """Layouts for a global config, and what they should cost."""

    global_config: GlobalConfig
    chosen: Codes
    """[nodes, factors]"""
    estimate: float
    """Nanoseconds of a step."""
    bytes: float
    """On a device: tensors, libraries and the framework."""
    stage: tuple[int, ...]
    """Of each unit; none if there is no pipeline."""


class GraphContext:
    """A graph with its tables."""

    def __init__(
        self,
        question: PlanRequest,
        graph: OperatorGraph,
        prices: CollectivePrices,
        operators: OperatorPricer,
    ) -> None:
        self.question, self.graph = question, graph
        self.prices, self.operators = prices, operators
        self.units, self.factors = units(graph), factors(question.cluster)
        self.node = nodes(
            graph,
            self.units,
            bundles(graph, self.units),
            lambda unit: pins_of(question.constraints, unit),
        )
        self._costings: dict[tuple[int, int, int], AdditiveCosts] = {}
        self._pipelines: dict[int, PipelinePartitions] = {}
        self._fields: dict[object, LayoutDP] = {}

    def field(self, global_config: GlobalConfig) -> LayoutDP:
        """The costs of a global config's layouts."""
        options = global_config.options
        saved = options.sharded, options.recompute, options.recompute_layers
        key = (options.micro_batches, saved, global_config.stages)
        if key not in self._fields:
            costing = self._costing(global_config)
            scales = MemoryWeigher(costing, options)
            stages = global_config.degree(self.factors)
            flight = min(options.micro_batches, stages)

            def weigh(unit: int, roles: Codes) -> Costs:
                standing, kept = scales(unit, roles)
                return (standing + flight * kept) / stages

            self._fields[key] = LayoutDP(
                costing,
                self.node,
                options.zero,
                self.permit(global_config).role,
                weigh,
                scales.kind,
            )
        return self._fields[key]

    def fits(self, solution: CoarseSolution) -> bool:
        """Whether a coarse solution should fit into memory."""
        return solution.bytes <= self.question.memory

    def room(self, solution: CoarseSolution) -> float:
        """Bytes of a device that are left for tensors beside a coarse solution's framework and
        libraries.
        """
        limit = self.question.memory
        besides = framework(self.question.cluster.device, self.roles(solution), limit)
        return max(1, limit - LIBRARY - besides)

    def order(self, solution: CoarseSolution) -> tuple[bool, float, float]:
        """The order in which coarse solutions are simulated."""
        if self.question.minimize == "memory":
            return False, solution.bytes, solution.estimate
        if self.fits(solution):
            return False, solution.estimate, solution.bytes
        return True, solution.bytes, solution.estimate

    def legal(self, solution: CoarseSolution) -> bool:
        """Whether all units of a coarse solution can and may be cut so."""
        return self.field(solution.global_config).legal(solution.chosen)

    def possible(self, global_config: GlobalConfig) -> bool:
        """Whether pinned layouts leave room for a global config's stages and micro-batches."""
        may, costing = self.permit(global_config), self._costing(global_config)
        for number, unit in enumerate(self.units):
            for pin in pins_of(self.question.constraints, unit):
                words = [f"{IDLE}0" if word in (STAGE, ALONE) else word for word in pin]
                roles = np.array([_codes(unit, pin)], np.int8)
                allows = all(may.role(unit, f, word) for f, word in enumerate(words))
                if not (allows and costing.legal(number, roles)[0]):
                    return False
        return True

    def solution(
        self, global_config: GlobalConfig, weights: LayoutWeights, *, fine: bool
    ) -> CoarseSolution:
        """The cheapest layouts of a global config: a role for each level, or finer."""
        field = self.field(global_config)
        chosen = self._start(global_config, field, weights)
        if fine:
            chosen, _ = field.descend(chosen, weights)
        return self._sketched(global_config, field, chosen)

    def again(self, solution: CoarseSolution, global_config: GlobalConfig) -> CoarseSolution | None:
        """The same layouts with other options; None if they cannot be cut so."""
        field = self.field(global_config)
        return (
            self._sketched(global_config, field, solution.chosen)
            if field.legal(solution.chosen)
            else None
        )

    def codes(self, layouts: Sequence[Layout]) -> Codes:
        """The roles of layouts as numbers."""
        return codes_of(self.units, layouts, len(self.factors))

    def roles(self, solution: CoarseSolution) -> Codes:
        """The roles of all units, each at the coordinates of its stage."""
        return self._seated(solution, solution.stage)

    def virtual(self, solution: CoarseSolution, runs: int) -> Codes:
        """The same with several runs of units on each stage of a pipeline (virtual stages)."""
        global_config, stages = solution.global_config, solution.global_config.degree(self.factors)
        cut = self._staged(global_config, solution.chosen, stages * runs)
        return self._seated(solution, [number % stages for number in cut.stage])

    def _seated(self, solution: CoarseSolution, stage: Sequence[int]) -> Codes:
        roles = self.field(solution.global_config).roles(solution.chosen).copy()
        seats = list(solution.global_config.stages)
        sizes = [self.factors[f].size for f in seats]
        for unit, number in enumerate(stage):
            roles[unit, seats] = [at(digit) for digit in to_digits(number, sizes)]
        return roles

    def simulated(self, origin: str, options: Options, roles: Codes) -> Candidate:
        """The plan that roles stand for, and what is predicted of it."""
        layouts = layouts_of(self.units, roles)
        plan = Plan.of(origin, self.graph, self.question.cluster, layouts, options)
        return Candidate(plan, simulate(plan, self.prices, self.operators).prediction)

    def _costing(self, global_config: GlobalConfig) -> AdditiveCosts:
        options = global_config.options
        key = options.micro_batches, options.sums, options.shard_within
        if key not in self._costings:
            self._costings[key] = AdditiveCosts(
                self.graph,
                self.question.cluster,
                self.prices,
                self.operators,
                options,
                self.permit(global_config),
            )
        return self._costings[key]

    def permit(self, global_config: GlobalConfig) -> Allowed:
        """What the user's constraints leave to choose from."""
        return allowed(
            self.question.constraints, self.question.cluster, frozenset(global_config.stages)
        )

    def _start(self, global_config: GlobalConfig, field: LayoutDP, weights: LayoutWeights) -> Codes:
        whole = np.full((len(field.first), len(self.factors)), WHOLE, np.int8)
        whole[:, list(global_config.stages)] = at(0)
        for node, unit in enumerate(field.first):
            for pin in pins_of(self.question.constraints, self.units[unit]):
                whole[node] = _codes(self.units[unit], pin)
        blocks = []
        for level in range(len(self.question.cluster.levels)):
            on_level = [f for f, factor in enumerate(self.factors) if factor.level == level]
            blocks.append(tuple(f for f in on_level if f not in global_config.stages))
        blocks = [block for block in blocks if block]
        most = max((len(self.units[unit].splits) + 1 for unit in field.first), default=1)
        while most ** len(blocks) > COARSE:
            whole, _ = field.better(whole, weights, blocks[-1:])
            blocks.pop()
        if blocks:
            whole, _ = field.better(whole, weights, blocks)
        if not field.legal(whole):
            # A degree that is fixed may be none of whole levels: the innermost factors by
            # themselves.
            free = [f for f in range(len(self.factors)) if f not in global_config.stages]
            count = max(n for n in range(1, len(free) + 2) if n == 1 or most**n <= COARSE)
            whole, _ = field.better(whole, weights, [(f,) for f in free[-count:]])
        return whole

    def _sketched(
        self, global_config: GlobalConfig, field: LayoutDP, chosen: Codes
    ) -> CoarseSolution:
        totals = field.totals(chosen)
        stages = global_config.degree(self.factors)
        cut = self._staged(global_config, chosen, stages) if global_config.stages else None
        estimate = _estimate(global_config, stages, cut, totals, self._again(global_config))
        stage = () if cut is None else cut.stage
        solution = CoarseSolution(global_config, chosen, estimate, totals.bytes + LIBRARY, stage)
        besides = framework(
            self.question.cluster.device, self.roles(solution), round(solution.bytes)
        )
        return solution._replace(bytes=solution.bytes + besides)

    def _again(self, global_config: GlobalConfig) -> float:
        """By what factor computing is longer if layers run again."""
        if not global_config.options.recompute:
            return 1.0
        total = max(1, layer_count(self.graph))
        return 1 + AGAIN * (global_config.options.recompute_layers or total) / total

    def _staged(self, global_config: GlobalConfig, chosen: Codes, pieces: int) -> Staging:
        """Where the pipeline of a global config is cut, if nodes lie so beside their stages."""
        micro = global_config.options.micro_batches
        if micro not in self._pipelines:
            self._pipelines[micro] = PipelinePartitions(self._costing(global_config), self.node)
        return self._pipelines[micro].staged(chosen, global_config.stages, pieces)


def _estimate(
    global_config: GlobalConfig,
    stages: int,
    cut: Staging | None,
    totals: FactorTotals,
    again: float,
) -> float:
    pace, crossing = (totals.chain, 0.0) if cut is None else (cut.pace, cut.crossing)
    computing = again * (totals.chain + crossing + (global_config.options.micro_batches - 1) * pace)
    left = max(0.0, totals.sums - HIDDEN * totals.chain * global_config.options.sums) / stages
    return computing + totals.update / stages + left


def _codes(unit: OpGroup, words: tuple[str, ...]) -> list[int]:
    """The roles of a pin as numbers; where only idleness is said, at the first coordinate."""
    number = {split.name: n for n, split in enumerate(unit.splits)} | {REPLICA: WHOLE}
    return [
        number[word]
        if word in number
        else at(int(word[1:]) if word.startswith(IDLE) and word != STAGE else 0)
        for word in words
    ]
