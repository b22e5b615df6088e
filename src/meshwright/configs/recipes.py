"""Recipes in use: DDP, FSDP (with activation checkpointing), HSDP, TP x DP, Megatron 3D, CP, EP.
Enters: a graph, a cluster, a memory limit. Leaves: `Recipes`: a simulated plan for each that
applies, and why others do not.

    DDP, FSDP           samples on all devices; ZeRO 0 and 3
    HSDP                the same with shards inside machines and copies of them across (Zhao 2023)
    TP x DP             tensor parallelism as wide as a machine and the heads allow, sequence
                        parallelism, optimizer in shards (Shoeybi 2019, Korthikanti 2022)
    Megatron 3D         the same with the fewest pipeline stages that fit (Narayanan 2021)
    CP x FSDP           sequences cut the fewest ways that leave every device a sample
    EP x DP             experts as wide as a machine and their number allow

Each has as few micro-batches as fit (`_Trials.fitted`): activations take less as micro-batches
rise, so the first trial tells how many the second needs. A pipeline has four for each stage at
least, as far as samples go. What frameworks run has no reduction programs, and sums the gradients
of a layer together: `judge` prices what people write so too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes
from meshwright.baselines.data import data_parallel
from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.roles import intra_machine_factors
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.tables import pricer_of
from meshwright.graph.layers import layers
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.workload import workload
from meshwright.plan.options import LAYERWISE, SHARDS_GRADIENTS, Options
from meshwright.plan.plan import Plan
from meshwright.search.candidate import Candidate
from meshwright.sharding.layout import factors
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import simulate

LONG = 16_384
"""Positions of a sequence from which on context parallelism is looked at."""

STAGES = (2, 4, 8, 16)

FILLED = 4
"""Micro-batches of a pipeline for each of its stages."""

MOST_TASKS = 150_000
"""Units times micro-batches of a plan that is simulated: seconds."""


class Recipes(NamedTuple):
    """What people would run."""

    fitted: tuple[tuple[str, Candidate], ...]
    refused: tuple[tuple[str, str], ...]
    """Each with the reason."""

    def best(self, memory: Bytes) -> Candidate | None:
        """The fastest that fits."""
        fitting = [candidate for _, candidate in self.fitted if candidate.fits(memory)]
        return min(fitting, key=lambda candidate: candidate.prediction.step, default=None)


class _Way(NamedTuple):
    """A strategy before its micro-batches are chosen."""

    name: str
    samples: int
    """On a replica in a step."""
    least: int
    """Micro-batches."""
    recompute: tuple[bool, ...]
    """Which of activation checkpointing may be tried, in this order."""
    made: Callable[[int, bool], Plan]


def recipes(
    graph: OperatorGraph,
    cluster: Cluster,
    memory: Bytes,
    *,
    training: Options | None = None,
    backend: Backend = NCCL,
    late: Callable[[], bool] = lambda: False,
) -> Recipes:
    """Every strategy of today that applies; `late` ends it, once one fits.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=8, i=4]
    ... parameter w: float32[o=6, i=4]
    ... operator y: y: float32[n=8, o=6] = linear(x, w)
    ... output y''')
    >>> laptop = Cluster.named("laptop")
    >>> [name for name, _ in recipes(graph, laptop, laptop.device.memory).fitted]
    ['DDP', 'ZeRO 1', 'FSDP (ZeRO 3)']
    """
    trials = _Trials(graph, cluster, memory, backend)
    fitted: list[tuple[str, Candidate]] = []
    refused: list[tuple[str, str]] = []
    for name, ways in _strategies(graph, cluster, training or Options()):
        # Until something fits a search has nothing to start from.
        if any(candidate.fits(memory) for _, candidate in fitted) and late():
            refused.append((name, "there was no time left for it; give a larger budget"))
            continue
        try:
            fitted.append(trials.first(ways))
        except InputError as error:
            refused.append((name, str(error)))
    return Recipes(tuple(fitted), tuple(refused))


class _Trials:
    """Plans of one model on one machine, simulated."""

    def __init__(
        self, graph: OperatorGraph, cluster: Cluster, memory: Bytes, backend: Backend
    ) -> None:
        self.memory, self.most = memory, max(1, MOST_TASKS // len(units(graph)))
        self.prices = CollectivePrices(Pricer(cluster, backend, algorithm="best"), programs=False)
        self.operators = pricer_of(cluster.device)

    def first(self, ways: Iterator[_Way]) -> tuple[str, Candidate]:
        """The first way that fits, or else the smallest; refuses if none can be."""
        candidates: list[tuple[str, Candidate]] = []
        problem: InputError | None = None
        for way in ways:
            try:
                candidates.append((way.name, self.fitted(way)))
            except InputError as error:
                problem = error
                continue
            if candidates[-1][1].fits(self.memory):
                return candidates[-1]
        if not candidates:
            raise problem or InputError("nothing of it divides", "give another batch or cluster")
        return min(candidates, key=lambda pair: pair[1].prediction.memory.total)

    def fitted(self, way: _Way) -> Candidate:
        """With as few micro-batches as fit, or with the most if none do."""
        counts = [n for n in divisors(way.samples) if n <= self.most]
        last: Candidate | None = None
        for recompute in way.recompute:
            count = next((n for n in counts if n >= way.least), counts[-1])
            while True:
                last = self._simulated(way.made(count, recompute))
                more = [n for n in counts if n >= count * self._lacking(last) and n > count]
                if last.fits(self.memory) or count == counts[-1]:
                    break
                count = more[0] if more else counts[-1]
            if last.fits(self.memory):
                break
        assert last is not None
        return last

    def _simulated(self, plan: Plan) -> Candidate:
        return Candidate(plan, simulate(plan, self.prices, self.operators).prediction)

    def _lacking(self, candidate: Candidate) -> float:
        """How many times as small activations and workspace must be."""
        held = candidate.prediction.memory
        split = held.activations + held.workspace
        room = self.memory - (held.total - split)
        return split / room if room > 0 else math.inf


def _strategies(
    graph: OperatorGraph, cluster: Cluster, training: Options
) -> Iterator[tuple[str, Iterator[_Way]]]:
    """Names, and the ways in which each can be had."""
    try:
        facts = transformer_facts(graph)
    except InputError:
        yield from _of_samples(graph, cluster, training)
        return
    ways = _Transformer(graph, cluster, facts, training)
    yield "DDP", ways.data(0, "DDP", recompute=False)
    yield "FSDP (ZeRO 3)", ways.data(3, "FSDP (ZeRO 3)", recompute=False)
    yield "FSDP + AC", ways.data(3, "FSDP + AC", recompute=True)
    if 1 < ways.machine < cluster.devices:
        yield "HSDP", ways.hybrid()
    yield "TP x DP", ways.tensor()
    yield "TP x PP x DP", ways.pipeline()
    if facts.positions >= LONG or facts.samples % cluster.devices:
        yield "CP x FSDP", ways.context()
    if facts.experts:
        yield "EP x DP", ways.expert()


def _of_samples(
    graph: OperatorGraph, cluster: Cluster, training: Options
) -> Iterator[tuple[str, Iterator[_Way]]]:
    """What any model can be trained with: data parallelism and ZeRO."""
    base = data_parallel(graph, cluster)
    sizes = factors(cluster)
    ways = max(
        math.prod(f.size for f, role in zip(sizes, layout.roles, strict=True) if role == "sample")
        for layout in base.layout.values()
    )
    each = max(1, workload(graph).samples // ways)

    def way(name: str, zero: int, recompute: bool) -> tuple[str, Iterator[_Way]]:
        def made(count: int, again: bool) -> Plan:
            options = replace(
                training, zero=zero, micro_batches=count, recompute=again, bucket=LAYERWISE,
                sync_each=zero >= SHARDS_GRADIENTS and count > 1,
            )  # fmt: skip
            return replace(base.changed(options=options), origin=name)

        return name, iter([_Way(name, each, 1, (recompute,), made)])

    yield way("DDP", 0, False)
    yield way("ZeRO 1", 1, False)
    yield way("FSDP (ZeRO 3)", 3, False)
    if layers(graph):
        yield way("FSDP + AC", 3, True)


class _Transformer:
    """Configurations of a model with repeated attention layers."""

    def __init__(
        self, graph: OperatorGraph, cluster: Cluster, facts: Facts, training: Options
    ) -> None:
        self.graph, self.cluster, self.facts = graph, cluster, facts
        self.base = ParallelConfig(
            data=cluster.devices,
            optimizer=training.optimizer,
            mixed=training.mixed,
            bucket=LAYERWISE,
        )
        inside = intra_machine_factors(cluster)
        self.machine = math.prod(factors(cluster)[f].size for f in inside)

    def data(self, zero: int, name: str, *, recompute: bool) -> Iterator[_Way]:
        """Samples on all devices."""
        yield self._way(name, replace(self.base, zero=zero), (recompute,))

    def hybrid(self) -> Iterator[_Way]:
        """Samples on all devices, shards inside machines, copies of them across."""
        config = replace(self.base, zero=3, shard_within=self.machine)
        yield self._way(f"HSDP {self.machine} x {config.replicas}", config, (False, True))

    def tensor(self) -> Iterator[_Way]:
        """Tensor parallelism inside machines, data parallelism across."""
        for wide in self._tensor_degrees():
            config = self._tensor(wide)
            yield self._way(f"TP {wide} x DP {config.data}", config, (False, True))

    def pipeline(self) -> Iterator[_Way]:
        """The fewest stages that fit, of the widest tensor parallelism first."""
        for wide in self._tensor_degrees():
            for stages in STAGES:
                config = self._tensor(wide, stages)
                if config.devices == self.cluster.devices and self.facts.layers % stages == 0:
                    name = f"TP {wide} x PP {stages} x DP {config.data}"
                    yield self._way(name, config, (False, True))

    def context(self) -> Iterator[_Way]:
        """Sequences cut the fewest ways that leave every device a sample."""
        for ways in divisors(self.cluster.devices)[1:]:
            data = self.cluster.devices // ways
            if self.facts.positions % (2 * ways) == 0 and self.facts.samples % data == 0:
                config = replace(self.base, context=ways, data=data, zero=3)
                name = f"CP {ways} x FSDP {data}"
                yield self._way(name, config, (False, True))

    def expert(self) -> Iterator[_Way]:
        """Experts over the devices of a machine."""
        wide = [n for n in divisors(self.machine) if self.facts.experts % n == 0]
        config = replace(self.base, expert=wide[-1], zero=1)
        yield self._way(f"EP {wide[-1]} x DP {config.data}", config, (False, True))

    def _tensor_degrees(self) -> list[int]:
        """The widest first."""
        heads = math.gcd(self.facts.heads, self.facts.key_value_heads)
        return [n for n in reversed(divisors(self.machine)) if n > 1 and heads % n == 0]

    def _tensor(self, wide: int, stages: int = 1) -> ParallelConfig:
        data = max(1, self.cluster.devices // (wide * stages))
        return replace(self.base, tensor=wide, pipeline=stages, data=data, sequence=True, zero=1)

    def _way(self, name: str, config: ParallelConfig, recompute: tuple[bool, ...]) -> _Way:
        def made(count: int, again: bool) -> Plan:
            # As FSDP2 does if nobody asks for its no_sync.
            each = config.zero >= SHARDS_GRADIENTS and count > 1
            changed = replace(config, micro_batches=count, recompute=again, sync_each=each)
            return replace(configured(self.graph, self.cluster, changed), origin=name)

        each = max(1, self.facts.samples // config.data)
        least = FILLED * config.pipeline if config.pipeline > 1 else 1
        return _Way(name, each, least, recompute, made)
