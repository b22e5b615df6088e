"""Operators whose parts talk to each other, on real ranks: the numbers of one device, and the bytes
that were predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import pytest

from meshwright.lower.script import Script
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import REPLICA, Layout, MeshFactor, factors
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support.drawn_plans import Drawn
from support.executed import tiny
from support.machines import machine
from support.proved import verdicts

pytestmark = pytest.mark.ranks

FOLLOWING = ("sample", "channel")
"""What the units around are cut along, along the outer and the inner factor."""


def layout(
    unit: OpGroup, wanted: Sequence[Sequence[str]], mesh_factors: Sequence[MeshFactor], micro: int
) -> Layout:
    """Each factor with a wanted split, or what the units around have, or a copy."""
    roles: list[str] = []
    names = [split.name for split in unit.splits]
    for factor, some, fallback in zip(mesh_factors, wanted, FOLLOWING, strict=True):
        for name in (*some, fallback, REPLICA):
            if name == REPLICA:
                roles.append(name)
            elif name in names:
                number, before = names.index(name), factor.size ** roles.count(name)
                ways = before * factor.size * unit.micro_ways(number, micro)
                if unit.cuttable(number, ways):
                    roles.append(name)
                    break
    return Layout(tuple(roles))


def drawn(model: str, wanted: Sequence[str], micro_batches: int = 1, inside: bool = False) -> Drawn:
    """A plan on 2 x 2 devices that cuts along the wanted splits, or only along the inner factor."""
    graph, cluster = tiny(model, 8).graph, machine(2, 2)
    mesh_factors = factors(cluster)
    every = ((), wanted) if inside else (wanted, wanted)
    layouts = [layout(unit, every, mesh_factors, micro_batches) for unit in units(graph)]
    options = Options(micro_batches=micro_batches)
    return Drawn(model, 8, "float64", (), Plan.of("by hand", graph, cluster, layouts, options))


def all_reduces(draw: Drawn) -> int:
    """How many operators all-reduce inside them, on all devices."""
    parallel = Script(draw.plan).parallel
    sizes = parallel.machine.sizes
    places = [parallel.machine.coordinates(device) for device in range(prod(sizes))]
    return sum(
        bool(piece.summing)
        for tasks in parallel.tasks
        for coordinate in places
        if tasks.works(coordinate)
        for piece in tasks.pieces(coordinate, 0)
    )


CASES = [
    ("rnnlm", ("hidden", "class")),
    ("nmt", ("hidden", "class", "dim2")),
    ("rnntc", ("hidden",)),
    ("gpt2-xl", ("class", "channel")),
    ("gpt2-xl", ("key",)),
    ("llama3-8b", ("key", "class")),
]


@pytest.mark.parametrize(("model", "wanted"), CASES)
def test_parts_that_talk_equal_one_device(model: str, wanted: tuple[str, ...]) -> None:
    plans = [drawn(model, wanted), drawn(model, wanted, inside=True)]
    plans.append(drawn(model, wanted, micro_batches=2, inside=True))
    assert all(all_reduces(draw) for draw in plans)
    for verdict in verdicts(plans):
        assert verdict.strict, str(verdict)
