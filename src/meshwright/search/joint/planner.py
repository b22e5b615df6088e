"""The joint search. Enters: a `PlanRequest`, a budget. Leaves: a `PlanResult`.

    baselines   what needs no search is simulated first
    frames      the layouts that add up to the least in every frame (`coarse_search`); the best few
                are simulated and laid out finer (`layout_dp`)
    degrees     while the bound is far: configurations by degrees (`deepen`)
    schedules   virtual stages of the best pipelines (`interleave_move`); of plans that are too
                large as many layers as must run again (`recompute_layers`)
    algebra     graphs that compute the same (`rewrites`) in the best frames
    options     one option of the best plan after the other is changed, and whether it copies
                (`replicate_move`)
    walks       Metropolis walks with delta simulation from the best plans (`metropolis_runs`)
    deepen      then more of them, every global decision as if it were fixed (`as_if_fixed`),
                roles of like units
    everything  where a question has few plans, all of them (`enumerate_plans`)
    tidy        copies of a layer that differ for nothing are laid out alike
                (`unify_layers`)
Every phase only adds candidates; the best of them, checked anew, is the answer. Everything follows
from the seed, unless time runs out; an interrupt or the end of the budget leads to the best so far.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.garbage import rarely_collected
from meshwright.base.units import Seconds
from meshwright.baselines import applied
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.operator import OperatorPricer
from meshwright.cost.tables import pricer_of
from meshwright.plan.model import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.joint.as_if_fixed import FixedDecision, decisions, zero_stages
from meshwright.search.joint.candidates import CandidateEntry
from meshwright.search.joint.clock import Clock
from meshwright.search.joint.coarse_search import sketches, varied
from meshwright.search.joint.consistent import nothing_kept, refuse_impossible
from meshwright.search.joint.constraints import stays
from meshwright.search.joint.deepen import Allowance, by_degrees, relaid
from meshwright.search.joint.enumerate_plans import everything
from meshwright.search.joint.evaluate import WEIGHTS, Evaluator
from meshwright.search.joint.explore_rewrites import algebra
from meshwright.search.joint.global_config import GlobalConfig, neighbours, stages_of
from meshwright.search.joint.graph_context import CoarseSolution
from meshwright.search.joint.interleave_move import interleaved
from meshwright.search.joint.layout_dp import LayoutWeights
from meshwright.search.joint.metropolis_runs import walked
from meshwright.search.joint.optimality import Optimality
from meshwright.search.joint.question import PlanRequest, PlanResult, Stopped
from meshwright.search.joint.recompute_layers import checkpointed
from meshwright.search.joint.replicate_move import copied
from meshwright.search.joint.rewrites import rewritten
from meshwright.search.joint.segment_costs import SegmentCosts
from meshwright.search.joint.unify_layers import tidied
from meshwright.search.joint.violations import violations
from meshwright.search.joint.warm import warm_up
from meshwright.search.joint.warm_starts import WarmStart, starts
from meshwright.sharding.reshard import Codes
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.reductions import with_programs
from meshwright.simulate.simulation import simulate

FINE = 2
"""Frames that other graphs are laid out in."""

SKETCHING, FRAMING, CONFIGURING, SCREENING = 0.25, 0.4, 0.6, 0.5
"""Shares of the time left: in which frames are laid out coarsely, in which that is done and the
best of them are laid out finer, in which configurations by degrees are tried at first, and in which
their degrees are compared."""

UNTIDY, TIDYING = 1e-3, 0.1
"""The share of a step that layers laid out alike may cost, and of the budget it may take."""

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


def best_plan(
    question: PlanRequest,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    operators: OperatorPricer | None = None,
    programs: bool = True,
    rewrites: bool = True,
    seed: int = 0,
    cores: int = 1,
    start: Plan | None = None,
    progress: Progress = lambda _: None,
) -> PlanResult:
    """The best plan that a budget buys; operators cost what the device's roofline says, if no
    prices are given.

    Several cores start processes: who asks for them must be importable (`multiprocessing`).
    """
    refuse_impossible(question)
    warm_up()
    pricer = operators or pricer_of(question.cluster.device)
    run = _Run(question, budget, backend, pricer, programs, seed, cores, progress)
    with rarely_collected():
        return run.planned(run.searched(start, rewrites))


class _Run:
    """A search under way."""

    def __init__(
        self,
        question: PlanRequest,
        budget: Budget,
        backend: Backend,
        operators: OperatorPricer,
        programs: bool,
        seed: int,
        cores: int,
        progress: Progress,
    ) -> None:
        self.clock = Clock(budget)
        self.question, self.budget, self.seed, self.cores = question, budget, seed, cores
        self._progress = progress
        self.prices = CollectivePrices(
            Pricer(question.cluster, backend, algorithm="best"), programs=programs
        )
        self.operators = operators
        self.trials = Evaluator(question, self.prices, operators, self._enough, self._better)
        self.kept = self.trials.kept
        self.optimality = Optimality(question, self.prices, operators)
        self.bench = self.trials.bench(question.graph)
        self.sketched: list[CoarseSolution] = []
        self.framed: list[GlobalConfig] = []
        self.leading: Sequence[LayoutWeights] = WEIGHTS
        self.named: list[tuple[str, Candidate]] = []
        self.started: Candidate | None = None
        self.refused: list[tuple[str, str]] = []
        self.history: list[tuple[float, float]] = []
        self.proved = False
        self._doing = ""

    def searched(self, start: Plan | None, rewrites: bool) -> Stopped:
        """All phases, one after the other; leaves why they ended."""
        stopped: Stopped = "complete"
        try:
            self.baselines(start)
            self.frames()
            self.degrees()
            self.schedules()
            if rewrites:
                self.algebra()
            self.options()
            self.walks()
            self.deepen()
            self.everything(rewrites)
            stopped = "budget" if self.clock.enough() else "complete"
            self.tidy()
        except KeyboardInterrupt:
            stopped = "interrupted"
        return stopped

    def baselines(self, start: Plan | None) -> None:
        """Simulate what needs no search, and the plan to start from."""
        self._tell("baselines")
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
            self.trials.add(candidate, self.bench)
        if start is not None:
            bench = self.trials.bench(start.graph, start.rewrites or ("as its start",))
            self.started = self.trials.simulated(start)
            self.trials.add(self.started, bench)

    def frames(self) -> None:
        """Lay all frames out; simulate the best few, and those finer."""
        self._tell("frames")
        if self._enough():
            return
        late = self.clock.hurry(FRAMING)
        self.sketched = sketches(self.bench, self.clock.hurry(SKETCHING))
        self.framed = [own.frame for own in varied(self.sketched)]
        self.leading = self.trials.explore(self.bench, self.sketched, WEIGHTS, late)

    def algebra(self) -> None:
        """Lay graphs that compute the same out in the best frames."""
        self._tell("algebra")
        ranked = [own.sketch.frame for own in self.kept.ranked() if own.sketch is not None]
        # Where a sketch is no other plan than a baseline, as on one device, it has no entry.
        frames = list(dict.fromkeys((*ranked, *self.framed)))
        if not frames or self.clock.enough():
            return
        tables = SegmentCosts(self.question, frames[0].options, self.prices, self.operators)
        rules = algebra(self.question.constraints.rules, self.question.added)
        stay = stays(self.question.constraints, self.question.graph)
        for own in rewritten(self.question.graph, rules, tables, self.clock.hurry(0.5), stay):
            bench = self.trials.bench(own.graph, own.steps)
            weights = LayoutWeights(sums=0.5)
            found = [bench.sketch(f, weights, fine=False) for f in frames[:FINE]]
            self.trials.explore(bench, found, self.leading)

    def options(self, fixed: FixedDecision | None = None) -> None:
        """Change one option of the best plans after the other, as long as they get better: of all
        or of those that keep to something.
        """
        self._tell("options")
        before: list[CandidateEntry] = []
        among = (lambda _: True) if fixed is None else fixed.kept_by
        while (leaders := self.kept.leaders(among)) != before and not self.clock.enough():
            before = leaders
            for own in leaders:
                frame = GlobalConfig(stages_of(own.roles), own.candidate.plan.options)
                for other in neighbours(self.question, own.bench.graph, frame):
                    if (fixed is None or fixed.of(other)) and not self.clock.enough():
                        self.trials.change(own, other)
                for roles in copied(own.bench.units, own.roles, own.bench.factors):
                    if not self.clock.enough():
                        self.trials.relaid(own, frame.options, roles)

    def walks(self) -> None:
        """Walk from the best plans, and from baselines."""
        names = {own.plan.origin for _, own in self.named}
        self._walk(list(starts(self.kept.ranked(), self.bench, names)))

    def _walk(self, begun: list[WarmStart]) -> None:
        self._tell("walking")
        if self.clock.enough():
            return
        for start, roles in walked(
            begun,
            self.clock.left,
            self.budget.proposals,
            self.seed,
            self.cores,
            lambda now: self._tell(now.doing),
        ):
            origin = f"joint: walk from {start.origin}"
            found = start.bench.simulated(origin, start.options, roles)
            self.trials.add(found, start.bench)

    def degrees(self) -> None:
        """While the bound is far: configurations by degrees."""
        near, late = self._allowance(), self.clock.hurry(CONFIGURING)
        self._configure(lambda: late() or near())

    def schedules(self) -> None:
        """While the bound is far: virtual stages; layers that run again of what is too large."""
        enough = self._allowance()
        if not enough():
            self._tell("schedules")
            interleaved(self.trials, enough)
            checkpointed(self.trials, self.question, enough)

    def _configure(self, enough: Callable[[], bool]) -> None:
        """Try configurations that were not tried yet."""
        if not enough():
            self._tell("degrees")
            late = self.clock.hurry(SCREENING)
            by_degrees(self.question, self.trials, self.bench, enough, late)

    def _allowance(self) -> Allowance:
        return Allowance(self.trials, self.optimality, self.clock, self.budget.proposals)

    def deepen(self) -> None:
        """While the bound is far: more configurations, stages of ZeRO, roles of like units."""
        enough = self._allowance()
        if enough():
            return
        self._configure(enough)
        self.schedules()
        self.options()
        enough.renew(limited=False)
        for fixed, alike in decisions(self.sketched):
            if not enough():
                self.trials.explore(self.bench, alike, self.leading)
                self.options(fixed)
        sharded = zero_stages(self.kept.ranked())
        if not enough():
            self._walk([start for own in sharded for start in self._begun(own)])
        for own in sharded:
            if not enough():
                self.options(own)
        self._tell("roles")
        enough.renew()
        relaid(self.trials, self.seed, enough)

    def _begun(self, fixed: FixedDecision) -> list[WarmStart]:
        """Where walks of plans that keep to something begin: the best, and baselines."""
        names = {own.plan.origin for _, own in self.named}
        ranked = list(filter(fixed.kept_by, self.kept.ranked()))
        begun = list(starts(ranked, self.bench, names))
        return [*begun[:1], *(own for own in begun[1:] if own.afresh)]

    def everything(self, rewrites: bool) -> None:
        """Try all plans, if they are few."""
        self._tell("everything")
        best = None if self.kept.best is None else self.kept.best.candidate
        found = everything(
            self.question, self.prices, self.operators, best, rewrites, self.clock.enough
        )
        if found is not None:
            self.proved = self.question.minimize == "time"
            if found.candidate is not None:
                bench = self.trials.bench(found.candidate.plan.graph, found.steps)
                self.trials.add(found.candidate, bench)

    def tidy(self) -> None:
        """Lay copies of a layer out alike where a step gets no longer than that of the fastest
        baseline and of the plan to start from, and by UNTIDY of it at most.
        """
        best = self.kept.best
        if best is None or self.proved or self.question.minimize != "time":
            return
        others = [own for _, own in self.named] + ([self.started] if self.started else [])
        fitting = [own.prediction.step for own in others if own.fits(self.question.memory)]
        most = min((best.step * (1 + UNTIDY), *(own for own in fitting if own >= best.step)))
        late = self.clock.soon(TIDYING)
        plan, found = best.candidate.plan, list[Candidate]()

        def cheap(roles: Codes) -> bool:
            if late():
                return False
            try:
                tried = best.bench.simulated(plan.origin, plan.options, roles)
            except InputError:
                return False  # Layers alike would leave a stage of a pipeline twice.
            good = tried.prediction.step <= most and tried.fits(self.question.memory)
            good = good and not violations(tried.plan, self.question.constraints)
            found.extend([tried] * good)
            return good

        tidied(best.roles, best.bench.node, cheap)
        if found:
            self.kept.best = self.kept.add(found[-1], best.bench, None)

    def planned(self, stopped: Stopped) -> PlanResult:
        """What was found."""
        best = self.kept.best
        if best is None:
            raise nothing_kept(self.question, stopped)
        plan = replace(best.candidate.plan, rewrites=self.trials.steps(best.bench))
        simulation = simulate(plan, self.prices, self.operators)
        found = Candidate(with_programs(plan, simulation.problem), simulation.prediction)
        wrong = violations(plan, self.question.constraints)
        assert not wrong, f"the search broke a constraint: {wrong[0]}"
        return PlanResult(
            question=self.question,
            best=found,
            baselines=tuple(self.named),
            refused=tuple(self.refused),
            front=self.kept.front(),
            bound=Seconds(min(self._bound(best), simulation.prediction.step)),
            graphs=len(self.trials.benches),
            rewrites=plan.rewrites,
            simulated=self.kept.simulated,
            history=tuple(self.history),
            seconds=self.clock.seconds,
            stopped=stopped,
        )

    def _bound(self, best: CandidateEntry) -> float:
        return best.step if self.proved else self.optimality.bound(best, self.trials.benches)

    def _enough(self) -> bool:
        """Whether the budget is spent; never before there is a plan."""
        return self.kept.best is not None and self.clock.enough()

    def _better(self, entry: CandidateEntry) -> None:
        """Remember and tell that there is a better plan."""
        self.history.append((self.clock.seconds, entry.step))
        _log.debug("%s: %.6g s a step", entry.candidate.plan.origin, entry.step)
        self._tell("")

    def _tell(self, doing: str) -> None:
        seconds, simulated = self.clock.seconds, self.kept.simulated
        if doing and doing != self._doing:
            self._doing = doing
            _log.info("%.2f s: %s, %d plans simulated", seconds, doing, simulated)
        step = None if self.kept.best is None else self.kept.best.step
        self._progress(SearchStatus(self.clock.used, step, simulated, doing))
