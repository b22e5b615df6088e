"""Differences between a plan and its exported configuration. Enters: a plan, the plan that the
configuration means. Leaves: a sentence for each difference, none if they are the same.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from meshwright.base.quantities import counted, format_bytes
from meshwright.baselines.degrees.configured import layers_per_virtual_stage
from meshwright.baselines.degrees.facts import layer_starts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.roles import work
from meshwright.collectives.dsl import Program
from meshwright.export.uniform import runs_of
from meshwright.plan.options import LAYERWISE
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import matrix

Over = frozenset[int]
"""Mesh factors, by number."""

NAMED = 3
"""Kinds of units that are named, at most."""

LEAST = 0.005
"""Less than this share of the work is not told."""


def lost_plan_settings(
    plan: Plan, written: Plan, share: float, *, programs: bool, carried: Mapping[str, Over] = {}
) -> Iterator[str]:
    """What a plan says and another does not; `share` of its work has the other's axes, and
    collectives over the factors that `carried` names keep their steps.
    """
    if plan.graph != written.graph:
        yield (
            f"the plan rewrote the graph ({len(plan.graph.operators)} operators instead of "
            f"{len(written.graph.operators)}); the model runs as its code says"
        )
        if 1 - share >= LEAST:
            yield f"axes of {1 - share:.0%} of the FLOPs are others in the plan"
    else:
        yield from _layouts(plan, written)
    if not programs:
        yield from _programs(plan, carried)
    if plan.options.bucket not in (0, LAYERWISE):
        yield f"gradients of {format_bytes(plan.options.bucket)} are reduced together in the plan"


def _layouts(plan: Plan, written: Plan) -> Iterator[str]:
    total, other = sum(map(work, plan.units)), Counter[str]()
    example: dict[str, str] = {}
    for unit in plan.units:
        planned, exported = (
            matrix(variant.layout[unit.name], plan.cluster) for variant in (plan, written)
        )
        if planned != exported:
            kind = re.sub(r"\.\d+(?=\.|$)", ".*", unit.name)
            other[kind] += work(unit)
            example.setdefault(kind, str(plan.layout[unit.name]))
    share = sum(other.values()) / total if total else 0.0
    if share >= LEAST:
        named = [
            f"{kind} ({example[kind]})" for kind, flops in other.most_common(NAMED) if flops > 0
        ]
        rest = f" and {len(other) - len(named)} others" if len(other) > len(named) else ""
        yield f"layouts of {share:.0%} of the FLOPs: the plan has {', '.join(named)}{rest}"


def _programs(plan: Plan, carried: Mapping[str, Over]) -> Iterator[str]:
    several = sum(len(Program.parse(reduction.program)) > 1 for reduction in plan.programs)
    if several:
        yield f"{counted(several, 'reduction program')} of several steps become single collectives"
    steps = sum(
        len(chain.steps) > 1 and carried.get(chain.collective) != frozenset(chain.over)
        for chain in plan.chains
    )
    if steps:
        yield f"{counted(steps, 'collective')} in steps: single ones instead"


def lost_stages(plan: Plan, pipeline: tuple[int, ...], config: ParallelConfig) -> Iterator[str]:
    """Stages of other layers than the plan's."""
    runs, written = (
        runs_of(plan, pipeline),
        layers_per_virtual_stage(config, len(layer_starts(plan.graph))),
    )
    if runs != written:
        planned, instead = (" + ".join(map(str, layer_counts)) for layer_counts in (runs, written))
        yield f"stages of {planned} layers: {instead} instead"
