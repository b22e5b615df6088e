"""Evaluation of a framework configuration: feasibility, memory, step time, bottleneck. Enters: what
is written, a graph, a machine. Leaves: `Checked`: whether it runs, whether it fits, what a step
takes and what holds it up, and better ones.

What a framework runs is priced with single collectives: it has no reduction programs. The plan of
the joint search has them, and may rewrite the graph.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds
from meshwright.baselines.degrees.facts import Facts, transformer_facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.degrees.placed import Rows, rows_of
from meshwright.baselines.degrees.refusals import refusals
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import running
from meshwright.configs.better import ConfigTrial, ConfigTrials
from meshwright.configs.changes import changes
from meshwright.configs.written import Written, settled
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.tables import pricer_of
from meshwright.explain.utilisation import occupancies
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import LAYERWISE
from meshwright.search.joint.request.question import PlanResult
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.simulation import Simulation

COMPUTING, BUBBLE = "computing", "pipeline bubble"

FIXES = 3
"""Changes that make a configuration fit which are told, at most."""


class ConfigLoad(NamedTuple):
    """How much of a step something takes."""

    what: str
    share: float
    seconds: Seconds


class Checked(NamedTuple):
    """The answer."""

    written: Written
    config: ParallelConfig
    facts: Facts
    cluster: Cluster
    memory: Bytes
    """What a device may hold."""
    problems: tuple[InputError, ...]
    """Why it does not run; nothing if it does."""
    rows: Rows | None
    """The parallelism matrix, if it runs."""
    simulation: Simulation | None
    loads: tuple[ConfigLoad, ...]
    """What takes a step's time, the most first: they overlap."""
    fixes: tuple[ConfigTrial, ...]
    """If it does not fit: one setting changed, so that it does."""
    best: ConfigTrial | None
    """The best configuration of the same form; None if nobody asked."""
    tried: int
    """Configurations that were simulated."""
    planned: PlanResult | None
    """The best plan of the joint search; None if nobody asked."""
    interrupted: bool = False
    """Whether an interrupt ended the search for better ones."""

    @property
    def missing(self) -> int:
        """By how many bytes a device is too small; 0 if it fits or does not run."""
        if self.simulation is None:
            return 0
        return max(0, self.simulation.prediction.memory.total - self.memory)

    def changes(self, to: ConfigTrial) -> tuple[str, ...]:
        """What to write into the file instead."""
        return changes(self.written.form, self.config, to.config, self.facts.samples)

    @property
    def good(self) -> bool:
        """Whether it runs and fits."""
        return self.simulation is not None and not self.missing


def judge(
    written: Written,
    graph: OperatorGraph,
    cluster: Cluster,
    memory: Bytes,
    *,
    backend: Backend = NCCL,
    better: bool = True,
) -> Checked:
    """Everything but the joint search."""
    facts = transformer_facts(graph)
    config = replace(settled(written, facts), bucket=LAYERWISE)
    cluster = running(cluster, written.software)
    prices = CollectivePrices(Pricer(cluster, backend, algorithm="best"), programs=False)
    operators = pricer_of(cluster.device)
    trials = ConfigTrials(graph, cluster, written.form, memory, prices, operators)
    said = [InputError(*problem) for problem in written.problems]
    problems = (*said, *refusals(graph, cluster, config))
    simulation = None if problems else trials.simulation(config)
    checked = Checked(
        written=written,
        config=config,
        facts=facts,
        cluster=cluster,
        memory=memory,
        problems=problems,
        rows=None if problems else rows_of(config.degrees, cluster),
        simulation=simulation,
        loads=() if simulation is None else resource_loads(simulation, config),
        fixes=(),
        best=None,
        tried=trials.simulated,
        planned=None,
    )
    if checked.missing:
        checked = checked._replace(fixes=tuple(trials.fixes(config)[:FIXES]))
    if better:
        try:
            checked = checked._replace(best=trials.best(config))
        except KeyboardInterrupt:
            checked = checked._replace(interrupted=True)
    return checked._replace(tried=trials.simulated)


def resource_loads(simulation: Simulation, config: ParallelConfig) -> tuple[ConfigLoad, ...]:
    """Computing on the busiest device, every kind of link where it is busiest, and the bubble.

    Of a pipeline's slots, c runs of layers for each of m micro-batches, p - 1 are lost to filling
    and draining: (p - 1) / (c m + p - 1).
    """
    step, compute = simulation.prediction.step, simulation.prediction.compute
    loads = [ConfigLoad(COMPUTING, compute / step, compute)]
    for occupancy in occupancies(simulation)[1:]:
        loads.append(ConfigLoad(occupancy.kind, occupancy.busiest_share, occupancy.busiest))
    lost = config.pipeline - 1
    if lost:
        share = lost / (config.chunks * config.micro_batches + lost)
        loads.append(ConfigLoad(BUBBLE, share, Seconds(share * step)))
    return tuple(sorted(loads, key=lambda load: -load.share))


def matrix_text(rows: Rows) -> str:
    """A parallelism matrix in a line.

    >>> matrix_text({"tensor": (1, 4), "data": (2, 2)})
    'tensor [1 4], data [2 2]'
    """
    return ", ".join(f"{axis} [{' '.join(map(str, row))}]" for axis, row in rows.items())
