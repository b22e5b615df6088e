"""Phases of the joint search (`planner` has their order), each of which only adds candidates.
Enters: a question, a clock, prices. Leaves: candidates, the best of them, how it came to be.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.baselines import applied
from meshwright.cost.operator import OperatorPricer
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.joint.algebra.explore_rewrites import algebra
from meshwright.search.joint.algebra.rewrites import rewritten
from meshwright.search.joint.algebra.segment_costs import SegmentCosts
from meshwright.search.joint.coarse.coarse_search import coarse_solutions, varied
from meshwright.search.joint.coarse.global_config import GlobalConfig, neighbours, stages_of
from meshwright.search.joint.coarse.graph_context import CoarseSolution
from meshwright.search.joint.coarse.layout_dp import LayoutWeights
from meshwright.search.joint.enumerate_plans import everything
from meshwright.search.joint.metropolis_runs import walked
from meshwright.search.joint.moves.as_if_fixed import FixedDecision, decisions, zero_stages
from meshwright.search.joint.moves.deepen import Allowance, climbed
from meshwright.search.joint.moves.held_degrees import by_degrees
from meshwright.search.joint.moves.interleave_move import simulate_interleaved
from meshwright.search.joint.moves.recompute_layers import checkpointed
from meshwright.search.joint.moves.replicate_move import copied
from meshwright.search.joint.request.constraints import stays
from meshwright.search.joint.request.question import PlanRequest, SearchImprovement
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.search.joint.trials.clock import Clock
from meshwright.search.joint.trials.evaluate import WEIGHTS, Evaluator
from meshwright.search.joint.trials.optimality import Optimality
from meshwright.search.joint.warm_starts import WarmStart, starts
from meshwright.simulate.collective_table import CollectivePrices

FINE = 2
"""Global configs that other graphs are laid out in."""

SKETCHING, FRAMING, CONFIGURING, SCREENING = 0.25, 0.4, 0.6, 0.5
"""Shares of the time left: in which global configs are laid out coarsely, in which that is done and
the best of them are laid out finer, in which configurations by degrees are tried at first, and in
which their degrees are compared."""

LEAST_CONFIGURED = 24
"""Configurations that are simulated at least where degrees are held, whatever a number of proposals
allows."""

SHARES, LEAST = 8, 1e-3
"""Of the time left the part that a search inside of another takes at most, and seconds that are
left always."""

_log = logging.getLogger(__name__)


class SearchStatus(NamedTuple):
    """What a search can tell of itself while it runs."""

    used: float
    """The share of the budget."""
    step: float | None
    """Seconds of the best step so far."""
    simulated: int
    doing: str


Progress = Callable[[SearchStatus], None]


class SearchPhases:
    """A search under way."""

    def __init__(
        self,
        question: PlanRequest,
        budget: Budget,
        clock: Clock,
        prices: CollectivePrices,
        operators: OperatorPricer,
        optimality: Optimality,
        seed: int,
        cores: int,
        progress: Progress,
    ) -> None:
        self.question, self.budget, self.clock = question, budget, clock
        self.seed, self.cores, self._progress = seed, cores, progress
        self.prices, self.operators = prices, operators
        self.trials = Evaluator(question, self.prices, operators, self._enough, self._better)
        self.kept = self.trials.kept
        self.optimality = optimality
        self.context = self.trials.context(question.graph)
        self.sketched: list[CoarseSolution] = []
        self.framed: list[GlobalConfig] = []
        self.leading: Sequence[LayoutWeights] = WEIGHTS
        self.named: list[tuple[str, Candidate]] = []
        self.started: Candidate | None = None
        self.refused: list[tuple[str, str]] = []
        self.history: list[SearchImprovement] = []
        self.proved = False
        self.elsewhere = 0
        """Plans that searches inside of this one simulated."""
        self._doing = ""

    def phases(self, rewrites: bool) -> None:
        """What a search does after global configs, whatever is fixed."""
        self.degrees()
        self.schedules()
        if rewrites:
            self.algebra()
        self.options()
        self.walks()
        self.deepen()
        self.everything(rewrites)

    def configurations(self) -> None:
        """Where degrees are held: configurations with them, and what changes no degree."""
        allowed, least = self.allowance(), self.kept.simulated + LEAST_CONFIGURED
        for share in (CONFIGURING, 1.0):
            late = self.clock.hurry(share)

            def enough(late: Callable[[], bool] = late) -> bool:
                many = self.kept.simulated >= least
                return self.kept.best is not None and (late() or (many and allowed()))

            self._configure(enough)
            checkpointed(self.trials, self.question, enough)
            self.options(copies=False)

    def baselines(self, start: Plan | None) -> None:
        """Simulate what needs no search, and the plan to start from."""
        self.tell("baselines")
        question = self.question
        for name, plan in applied(question.graph, question.cluster, question.training):
            if isinstance(plan, InputError):
                self.refused.append((name, str(plan)))
                continue
            if self._enough():
                self.refused.append((name, "there was no time left for it; give a larger budget"))
                continue
            candidate = self.trials.simulated(plan)
            self.named.append((name, candidate))
            self.trials.add(candidate, self.context)
        if start is not None:
            context = self.trials.context(start.graph, start.rewrites or ("as its start",))
            self.started = self.trials.simulated(start)
            self.trials.add(self.started, context)

    def global_configs(self) -> None:
        """Lay all global configs out; simulate the best few, and those finer."""
        self.tell("frames")
        if self._enough():
            return
        late = self.clock.hurry(FRAMING)
        self.sketched = coarse_solutions(self.context, self.clock.hurry(SKETCHING))
        self.framed = [solution.global_config for solution in varied(self.sketched)]
        self.leading = self.trials.explore(self.context, self.sketched, WEIGHTS, late)

    def algebra(self) -> None:
        """Lay graphs that compute the same out in the best global configs."""
        self.tell("algebra")
        ranked = [
            entry.solution.global_config
            for entry in self.kept.ranked()
            if entry.solution is not None
        ]
        # Where a coarse solution is no other plan than a baseline, as on one device, it has no
        # entry.
        global_configs = list(dict.fromkeys((*ranked, *self.framed)))
        if not global_configs or self.clock.enough():
            return
        tables = SegmentCosts(self.question, global_configs[0].options, self.prices, self.operators)
        rules = algebra(self.question.constraints.rules, self.question.added)
        stay = stays(self.question.constraints, self.question.graph)
        for variant in rewritten(self.question.graph, rules, tables, self.clock.hurry(0.5), stay):
            context = self.trials.context(variant.graph, variant.steps)
            weights = LayoutWeights(sums=0.5)
            solutions = [context.solution(f, weights, fine=False) for f in global_configs[:FINE]]
            self.trials.explore(context, solutions, self.leading)

    def options(self, fixed: FixedDecision | None = None, *, copies: bool = True) -> None:
        """Change one option of the best plans after the other, as long as they get better: of all
        or of those that keep to something. With `copies` also which op groups are replicated.
        """
        self.tell("options")
        before: list[CandidateEntry] = []
        among = (lambda _: True) if fixed is None else fixed.kept_by
        while (leaders := self.kept.leaders(among)) != before and not self.clock.enough():
            before = leaders
            for entry in leaders:
                global_config = GlobalConfig(stages_of(entry.roles), entry.candidate.plan.options)
                for other in neighbours(self.question, entry.context.graph, global_config):
                    if (fixed is None or fixed.of(other)) and not self.clock.enough():
                        self.trials.change(entry, other)
                for roles in copied(entry.context.units, entry.roles, entry.context.factors):
                    if copies and not self.clock.enough():
                        self.trials.relaid(entry, global_config.options, roles)

    def walks(self) -> None:
        """Walk from the best plans, and from baselines."""
        names = {candidate.plan.origin for _, candidate in self.named}
        self.walk(list(starts(self.kept.ranked(), self.context, names)))

    def walk(self, begun: list[WarmStart], again: int = 0) -> None:
        """Walk from somewhere, each time with another seed."""
        self.tell("walking")
        if self.clock.enough():
            return
        for start, roles in walked(
            begun,
            self.clock.left,
            self.budget.proposals,
            self.seed + again,
            self.cores,
            lambda now: self.tell(now.doing),
        ):
            origin = f"joint: walk from {start.origin}"
            candidate = start.context.simulated(origin, start.options, roles)
            self.trials.add(candidate, start.context)

    def degrees(self) -> None:
        """While the bound is far: configurations by degrees."""
        near, late = self.allowance(), self.clock.hurry(CONFIGURING)
        self._configure(lambda: late() or near())

    def schedules(self) -> None:
        """While the bound is far: virtual stages; layers that run again of what is too large."""
        enough = self.allowance()
        if not enough():
            self.tell("schedules")
            simulate_interleaved(self.trials, enough)
            checkpointed(self.trials, self.question, enough)

    def _configure(self, enough: Callable[[], bool]) -> None:
        """Try configurations that were not tried yet."""
        if not enough():
            self.tell("degrees")
            late = self.clock.hurry(SCREENING)
            by_degrees(
                self.question, self.trials, self.context, enough,
                lambda: self.kept.best is not None and late(),
            )  # fmt: skip

    def allowance(self, *, limited: bool = True) -> Allowance:
        """What may be tried while the bound is far."""
        proposals = self.budget.proposals if limited else None
        return Allowance(self.trials, self.optimality, self.clock, proposals)

    def deepen(self) -> None:
        """While the bound is far: more configurations, stages of ZeRO, roles of like units."""
        enough = self.allowance()
        if enough():
            return
        self._configure(enough)
        self.schedules()
        self.options()
        enough.renew(limited=False)
        for fixed, alike in decisions(self.sketched):
            if not enough():
                self.trials.explore(self.context, alike, self.leading)
                self.options(fixed)
        sharded = zero_stages(self.kept.ranked())
        if not enough():
            self.walk([start for zero in sharded for start in self._begun(zero)])
        for decision in sharded:
            if not enough():
                self.options(decision)
        self.tell("roles")
        enough.renew()
        best = self.kept.best
        if best is not None and not enough():
            climbed(self.trials, best, random.Random(self.seed), enough)

    def _begun(self, fixed: FixedDecision) -> list[WarmStart]:
        """Where walks of plans that keep to something begin: the best, and baselines."""
        names = {candidate.plan.origin for _, candidate in self.named}
        ranked = list(filter(fixed.kept_by, self.kept.ranked()))
        begun = list(starts(ranked, self.context, names))
        return [*begun[:1], *(start for start in begun[1:] if start.afresh)]

    def everything(self, rewrites: bool) -> None:
        """Try all plans, if they are few."""
        self.tell("everything")
        best = None if self.kept.best is None else self.kept.best.candidate
        winner = everything(
            self.question, self.prices, self.operators, best, rewrites, self.clock.enough
        )
        if winner is not None:
            self.proved = self.question.minimize == "time"
            if winner.candidate is not None:
                context = self.trials.context(winner.candidate.plan.graph, winner.steps)
                self.trials.add(winner.candidate, context)

    def share(self) -> Clock:
        """A clock for a part of the time that is left."""
        left = self.clock.left
        seconds = None if left is None else Seconds(max(left, LEAST) / SHARES)
        return Clock(Budget(seconds, self.budget.proposals))

    def promise(self) -> tuple[bool, float, float]:
        """How good the best plan is; the smaller the better."""
        best = self.kept.best
        return (True, inf, inf) if best is None else self.kept.score(best)

    def bound(self, best: CandidateEntry) -> float:
        """Seconds that no plan is faster than."""
        return best.step if self.proved else self.optimality.bound(best, self.trials.contexts)

    def _enough(self) -> bool:
        """Whether the budget is spent; never before there is a plan."""
        return self.kept.best is not None and self.clock.enough()

    def _better(self, entry: CandidateEntry) -> None:
        """Remember and tell that there is a better plan."""
        self.history.append(SearchImprovement(self.clock.seconds, entry.step, self._doing))
        _log.debug("%s: %.6g s a step", entry.candidate.plan.origin, entry.step)
        self.tell("")

    def tell(self, doing: str) -> None:
        """Tell where the search is; without words if it does what it did."""
        seconds, simulated = self.clock.seconds, self.kept.simulated
        if doing and doing != self._doing:
            self._doing = doing
            _log.info("%.2f s: %s, %d plans simulated", seconds, doing, simulated)
        step = None if self.kept.best is None else self.kept.best.step
        self._progress(SearchStatus(self.clock.used, step, simulated, doing))
