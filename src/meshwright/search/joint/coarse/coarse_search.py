"""Coarse search over global configs: pipeline stages, micro-batches, ZeRO, recomputation. Enters: a
context. Leaves: coarse solutions, each with an estimate.

For every number of stages and of micro-batches the layouts are found that cost the least, and then
what saves memory is added until they should fit: ZeRO, then recomputation, or layouts that weigh
memory against time. Numbers of micro-batches that cannot beat what fits already are left out, and
more stages where more and more of them only took longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from meshwright.search.joint.coarse.global_config import (
    GlobalConfig,
    MemorySaving,
    framed,
    savings,
    shapes,
)
from meshwright.search.joint.coarse.graph_context import CoarseSolution, GraphContext
from meshwright.search.joint.coarse.layout_dp import LayoutWeights

SUMS = 0.5
"""How much gradient sums count where global configs are compared."""

FAR = 1.3
"""An estimate that is so many times the best is not looked into any further."""

MEMORY = (0.5, 4.0)
"""How much all the memory of a device that is left for tensors counts, in steps."""

FIRST, ALIKE = 8, 3
"""Coarse solutions that are simulated, and of those with the same stages and micro-batches."""


def coarse_solutions(context: GraphContext, enough: Callable[[], bool]) -> list[CoarseSolution]:
    """Coarse solutions of all global configs, the fastest that should fit first, then those that
    hold the least.

    There is one at least, however early somebody has had enough.
    """
    solutions: list[CoarseSolution] = []
    best: dict[tuple[int, ...], float] = {}
    settled = False
    for stages, micro in shapes(context.question, context.graph):
        if context.question.minimize == "time" and _more_and_more(best, stages):
            best[stages] = float("inf")
        far = best.get(stages, 0.0) > FAR * min(best.values(), default=float("inf"))
        if (solutions and enough()) or far or (settled and not stages):
            continue
        saved = list(_saved(context, stages, micro))
        solutions += saved
        for solution in filter(context.fits, saved):
            best[stages] = min(solution.estimate, best.get(stages, float("inf")))
            options = solution.global_config.options
            # Without a pipeline more micro-batches only save memory.
            slower = options.recompute or options.sync_each or options.zero == 3
            settled = settled or not (stages or slower)
    return sorted(solutions, key=context.order)


def _more_and_more(best: Mapping[tuple[int, ...], float], stages: tuple[int, ...]) -> bool:
    """Whether two numbers of fewer stages on the same level were far, the larger one even more."""
    if len(stages) < 3:
        return False
    fewer, fewest = (best.get(stages[:-n], 0.0) for n in (1, 2))
    return fewer >= fewest > FAR * min(best.values(), default=float("inf"))


def _saved(context: GraphContext, stages: tuple[int, ...], micro: int) -> Iterator[CoarseSolution]:
    """Layouts with one global config, saving more and more until they fit."""
    allowed = savings(context.question.constraints, micro)
    fitting = False
    for _, ways in groupby(allowed, key=lambda saving: (saving.recompute, saving.sync_each)):
        for solution in _each(context, stages, micro, list(ways)):
            fitting = fitting or context.fits(solution)
            yield solution
        if fitting:
            return


def _each(
    context: GraphContext, stages: tuple[int, ...], micro: int, allowed: list[MemorySaving]
) -> Iterator[CoarseSolution]:
    """The layouts that cost the least with each saving, and those that weigh memory."""
    for saving in allowed:
        global_config = framed(context.question, stages, micro, saving)
        if not context.possible(global_config):
            return
        solution = context.solution(global_config, LayoutWeights(sums=SUMS), fine=False)
        if not context.legal(solution):
            return  # Micro-batches are too small for degrees that are fixed.
        yield solution
        if context.fits(solution) or saving.zero in (2, 3):
            continue
        for share in MEMORY:
            weight = share * solution.estimate / context.room(solution)
            yield context.solution(
                global_config, LayoutWeights(sums=SUMS, memory=weight), fine=False
            )


def varied(solutions: list[CoarseSolution]) -> list[CoarseSolution]:
    """The first coarse solutions, but not too many of one kind, and the first without a
    pipeline.
    """
    kinds: dict[object, int] = {}
    chosen: list[CoarseSolution] = []
    for solution in solutions:
        kind = (solution.global_config.stages, solution.global_config.options.micro_batches)
        first = not solution.global_config.stages and all(
            other.global_config.stages for other in chosen
        )
        if (len(chosen) < FIRST and kinds.get(kind, 0) < ALIKE) or first:
            kinds[kind] = kinds.get(kind, 0) + 1
            chosen.append(solution)
    return chosen


def finer(global_configs: list[GlobalConfig], fitting: list[GlobalConfig]) -> list[GlobalConfig]:
    """The global configs to lay out finer: of the best shape and of the best without a pipeline,
    the best global config and those that should fit with other stages of ZeRO.
    """
    plain = [global_config for global_config in global_configs if not global_config.stages]
    chosen = []
    for best in dict.fromkeys((*plain[:1], *global_configs[:1])):
        alike = {
            global_config.options.zero: global_config
            for global_config in reversed(fitting)
            if _shape(global_config) == _shape(best)
        }
        chosen += [best, *(alike[zero] for zero in (0, 1) if zero in alike)]
    return list(dict.fromkeys(chosen))


def _shape(global_config: GlobalConfig) -> object:
    options = global_config.options
    return global_config.stages, options.micro_batches, options.recompute
