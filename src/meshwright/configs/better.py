"""Configurations near one, and the best that there are. Enters: a graph, a machine, a
configuration, prices. Leaves: `ConfigTrial`s, simulated.

    fixes         one setting changed: recomputation, ZeRO, micro-batches, a factor of the data axis
                  given to another axis
    best          all degrees of tensor, pipeline and data that multiply to the devices, with the
                  context as given; then of the fastest FINALISTS all settings besides degrees

Only what the framework's own file can say is tried (`allowed`). Work is counted in tasks, so that
the same question has the same answer on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.integers import divisors, factorizations
from meshwright.base.units import Bytes
from meshwright.baselines.degrees.config import ParallelConfig
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts, facts_of
from meshwright.baselines.degrees.refusals import refusals
from meshwright.cluster.model import Cluster
from meshwright.configs.written import Form
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Plan, Prediction
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import Simulation, simulate

FINALISTS = 3
WORK = 12_000_000
"""Tasks that are simulated, at most; some tens of seconds."""

MOST_MICRO = 512
"""Micro-batches that are tried, at most."""


class ConfigTrial(NamedTuple):
    """A configuration and what is predicted of it."""

    config: ParallelConfig
    plan: Plan
    prediction: Prediction

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
        self.facts = facts_of(graph)
        self._known: dict[ParallelConfig, ConfigTrial] = {}
        self._tasks = 0

    @property
    def simulated(self) -> int:
        """How many configurations."""
        return len(self._known)

    def simulation(self, config: ParallelConfig) -> Simulation:
        """What a configuration costs, in all detail."""
        plan = configured(self.graph, self.cluster, config)
        found = simulate(plan, self.prices, self.operators)
        self._tasks += int(found.problem.tasks.live.sum())
        self._known[config] = ConfigTrial(config, plan, found.prediction)
        return found

    def fixes(self, config: ParallelConfig) -> list[ConfigTrial]:
        """What fits with one setting changed, or without replicas, the fastest first."""
        tried = self._tried((config, *changed(config, self.facts, self.form)))
        return [own for own in tried if not own.order(self.memory)[0]]

    def best(self, config: ParallelConfig) -> ConfigTrial | None:
        """The fastest that fits; if nothing does, the smallest."""
        first = self._tried(degrees_of(config, self.facts, self.cluster.devices, self.form))
        finalists: dict[object, ParallelConfig] = {}
        for own in first:
            finalists.setdefault(tuple(own.config.degrees.items()), own.config)
        bases = list(finalists.values())[:FINALISTS]
        settings = [own for base in bases for own in settings_of(base, self.facts, self.form)]
        self._tried(settings)
        every = sorted(self._known.values(), key=lambda own: own.order(self.memory))
        return every[0] if every else None

    def _tried(self, configs: Iterable[ParallelConfig]) -> list[ConfigTrial]:
        found = []
        for config in configs:
            if config not in self._known:
                late = self._tasks > WORK
                said = sayable(self.form, config)
                if late or not said or refusals(self.graph, self.cluster, config):
                    continue
                self.simulation(config)
            found.append(self._known[config])
        return sorted(found, key=lambda own: own.order(self.memory))


def degrees_of(
    config: ParallelConfig, facts: Facts, devices: int, form: Form
) -> Iterator[ParallelConfig]:
    """All degrees of tensor, pipeline and data, saving memory as the framework's users do."""
    zero = max(allowed(form, config), key=lambda stage: (stage == max(1, config.zero), stage))
    for context in dict.fromkeys((config.context, 1)):
        for tensor, pipeline, data in factorizations(devices // context, (devices,) * 3):
            if facts.samples % data or facts.heads % tensor or devices % context:
                continue
            base = replace(
                config, tensor=tensor, pipeline=pipeline, data=data, context=context, chunks=1,
                stages=(), recompute_layers=0,
                schedule="1f1b", sequence=tensor > 1, zero=zero, expert=_expert(config, data),
            )  # fmt: skip
            for recompute in (False, True):
                own = replace(base, recompute=recompute)
                yield replace(own, micro_batches=_micro_batches(own, config, facts))


def _expert(config: ParallelConfig, data: int) -> int:
    return config.expert if data % config.expert == 0 else 1


def _micro_batches(own: ParallelConfig, given: ParallelConfig, facts: Facts) -> int:
    """As many as keep the size of a micro-batch, or the most that samples allow."""
    each = facts.samples // own.data
    size = max(1, facts.samples // (given.data * given.micro_batches))
    if own.pipeline > 1:
        size = min(size, max(1, each // (4 * own.pipeline)))
    return max(count for count in divisors(each) if count <= min(MOST_MICRO, -(-each // size)))


def settings_of(config: ParallelConfig, facts: Facts, form: Form) -> Iterator[ParallelConfig]:
    """All settings besides degrees: recomputation, ZeRO, micro-batches, virtual stages."""
    each = facts.samples // config.data
    counts = [n for n in divisors(each) if n in _powers(config.micro_batches) and n <= MOST_MICRO]
    layers = facts.layers // config.pipeline
    chunks = [n for n in (1, 2, 4) if n == 1 or (config.pipeline > 1 and layers % n == 0)]
    for recompute, zero, count, runs in product(
        (False, True), allowed(form, config), counts, chunks
    ):
        stages = config.stages if runs == config.chunks else ()
        yield replace(
            config, recompute=recompute, zero=zero, micro_batches=count, chunks=runs, stages=stages
        )


def _powers(number: int) -> set[int]:
    return {number * 4, number * 2, number, number // 2, number // 4} - {0}


def sayable(form: Form, config: ParallelConfig) -> bool:
    """Whether a framework's file can say it: torchtitan's mixed precision comes with FSDP."""
    return form != "torchtitan" or not config.mixed or config.data * config.context > 1


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
    for count in divisors(facts.samples // max(1, config.data)):
        if count in (2 * config.micro_batches, 4 * config.micro_batches):
            yield replace(config, micro_batches=count)
    for ways in divisors(config.data)[1:4]:
        less = replace(config, data=config.data // ways)
        yield replace(less, tensor=config.tensor * ways, sequence=True)
        yield replace(less, pipeline=config.pipeline * ways, stages=(), recompute_layers=0)
        if config.context > 1:
            yield replace(less, context=config.context * ways)
