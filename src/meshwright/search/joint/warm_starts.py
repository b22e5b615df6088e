"""Where walks begin. Enters: what a search has kept, the best first. Leaves: `WarmStart`s.

Walks begin at the best plans of the best graphs and sets of options, and, where a graph is small,
at its baselines: what walks find there may be elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from meshwright.plan.options import Options
from meshwright.search.joint.candidates import CandidateEntry
from meshwright.search.joint.graph_context import GraphContext
from meshwright.sharding.reshard import Codes

SETS = 2
"""Graphs with a set of options that are walked with."""

PLANS = 5
"""Plans of each that are walked from."""

LARGE = 150
"""Units from which on there is no time for a start afresh."""


class WarmStart(NamedTuple):
    """Plans of one graph with one set of options."""

    bench: GraphContext
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
    ranked: Sequence[CandidateEntry], bench: GraphContext, baselines: Collection[str]
) -> Iterator[WarmStart]:
    """The starts of plans with one micro-batch; `bench` is that of the graph as it was given, of
    which there are baselines by their origins.
    """
    found: dict[object, WarmStart] = {}
    for own in ranked:
        options = own.candidate.plan.options
        key = (id(own.bench), options)
        if (options.micro_batches == 1 and len(found) < SETS) or key in found:
            start = found.setdefault(key, WarmStart(own.bench, options, {}))
            if len(start.roles) < PLANS:
                start.roles[f"{own.candidate.plan.origin} {len(start.roles) + 1}"] = own.roles
    yield from found.values()
    afresh = {
        own.candidate.plan.origin: own.roles
        for own in ranked
        if own.bench is bench and own.candidate.plan.origin in baselines
    }
    if found and afresh and len(bench.units) < LARGE:
        yield WarmStart(bench, next(iter(found.values())).options, afresh, afresh=True)
