"""Warm starts of the Metropolis chains: best plans and baselines. Enters: what a search has kept,
the best first. Leaves: `WarmStart`s.

Walks begin at the best plans of the best graphs and sets of options, and, where a graph is small,
at its baselines: what walks find there may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from meshwright.plan.options import Options
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.sharding.reshard import Codes

SETS = 2
"""Graphs with a set of options that are walked with."""

PLANS = 5
"""Plans of each that are walked from."""

LARGE = 150
"""Units from which on there is no time for a start afresh."""


class WarmStart(NamedTuple):
    """Plans of one graph with one set of options."""

    context: GraphContext
    options: Options
    roles: dict[str, Codes]
    """By their origin."""
    afresh: bool = False
    """Whether they are far from the best plans, and have a long way to go."""

    @property
    def origin(self) -> str:
        """Where the best of them comes from."""
        return next(iter(self.roles))


def starts(
    ranked: Sequence[CandidateEntry], context: GraphContext, baselines: Collection[str]
) -> Iterator[WarmStart]:
    """The starts of plans with one micro-batch; `context` is that of the graph as it was given, of
    which there are baselines by their origins.
    """
    warm_starts: dict[object, WarmStart] = {}
    for entry in ranked:
        options = entry.candidate.plan.options
        key = (id(entry.context), options)
        if (options.micro_batches == 1 and len(warm_starts) < SETS) or key in warm_starts:
            start = warm_starts.setdefault(key, WarmStart(entry.context, options, {}))
            if len(start.roles) < PLANS:
                start.roles[f"{entry.candidate.plan.origin} {len(start.roles) + 1}"] = entry.roles
    yield from warm_starts.values()
    afresh = {
        other.candidate.plan.origin: other.roles
        for other in ranked
        if other.context is context and other.candidate.plan.origin in baselines
    }
    if warm_starts and afresh and len(context.units) < LARGE:
        yield WarmStart(context, next(iter(warm_starts.values())).options, afresh, afresh=True)
