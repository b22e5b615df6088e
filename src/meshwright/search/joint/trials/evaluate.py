"""Evaluator: coarse solutions simulated as plans, each once, and refined. Enters: graphs, global
configs, weights. Leaves: candidates, which are kept.

Every graph has its context. A coarse solution is simulated unless its plan has been; the best are
laid out finer, with several weights, and the weights that led to the best plans come first the next
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.grid import ConfigOutcome
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.candidate import Candidate
from meshwright.search.joint.coarse.coarse_search import finer, varied
from meshwright.search.joint.coarse.global_config import GlobalConfig
from meshwright.search.joint.coarse.graph_context import CoarseSolution, GraphContext
from meshwright.search.joint.coarse.layout_dp import LayoutWeights
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.request.violations import violations
from meshwright.search.joint.trials.candidates import CandidateEntry, CandidatePool
from meshwright.sharding.reshard import Codes
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

WEIGHTS = (
    LayoutWeights(sums=1.0),
    LayoutWeights(sums=0.5, together=True),
    LayoutWeights(sums=0.2, together=True),
    LayoutWeights(sums=0.0, together=True),
    LayoutWeights(compute=0.5, sums=1.0, together=True),
    LayoutWeights(compute=0.2, sums=1.0),
    LayoutWeights(sums=2.0),
)
"""With which global configs are laid out finer."""

LEADING = 3
"""Weights, of those with which the first global config was laid out best, for other global configs
and graphs.
"""


class Evaluator:
    """What has been tried for one question."""

    def __init__(
        self,
        question: PlanRequest,
        prices: CollectivePrices,
        operators: OperatorPricer,
        enough: Callable[[], bool],
        better: Callable[[CandidateEntry], None],
    ) -> None:
        """`better` is told of every plan that is better than all before."""
        self._question, self._enough, self._better = question, enough, better
        self._prices, self._operators = prices, operators
        self.contexts: list[GraphContext] = []
        self._steps: dict[int, tuple[str, ...]] = {}
        self.kept = CandidatePool(question)
        self._configured: dict[tuple[int, ParallelConfig], CandidateEntry | None] = {}

    def context(self, graph: OperatorGraph, steps: tuple[str, ...] = ()) -> GraphContext:
        """The context of a graph that some rewrites led to; equal graphs share one."""
        for context in self.contexts:
            if context.graph == graph:
                return context
        context = GraphContext(self._question, graph, self._prices, self._operators)
        self.contexts.append(context)
        self._steps[id(context)] = steps
        return context

    def steps(self, context: GraphContext) -> tuple[str, ...]:
        """The rewrites that led to the graph of a context."""
        return self._steps[id(context)]

    def simulated(self, plan: Plan) -> Candidate:
        """A plan with what is predicted of it."""
        return Candidate(plan, simulate(plan, self._prices, self._operators).prediction)

    def add(
        self, candidate: Candidate, context: GraphContext, solution: CoarseSolution | None = None
    ) -> CandidateEntry | None:
        """Keep a candidate; None if it breaks a constraint."""
        entry = self.kept.add(candidate, context, solution)
        if entry is not None and entry is self.kept.best:
            self._better(entry)
        return entry

    def configured(self, context: GraphContext, config: ParallelConfig) -> ConfigOutcome | None:
        """How good a configuration is; None if it breaks a constraint or does not divide."""
        key = id(context), config
        if key not in self._configured:
            self._configured[key] = self._laid_by_degrees(context, config)
        entry = self._configured[key]
        if entry is None:
            return None
        over, value, _ = self.kept.score(entry)
        return ConfigOutcome(over, value, entry.step)

    def best_configured(self, context: GraphContext, count: int) -> list[ParallelConfig]:
        """The best configurations of a graph so far."""
        every = self._configured.items()
        entries = [(config, entry) for (of, config), entry in every if of == id(context) and entry]
        entries.sort(key=lambda pair: self.kept.score(pair[1]))
        return [config for config, _ in entries[:count]]

    def _laid_by_degrees(
        self, context: GraphContext, config: ParallelConfig
    ) -> CandidateEntry | None:
        try:
            plan = configured(context.graph, self._question.cluster, config)
        except InputError:
            return None
        if violations(plan, self._question.constraints):
            return None
        return self.add(self.simulated(plan), context)

    def explore(
        self,
        context: GraphContext,
        solutions: list[CoarseSolution],
        weights: Sequence[LayoutWeights],
        late: Callable[[], bool] = lambda: False,
    ) -> list[LayoutWeights]:
        """Simulate the first coarse solutions, and lay out finer what is best of them, unless it is
        late; leaves the weights that led to the best plans.
        """
        tried: list[CandidateEntry] = []
        for solution in varied(solutions):
            if self._enough():
                break
            entry = self._try(context, solution)
            if entry is not None:
                tried.append(entry)
        ranked = [
            attempt.solution.global_config
            for attempt in sorted(tried, key=self.kept.score)
            if attempt.solution
        ]
        leading = list(weights)
        for global_config in finer(
            ranked, [solution.global_config for solution in solutions if context.fits(solution)]
        ):
            leading = self._laid_out(context, global_config, leading, late)[:LEADING] or leading
        return leading[:LEADING]

    def change(self, entry: CandidateEntry, global_config: GlobalConfig) -> None:
        """Simulate a plan with other options, if it can be cut so."""
        context = entry.context
        if entry.solution is not None:
            solution = context.again(entry.solution, global_config)
            if solution is not None:
                self._try(context, solution)
        else:
            self.relaid(entry, global_config.options, entry.roles)

    def relaid(
        self, entry: CandidateEntry, options: Options, roles: Codes
    ) -> CandidateEntry | None:
        """Simulate a plan with other options or roles; None if it has been, or cannot be cut so."""
        context = entry.context
        if self.kept.seen(context, options, roles):
            return None
        origin = f"joint: {entry.candidate.plan.origin.removeprefix('joint: ')}"
        try:
            candidate = context.simulated(origin, options, roles)
        except InputError:
            return None  # Micro-batches are too small, or go through a stage twice.
        return self.add(candidate, context)

    def _laid_out(
        self,
        context: GraphContext,
        global_config: GlobalConfig,
        weights: Sequence[LayoutWeights],
        late: Callable[[], bool],
    ) -> list[LayoutWeights]:
        """Lay a global config out finer; leaves the weights that led to other plans, the best
        first.
        """
        scored: list[tuple[tuple[bool, float, float], int]] = []
        for n, weighting in enumerate(weights):
            if self._enough() or late():
                break
            entry = self._try(context, context.solution(global_config, weighting, fine=True))
            if entry is not None:
                scored.append((self.kept.score(entry), n))
        return [weights[n] for _, n in sorted(scored)]

    def _try(self, context: GraphContext, solution: CoarseSolution) -> CandidateEntry | None:
        """Simulate a coarse solution; None if its plan has been or a rewritten graph cannot be cut
        so.
        """
        roles, options = context.roles(solution), solution.global_config.options
        if self.kept.seen(context, options, roles):
            return None
        stages = solution.global_config.degree(context.factors)
        origin = f"joint: {stages} stages" if stages > 1 else "joint"
        try:
            candidate = context.simulated(origin, options, roles)
        except InputError:
            return None  # Micro-batches that the graph as it was written could be cut into.
        return self.add(candidate, context, solution)
