"""Search restricted to the configurations of an export target (`plan --for`). Enters: a
`PlanRequest`, a target, a budget. Leaves: a `PlanResult` whose plan `export --to` the same target
writes without loss.

Configurations by degrees are searched as the joint search does (`baselines.degrees.grid`), each
first turned into what the target has a word for (`fit`): its axes, orders of ranks, stages of ZeRO
and schedules. The strategies of today come first: no answer is slower than one of them that the
target can say. Of the fastest with recomputation as few layers run again as fit (bisection). What
would give an axis away, or could not be written, is not looked at. Steps are those of single
collectives, for no target carries out reduction programs, and of the software that the target runs
(`as_run`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Seconds
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts
from meshwright.baselines.degrees.grid import ConfigChoices, ConfigOutcome, Grid, Judge, search_grid
from meshwright.baselines.degrees.parallel_config import Axis, ParallelConfig
from meshwright.baselines.degrees.placed import mesh_factors_of_axes, rows_of
from meshwright.baselines.degrees.refusals import refusals
from meshwright.configs.find_plan import recipes_for
from meshwright.configs.written import summed_by
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.tables import pricer_of
from meshwright.export.as_run import machine_of, software_of, with_target_defaults
from meshwright.export.exported import Target, target_named
from meshwright.export.hyperparameters import transformer_dims
from meshwright.export.modules import stages_of, supports_sequence_parallel, tensor_styles
from meshwright.export.projection import fitted
from meshwright.export.uniform import Uniform, uniform_of
from meshwright.export.write import known_facts
from meshwright.graph.workload import workload
from meshwright.plan.options import LAYERWISE, Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate, pareto_front
from meshwright.search.joint.jit_warm_up import warm_up
from meshwright.search.joint.moves.held_degrees import choices, refuse_degrees
from meshwright.search.joint.phases import Progress, SearchStatus
from meshwright.search.joint.request.constraints import MICRO_BATCHES
from meshwright.search.joint.request.constraints import option as fixed_option
from meshwright.search.joint.request.question import (
    PlanRequest,
    PlanResult,
    SearchImprovement,
    Stopped,
)
from meshwright.search.joint.request.violations import violations
from meshwright.search.joint.trials.clock import Clock
from meshwright.sharding.layout import factors
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

SCREENING, GRID = 0.5, 0.85
"""The shares of the budget in which degrees are compared, and in which the grid is searched."""

CHECKPOINTED = 3
"""Configurations of which fewer layers are run again."""

PROPOSALS, LEAST = 5000, 24
"""Proposals that a whole simulation counts as, and simulations at least."""


def plan_for(
    question: PlanRequest,
    target: str,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    progress: Progress = lambda _: None,
) -> PlanResult:
    """The best plan that a target can say.

    >>> from meshwright.capture.load import load_model
    >>> from meshwright.cluster.cluster import Cluster
    >>> laptop = Cluster.named("laptop")
    >>> graph = load_model("zoo:lenet/tiny", 8).graph
    >>> question = PlanRequest(graph=graph, cluster=laptop, memory=laptop.device.memory)
    >>> plan_for(question, "deepspeed", Budget.parse("200")).plan.options.micro_batches
    1
    """
    framework, facts = target_named(target), known_facts(question.graph)
    software = software_of(target, mixed=question.training.mixed)
    question = replace(question, cluster=machine_of(question.cluster, software))
    refuse_degrees(question)
    if framework.transformers and facts is None:
        raise InputError(
            f"{framework.name} lays out transformers, and the model has no repeated "
            "attention layers",
            "plan --for pytorch",
        )
    if framework.transformers:
        transformer_dims(
            question.graph
        )  # What the flags of its sizes cannot say is refused beforehand.
    warm_up()
    known = recipes_for(question, budget, backend)
    search = _Search(question, framework, facts, budget, backend, progress)
    stopped = search.run([candidate.plan for _, candidate in known.fitted])
    best = search.best
    if best is None:
        raise InputError(
            f"no configuration that {framework.name} can say divides {question.graph.name!r} on "
            f"{question.cluster.devices} devices, as asked",
            "plan without --for, with another batch, or with fewer constraints",
        )
    return PlanResult(
        question=question,
        best=best,
        baselines=known.fitted,
        refused=known.refused,
        front=pareto_front(search.simulated.values()),
        bound=Seconds(0.0),
        graphs=1,
        rewrites=(),
        simulated=len(search.simulated),
        history=tuple(search.history),
        seconds=search.clock.seconds,
        stopped=stopped,
    )


def spoken(
    config: ParallelConfig, target: Target, question: PlanRequest, facts: Facts
) -> ParallelConfig | None:
    """A configuration in a target's words; None where an axis would be given away."""
    cluster = question.cluster
    if any(ways > 1 and axis not in target.axes for axis, ways in config.degrees.items()):
        return None
    if config.expert > 1 and not target.experts:
        return None
    try:
        taken: dict[Axis, tuple[int, ...]] = mesh_factors_of_axes(
            rows_of(config.degrees, cluster), cluster
        )
        uniform = Uniform(config=config, taken=taken, share=1.0, transformer=True)
        fit = fitted(uniform, target, cluster, facts)
    except InputError:
        return None
    # Sharing memory with fewer words is not what was asked: precision stays.
    if not fit.ordered or fit.config.mixed != config.mixed:
        return None
    said = with_target_defaults(fit.config, target.name)
    said = said if target.orders else replace(said, order=config.order)
    if target.name == "pytorch":
        return _in_pytorch(said, question)
    return said if said.optimizer == config.optimizer else None


def _in_pytorch(config: ParallelConfig, question: PlanRequest) -> ParallelConfig | None:
    """What the script can cut: stages between modules, hidden states along positions."""
    if config.sequence and not supports_sequence_parallel(question.graph):
        config = replace(config, sequence=False)
    if config.pipeline > 1:
        try:
            stages_of(question.graph, config)
        except InputError:
            return None
    return config


class _Search:
    """What is simulated for one question."""

    def __init__(
        self,
        question: PlanRequest,
        target: Target,
        facts: Facts | None,
        budget: Budget,
        backend: Backend,
        progress: Progress,
    ) -> None:
        self.clock, self._question, self._target, self._facts = (
            Clock(budget), question, target, facts,
        )  # fmt: skip
        proposals = budget.proposals
        self._most = math.inf if proposals is None else max(LEAST, proposals // PROPOSALS)
        self._prices = CollectivePrices(
            Pricer(question.cluster, backend, algorithm="best"), programs=False
        )
        self._operators, self._progress = pricer_of(question.cluster.device), progress
        self.simulated: dict[ParallelConfig | Options, Candidate] = {}
        self.best: Candidate | None = None
        self.history: list[SearchImprovement] = []

    def run(self, recipes: Iterable[Plan]) -> Stopped:
        """Search until nothing is left or the budget is used up, recipes first."""
        try:
            if self._facts is None:
                self._along_samples()
            else:
                self._by_degrees(self._facts, recipes)
        except KeyboardInterrupt:
            return "interrupted"
        return "budget" if self._enough() else "complete"

    def _enough(self) -> bool:
        return self.clock.enough() or len(self.simulated) >= self._most

    def _allowed(self) -> ConfigChoices:
        """What may be chosen and the target can say."""
        allowed, target = choices(self._question), self._target
        if target.hybrid:
            return allowed
        if 0 not in allowed.within:
            raise InputError(
                f"ZeRO is to shard within {allowed.within[0]} devices, and {target.name} shards "
                "over all of the data axis",
                "fix shard-within=0, or nothing",
            )
        return allowed._replace(within=(0,))

    def _by_degrees(self, facts: Facts, recipes: Iterable[Plan]) -> None:
        question, target, allowed = self._question, self._target, self._allowed()
        zero = tuple(stage for stage in allowed.zero if stage in target.zero)
        if not zero:
            raise InputError(
                f"ZeRO {allowed.zero[0]} is asked for, and {target.name} has ZeRO "
                f"{', '.join(map(str, target.zero))}",
                "fix another stage, or none",
            )
        grid = Grid(question.graph, question.cluster, allowed._replace(zero=zero))

        def judge(config: ParallelConfig) -> ConfigOutcome | None:
            said = spoken(config, target, question, facts)
            return None if said is None else self._judged(said)

        for plan in recipes:
            judge(uniform_of(plan).config)
        late = self.clock.soon(GRID)

        def enough() -> bool:
            return late() or self._enough() or len(self.simulated) >= GRID * self._most

        search_grid(grid, judge, enough, self.clock.soon(SCREENING))
        self._checkpoint_fewer(facts.layers, judge)

    def _checkpoint_fewer(self, layers: int, judge: Judge) -> None:
        """Run as few layers again as fit, of the fastest configurations that run all of them."""
        fitting = [
            (candidate.prediction.step, number, key)
            for number, (key, candidate) in enumerate(self.simulated.items())
            if isinstance(key, ParallelConfig) and key.recompute and not key.recompute_layers
            if candidate.fits(self._question.memory)
        ]
        for _, _, config in sorted(fitting)[:CHECKPOINTED]:
            least, most = 0, layers
            while most - least > 1 and not self._enough():
                middle = (least + most) // 2
                outcome = judge(replace(config, recompute_layers=middle))
                fits = outcome is not None and not outcome.over
                least, most = (least, middle) if fits else (middle, most)

    def _judged(self, config: ParallelConfig) -> ConfigOutcome | None:
        question = self._question
        if config not in self.simulated:
            if refusals(question.graph, question.cluster, config):
                return None
            plan = configured(question.graph, question.cluster, config)
            if self._uncut(plan, config) or violations(plan, question.constraints):
                return None
            self._add(config, plan)
        return self._outcome(self.simulated[config])

    def _uncut(self, plan: Plan, config: ParallelConfig) -> bool:
        """Whether PyTorch has no style for something that the tensor axis should cut."""
        if self._target.name != "pytorch" or config.tensor == 1:
            return False
        cluster = self._question.cluster
        taken = mesh_factors_of_axes(rows_of(config.degrees, cluster), cluster)
        return bool(tensor_styles(plan, taken["tensor"]).left)

    def _along_samples(self) -> None:
        """Data parallelism of a model without attention layers, with all settings."""
        question, target = self._question, self._target
        base = data_parallel(question.graph, question.cluster)
        for plan in self._settings(base, target):
            if self._enough() and self.simulated:
                return
            if not violations(plan, question.constraints):
                self._add(plan.options, plan)

    def _settings(self, base: Plan, target: Target) -> Iterator[Plan]:
        question, allowed = self._question, self._allowed()
        ways = math.prod(factor.size for factor in factors(question.cluster))
        counts = divisors(max(1, workload(question.graph).samples // ways))
        wanted = fixed_option(question.constraints, MICRO_BATCHES)
        for micro in counts if wanted is None else (wanted,):
            for zero in (stage for stage in allowed.zero if stage in target.zero):
                within = allowed.within if zero else (0,)
                settings = product(allowed.recompute, within, allowed.sync_each)
                for recompute, devices, each in settings:
                    said = ParallelConfig(micro_batches=micro, sync_each=each, zero=3)
                    said = summed_by(target.name, said.with_zero(zero, devices))
                    options = replace(
                        question.training, zero=zero, shard_within=devices, micro_batches=micro,
                        sync_each=said.sync_each, recompute=recompute, bucket=LAYERWISE,
                    )  # fmt: skip
                    if options in self.simulated:
                        continue
                    try:
                        yield base.changed(options=options)
                    except InputError:
                        continue

    def _add(self, key: ParallelConfig | Options, plan: Plan) -> None:
        candidate = Candidate(plan, simulate(plan, self._prices, self._operators).prediction)
        self.simulated[key] = candidate
        if self.best is None or self._outcome(candidate) < self._outcome(self.best):
            self.best = candidate
            self.history.append(
                SearchImprovement(self.clock.seconds, candidate.prediction.step, "degrees")
            )
        step = self.best.prediction.step
        doing = f"configurations for {self._target.name}"
        self._progress(SearchStatus(self.clock.used, step, len(self.simulated), doing))

    def _outcome(self, candidate: Candidate) -> ConfigOutcome:
        over = not candidate.fits(self._question.memory)
        held, step = float(candidate.prediction.memory.total), float(candidate.prediction.step)
        counts = held if over or self._question.minimize == "memory" else step
        return ConfigOutcome(over, counts, step)
