"""Gradient buckets and ZeRO's sharded parameters. Enters: wiring. Leaves: `Bucket`s of parameters,
as the simulator prices them.
"""

from __future__ import annotations

from typing import NamedTuple

from meshwright.lower.bundles import bucketed, bundles, layers_of
from meshwright.lower.dataflow import Dataflow
from meshwright.sharding.states import PARTIAL


class BucketParameter(NamedTuple):
    """A parameter of a bucket."""

    name: str
    returns: tuple[int, ...]
    """How its readers leave its gradient, by number; none if it does not learn."""
    shards: tuple[int, ...]
    """The factors along which it is sharded: where its gradient is a pending sum."""


class Bucket(NamedTuple):
    """Parameters whose gradients travel together."""

    parameters: tuple[BucketParameter, ...]
    units: tuple[int, ...]
    """All units that read one of them."""


def buckets(wiring: Dataflow) -> tuple[Bucket, ...]:
    """The buckets of a plan, in the order in which the backward pass finishes them."""
    plan = wiring.plan
    kept = [
        own
        for own in bucketed(
            bundles(plan.graph, plan.units),
            plan.options.bucket,
            layers_of(plan.graph, plan.units),
        )
        if own.parameters
    ]
    return tuple(
        Bucket(
            tuple(_kept(wiring, source.name, source.trained) for source in own.sources),
            tuple(sorted({leg.unit for leg in own.legs})),
        )
        for own in sorted(kept, key=lambda own: -min(leg.unit for leg in own.legs))
    )


def _kept(wiring: Dataflow, name: str, trained: bool) -> BucketParameter:
    returns = tuple(n for n, own in enumerate(wiring.returns) if own.tensor == name)
    shards: tuple[int, ...] = ()
    if trained and wiring.plan.options.zero and returns:
        first = wiring.returns[returns[0]].lying.states
        shards = tuple(f for f, state in enumerate(first) if state == PARTIAL)
    return BucketParameter(name, returns if trained else (), shards)
