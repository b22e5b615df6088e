"""Plan request and plan result: what a search is asked, and what it answers. Enters: nothing.
Leaves: the nouns.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import msgspec

from meshwright.base.quantities import Bytes, Seconds, format_gibibytes, format_rate, format_seconds
from meshwright.base.sheet import Sheet, printed
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.software import describe_software
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.rewrite.library import UserRules
from meshwright.search.candidate import Candidate
from meshwright.search.joint.request.constraints import Constraints
from meshwright.simulate.throughput import Throughput, throughput

Minimize = Literal["time", "memory", "device-hours"]
MINIMIZE: tuple[Minimize, ...] = get_args(Minimize)

Stopped = Literal["complete", "budget", "interrupted"]


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to train, on what, and what counts."""

    graph: OperatorGraph
    cluster: Cluster
    memory: Bytes
    """What a plan may hold on a device."""
    training: Options = Options()
    """What the user has decided about training: the optimizer, mixed precision."""
    minimize: Minimize = "time"
    constraints: Constraints = Constraints()
    added: UserRules = UserRules()
    """Operators and rules of the user's own."""


class SearchImprovement(NamedTuple):
    """When the best plan of a search got better."""

    seconds: float
    """Of search."""
    step: float
    """Seconds."""
    phase: str
    """In which it was found."""


@printed
class PlanResult(NamedTuple):
    """The best plan, what it was chosen among, and how far from the best it can be."""

    question: PlanRequest
    best: Candidate
    baselines: tuple[tuple[str, Candidate], ...]
    refused: tuple[tuple[str, str], ...]
    """Baselines that do not apply, each with the reason."""
    front: tuple[Candidate, ...]
    """Of all candidates that were simulated those that no other beats in both time and memory."""
    bound: Seconds
    """No plan for the graphs that were looked at, with one micro-batch or as many as the best plan
    has, is faster; 0 if nobody asked."""
    graphs: int
    """How many graphs were looked at."""
    rewrites: tuple[str, ...]
    """The rules that made the plan's graph of the one that was asked about, with their places."""
    simulated: int
    """Plans that were simulated."""
    history: tuple[SearchImprovement, ...]
    """When the best got better."""
    seconds: float
    stopped: Stopped

    @property
    def plan(self) -> Plan:
        """The best plan itself."""
        return self.best.plan

    def sheet(self) -> Sheet:
        """The plan beside its baselines, and how good it is."""
        question, (plan, predicted) = self.question, self.best
        named, done = (*self.baselines, ("plan", self.best)), throughput(plan, predicted)
        unit = "tokens" if done.workload.tokens else "samples"
        return Sheet(
            f"{question.graph.name} on {question.cluster.name}: every figure is predicted, "
            f"priced as {describe_software(question.cluster)}",
            (
                ("step", format_seconds(predicted.step)),
                (f"{unit}/s", f"{_rate(done, 1)}, {_rate(done, done.devices)} a device"),
                ("MFU, HFU", f"{_share(done.mfu)}, {_share(done.hfu)}"),
                ("lower bound", f"{format_seconds(self.bound)}, gap at most {self.gap:.1%}"),
                (
                    "peak memory",
                    f"{format_gibibytes(predicted.memory.total)} of "
                    f"{format_gibibytes(question.memory)} a device",
                ),
                ("rewrites", ", ".join(self.rewrites) or "none"),
                (
                    "search",
                    f"{self.simulated} plans simulated in {self.seconds:.3g} s ({self.stopped})",
                ),
            ),
            ("strategy", "micro-batches", "step", f"{unit}/s/device", "MFU", "peak memory", "fits"),
            tuple(
                (
                    name,
                    str(candidate.plan.options.micro_batches),
                    format_seconds(candidate.prediction.step),
                    _rate(rates := throughput(*candidate), rates.devices),
                    _share(rates.mfu),
                    format_gibibytes(candidate.prediction.memory.total),
                    "yes" if candidate.fits(question.memory) else "no",
                )
                for name, candidate in named
            ),
        )

    @property
    def gap(self) -> float:
        """By how much a step can be longer than it must be, as a share of the bound."""
        return self.best.prediction.step / self.bound - 1 if self.bound else math.inf


def _rate(speed: Throughput, devices: int) -> str:
    """Tokens a second, or samples where there are none, of each of some devices."""
    return format_rate((speed.tokens_per_s or speed.samples_per_s) / devices)


def _share(value: float | None) -> str:
    return "not known" if value is None else f"{value:.1%}"
