"""Degree grid of a search: configurations by degrees of DP, TP, CP, PP and EP. Enters: a question,
trials so far. Leaves: more of them, and why degrees that are held cannot be.

The best of all configurations, with micro-batches, ZeRO, recomputation and virtual stages
(`baselines.degrees.grid`), on the graph as it is; the best of them on graphs that compute the same.
Where degrees of TP, CP or EP are held (`--tp`) nothing else is searched: no layout of one op group
says what a whole model is cut by.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.grid import ConfigChoices, Degree, Grid, search_grid
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.baselines.degrees.refusals import refusals
from meshwright.search.joint.coarse.global_config import savings, zero_group_sizes
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.request.constraints import (
    CP,
    DP,
    EP,
    MICRO_BATCHES,
    PP,
    RECOMPUTE,
    STAGES,
    TP,
    held_degrees,
    option,
)
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.evaluate import Evaluator

BEST = 3
"""Configurations that are laid out on other graphs."""

DEGREES: dict[str, Degree] = {
    DP: "data", TP: "tensor", CP: "context", EP: "expert", PP: "pipeline",
}  # fmt: skip
"""What a configuration calls the degree of an axis."""


def by_degrees(
    question: PlanRequest,
    trials: Evaluator,
    context: GraphContext,
    enough: Callable[[], bool],
    screening: Callable[[], bool],
) -> None:
    """Simulate configurations of a graph, and the best of them on the others; nothing if it has no
    layers with attention.
    """
    try:
        grid = Grid(context.graph, question.cluster, choices(question))
    except InputError:
        return
    search_grid(grid, partial(trials.configured, context), enough, screening)
    for config in trials.best_configured(context, BEST):
        for other in trials.contexts:
            if not enough():
                trials.configured(other, config)


def choices(question: PlanRequest) -> ConfigChoices:
    """What configurations may say."""
    constraints, training = question.constraints, question.training
    allowed, recompute = savings(constraints, 2), option(constraints, RECOMPUTE)
    stages = {saving.zero for saving in allowed}
    pipeline, degrees = option(constraints, STAGES), held_degrees(constraints)
    if pipeline is not None:
        degrees[PP] = pipeline
    return ConfigChoices(
        base=ParallelConfig(optimizer=training.optimizer, mixed=training.mixed),
        zero=tuple(sorted(stages)),
        within=zero_group_sizes(question, max(stages)),
        sync_each=tuple(sorted({saving.sync_each for saving in allowed})),
        recompute=(False, True) if recompute is None else (bool(recompute),),
        micro_batches=option(constraints, MICRO_BATCHES),
        held=tuple((DEGREES[axis], degree) for axis, degree in degrees.items()),
    )


def refuse_degrees(question: PlanRequest) -> None:
    """Refuse degrees that no configuration has, by what is wrong with the plainest one."""
    degrees = held_degrees(question.constraints)
    if not degrees:
        return
    graph, cluster, allowed = question.graph, question.cluster, choices(question)
    words = ", ".join(f"{axis}={degree}" for axis, degree in degrees.items())
    try:
        grid = Grid(graph, cluster, allowed)
    except InputError as error:
        raise InputError(
            f"{words}: {error.problem}", "hold a split instead, as --fix channel=4"
        ) from None
    if grid.screened:
        return
    ways = {DEGREES[axis]: degree for axis, degree in degrees.items()}
    taken = prod(degree for axis, degree in ways.items() if axis != "expert")
    left = cluster.devices // taken if cluster.devices % taken == 0 else 1
    config = replace(
        allowed.base,
        **({"data": left} | ways),
        uneven=True,
        micro_batches=allowed.micro_batches or 1,
    )
    for problem in refusals(graph, cluster, config):
        raise problem
    raise InputError(
        f"no configuration with {words} divides graph {graph.name!r} on {cluster.devices} devices",
        "hold fewer degrees, or others",
    )
