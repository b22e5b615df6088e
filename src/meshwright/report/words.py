"""Plain-language descriptions of reduction programs, placements and models. Enters: nouns with
their predictions. Leaves: sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

import msgspec

from meshwright.base.quantities import (
    Seconds,
    format_bytes,
    format_count,
    format_gibibytes,
    format_seconds,
)
from meshwright.collectives.dsl import (
    ROOT,
    InsideGroup,
    Master,
    Parallel,
    Program,
    ReductionInstruction,
)
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.rank import RankedPlacement, ReductionPrice
from meshwright.sharding.placement import Placement

if TYPE_CHECKING:
    from meshwright.cost.figures import ModelFigures


def describe_program(program: Program) -> str:
    """What a program does, step by step.

    >>> describe_program(Program.parse("node.InsideGroup.Reduce; node.Master(root).AllReduce"))
    'Reduce in node → AllReduce across node (masters)'
    """
    return " → ".join(map(_describe_step, program.instructions)) or "nothing to do"


def _describe_step(instruction: ReductionInstruction) -> str:
    name, form = instruction.collective.value, instruction.form
    match form:
        case InsideGroup():
            where = f" in {instruction.slice}" if instruction.slice != ROOT else ""
        case Parallel(under) | Master(under):
            where = f" across {instruction.slice}"
            where += f" in {under}" if under != ROOT else ""
            where += " (masters)" if isinstance(form, Master) else ""
        case _:
            assert_never(form)
    return name + where


def describe_model(graph: OperatorGraph, figures: ModelFigures) -> str:
    """What a captured model is, in a few lines; repeated layers are folded."""
    memory = figures.memory
    held = ", ".join(
        f"{name} {format_gibibytes(value)}"
        for name, value in msgspec.structs.asdict(memory).items()
        if value
    )
    lines = [
        f"{figures.name}: {figures.operators} operators, {format_count(figures.parameters)} "
        f"parameters",
        f"a step: {format_count(figures.forward_flops)}FLOP forward, "
        f"{format_count(figures.backward_flops)}FLOP backward",
        f"memory at the peak of a step (predicted): {format_gibibytes(memory.total)} ({held})",
    ]
    for repeat in figures.repeats:
        kinds = Counter(graph.operators[i].kind for i in repeat.layer(0))
        names = ", ".join(f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items())
        lines.append(f"{repeat.count} times: {names}")
    return "\n".join(lines)


def explain_ranking(ranking: Sequence[RankedPlacement], level_names: Sequence[str]) -> str:
    """Why the first placement wins, in a few sentences.

    They speak of the reduction whose time tells the first placement from the next best.
    """
    best = ranking[0]
    if not any(price.best.steps for price in best.reductions):
        return (
            f"{best.placement} needs no communication: every reduction is over an axis of size 1."
        )
    slower = next((r for r in ranking if r.best_seconds > best.best_seconds * 1.001), None)
    telling = _telling(best, slower)
    mine = best.reductions[telling]
    sentences = [
        f"{best.placement} wins: {_where(best.placement, mine, level_names)}.",
        _program_gain(mine),
    ]
    if slower is not None:
        ratio = slower.best_seconds / best.best_seconds
        where = _where(slower.placement, slower.reductions[telling], level_names)
        sentences.append(f"The next best, {slower.placement}, takes {ratio:.3g}x as long: {where}.")
    elif len(ranking) > 1:
        sentences.append("All other placements are predicted to be as fast.")
    return " ".join(sentences)


def _telling(best: RankedPlacement, slower: RankedPlacement | None) -> int:
    """The reduction that costs the slower placement most beyond what it costs the best."""
    if slower is None:
        costs = [price.best_seconds for price in best.reductions]
    else:
        pairs = zip(best.reductions, slower.reductions, strict=True)
        costs = [Seconds(b.best_seconds - a.best_seconds) for a, b in pairs]
    return costs.index(max(costs))


def _where(placement: Placement, price: ReductionPrice, level_names: Sequence[str]) -> str:
    """Where a reduction lies on the machine, and what holds it up."""
    axes = "+".join(price.reduction.axes)
    slowest = max(price.best.steps, key=lambda step: step.seconds, default=None)
    if slowest is None:
        return f"the reduction over {axes} needs no communication"
    crossed = levels_crossed(placement, price.reduction.axes, level_names)
    stays = crossed == [level_names[-1]] and len(level_names) > 1
    place = f"never leaves a {level_names[-2]}" if stays else f"crosses {' and '.join(crossed)}"
    time = format_seconds(price.best_seconds)
    return f"the reduction over {axes} {place} and takes {time}, paced by {slowest.link}"


def levels_crossed(
    placement: Placement, axes: Sequence[str], level_names: Sequence[str]
) -> list[str]:
    """The levels at which devices that reduce together differ."""
    rows = [
        row for axis, row in zip(placement.axes, placement.matrix, strict=True) if axis.name in axes
    ]
    return [name for j, name in enumerate(level_names) if any(row[j] > 1 for row in rows)]


def _program_gain(price: ReductionPrice) -> str:
    if price.best_seconds > price.all_reduce_seconds * 0.99:
        return "No program is faster there than a single AllReduce."
    first, speedup = price.best.steps[0], price.all_reduce_seconds / price.best_seconds
    smallest = min(price.best.steps, key=lambda step: step.held)
    text = f"Its program, {describe_program(price.best.program)}, is {speedup:.3g}x as fast as a "
    text += f"single AllReduce ({format_seconds(price.all_reduce_seconds)})"
    if smallest.held < first.held:
        held, whole = format_bytes(round(smallest.held)), format_bytes(round(first.held))
        text += f", because each device has only {held} of {whole} to send where it is slowest"
    return text + "."
