"""Improving a parallel configuration: single-setting fixes, and grid search for the best. Enters: a
graph, a machine, a configuration, prices. Leaves: `ConfigTrial`s, simulated.

    fixes         one setting changed: recomputation, ZeRO, micro-batches, a factor of the data axis
                  given to another axis
    best          of the grid of all degrees, micro-batches, ZeRO, recomputation and virtual stages
                  (`baselines.degrees.grid`), as far as the framework's own file can say it
                  (`is_expressible`); where the given one lies in it does not count

Work is counted in tasks, so that the same question has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.grid import ConfigChoices, ConfigOutcome, Grid, search_grid
from meshwright.baselines.degrees.parallel_config import INNERMOST_FIRST, ParallelConfig
from meshwright.baselines.degrees.refusals import refusals
from meshwright.cluster.cluster import Cluster
from meshwright.configs.written import Form, summed_by
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import SHARDS_GRADIENTS
from meshwright.plan.plan import Plan, Prediction
from meshwright.sharding.layout import level_group_sizes
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import Simulation, simulate

WORK = 12_000_000
"""Tasks of a grid that are simulated, at most; some tens of seconds."""

SCREENING = 0.5
"""The share of it in which degrees are compared."""


class ConfigTrial(NamedTuple):
    """A configuration and what is predicted of it."""

    config: ParallelConfig
    plan: Plan
    prediction: Prediction
    tasks: int
    """That were simulated."""

    def order(self, memory: Bytes) -> tuple[bool, float]:
        """What fits first, the fastest first; of what does not fit the smallest."""
        held = self.prediction.memory.total
        over = held > memory
        return over, float(held) if over else self.prediction.step


class ConfigTrials:
    """Configurations of one model on one machine, each simulated once."""

    def __init__(
        self,
        graph: OperatorGraph,
        cluster: Cluster,
        form: Form,
        memory: Bytes,
        prices: CollectivePrices,
        operators: OperatorPricer,
    ) -> None:
        self.graph, self.cluster, self.form, self.memory = graph, cluster, form, memory
        self.prices, self.operators = prices, operators
        self.facts = transformer_facts(graph)
        self._known: dict[ParallelConfig, ConfigTrial] = {}

    @property
    def simulated(self) -> int:
        """How many configurations."""
        return len(self._known)

    def simulation(self, config: ParallelConfig) -> Simulation:
        """What a configuration costs, in all detail."""
        plan = configured(self.graph, self.cluster, config)
        simulation = simulate(plan, self.prices, self.operators)
        tasks = int(simulation.problem.tasks.live.sum())
        self._known[config] = ConfigTrial(config, plan, simulation.prediction, tasks)
        return simulation

    def fixes(self, config: ParallelConfig) -> list[ConfigTrial]:
        """What fits with one setting changed, or without replicas, the fastest first."""
        tried = self._tried((config, *changed(config, self.facts, self.form)))
        return [trial for trial in tried if not trial.order(self.memory)[0]]

    def best(self, config: ParallelConfig) -> ConfigTrial | None:
        """The fastest that fits; if nothing does, the smallest."""
        base = ParallelConfig(
            optimizer=config.optimizer, mixed=config.mixed, bucket=config.bucket,
            early=config.early, folded=config.folded,
        )  # fmt: skip
        within = (0, *level_group_sizes(self.cluster))
        choices = ConfigChoices(
            base=base,
            zero=allowed(self.form, config),
            sync_each=(False, True) if self.form == "options" else (False,),
            within=within,
        )
        judged: dict[ParallelConfig, int] = {}

        def judge(candidate: ParallelConfig) -> ConfigOutcome | None:
            if candidate.uneven and not config.uneven:
                return None
            for trial in self._tried((candidate,)):
                judged[candidate] = trial.tasks
                return ConfigOutcome(*trial.order(self.memory), trial.prediction.step)
            return None

        def worked(share: float) -> bool:
            # What was simulated before the grid counts too: the answer is the same then.
            return sum(judged.values()) > share * WORK

        grid = Grid(self.graph, self.cluster, choices)
        search_grid(grid, judge, lambda: worked(1.0), lambda: worked(SCREENING))
        every = sorted(self._known.values(), key=lambda trial: trial.order(self.memory))
        return every[0] if every else None

    def _tried(self, configs: Iterable[ParallelConfig]) -> list[ConfigTrial]:
        trials = []
        for config in (summed_by(self.form, config) for config in configs):
            if config not in self._known:
                said = is_expressible(self.form, config)
                if not said or refusals(self.graph, self.cluster, config):
                    continue
                self.simulation(config)
            trials.append(self._known[config])
        return sorted(trials, key=lambda trial: trial.order(self.memory))


def is_expressible(form: Form, config: ParallelConfig) -> bool:
    """Whether a framework's file can say it: torchtitan's mixed precision comes with FSDP, only
    Megatron has another order of axes, and plain degrees have none of experts.
    """
    match form:
        case "torchtitan":
            sharded = not config.mixed or config.data * config.context > 1
            return sharded and config.order == INNERMOST_FIRST
        case "megatron":
            return True
        case "options":
            return config.expert == 1 and config.order == INNERMOST_FIRST


def allowed(form: Form, config: ParallelConfig) -> tuple[int, ...]:
    """The stages of ZeRO that a framework's file can say."""
    match form:
        case "torchtitan":
            return (2, 3)
        case "megatron":
            return tuple(sorted({0, 1, config.zero}))
        case "options":
            return (0, 1, 2, 3)


def changed(config: ParallelConfig, facts: Facts, form: Form) -> Iterator[ParallelConfig]:
    """Configurations that differ in one setting and hold less."""
    if not config.recompute:
        yield replace(config, recompute=True)
    for zero in allowed(form, config):
        if zero > config.zero:
            yield replace(config, zero=zero)
    if form == "options" and config.zero >= SHARDS_GRADIENTS and not config.sync_each:
        yield replace(config, sync_each=config.micro_batches > 1)
    if config.shard_within:
        yield replace(config, shard_within=0)
    for count in divisors(facts.samples // max(1, config.data)):
        if count in (2 * config.micro_batches, 4 * config.micro_batches):
            yield replace(config, micro_batches=count)
    for ways in divisors(config.data)[1:4]:
        less = replace(config, data=config.data // ways)
        yield replace(less, tensor=config.tensor * ways, sequence=True)
        yield replace(less, pipeline=config.pipeline * ways, stages=(), recompute_layers=0)
        if config.context > 1:
            yield replace(less, context=config.context * ways)
