"""Min-max chain partition of a graph into stages of unlike speed, by dynamic programming. Enters: a
graph, how long each operator takes on each stage. Leaves: cuts between operators.

    minimise max over stages s of the sum of load_s over its operators

by dynamic programming over (stage, position), at positions that the least crosses: where one tensor
with a gradient does, and of these the ones with the fewest bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.stage_graph import flowing

MOST = 200
"""Positions that are looked at."""


class IslandCut(NamedTuple):
    """A place between operators."""

    position: int
    """Operators before it."""
    bytes: int
    """Of tensors with a gradient that cross."""


def cuts_of(graph: OperatorGraph) -> tuple[IslandCut, ...]:
    """The places where stages can begin, in order."""
    order = {operator.name: number for number, operator in enumerate(graph.operators)}
    count = len(graph.operators)
    tensors, sizes = [0] * (count + 1), [0] * (count + 1)
    flows = flowing(graph)
    for operator in graph.operators:
        for tensor in operator.outputs:
            readers = [order[reader.name] for reader in graph.consumers[tensor.name]]
            if tensor.name in flows and readers:
                for at, sign in ((order[operator.name] + 1, 1), (max(readers) + 1, -1)):
                    tensors[at] += sign
                    sizes[at] += sign * tensor.spec.bytes
    cuts: list[IslandCut] = []
    crossing = held = 0
    for position in range(count):
        crossing += tensors[position]
        held += sizes[position]
        if position > 0 and crossing == 1:
            cuts.append(IslandCut(position, held))
    if len(cuts) > MOST:
        least = min(cut.bytes for cut in cuts)
        cuts = [cut for cut in cuts if cut.bytes <= least]
    step = -(-len(cuts) // MOST) or 1
    return tuple(cuts[::step])


def partition(
    loads: Sequence[Sequence[float]], cuts: Sequence[int], count: int
) -> tuple[int, ...] | None:
    """For each stage but the last the cut behind it, so that the slowest is as fast as can be;
    None if there are fewer cuts than that needs. `loads[s]` are those of all operators on stage s.

    >>> partition([[1, 1, 1, 1], [3, 3, 3, 3]], [1, 2, 3], 4)
    (3,)
    """
    stages = len(loads)
    if len(cuts) < stages - 1:
        return None
    places = [0, *cuts, count]
    before = []
    for stage_loads in loads:
        sums = [0.0]
        for load in stage_loads:
            sums.append(sums[-1] + load)
        before.append([sums[place] for place in places])
    best = [math.inf] * len(places)
    best[0] = 0.0
    origins: list[list[int]] = []
    for stage in range(stages):
        after, origin = [math.inf] * len(places), [0] * len(places)
        for end in range(stage + 1, len(places)):
            for begin in range(stage, end):
                slowest = max(best[begin], before[stage][end] - before[stage][begin])
                if slowest < after[end]:
                    after[end], origin[end] = slowest, begin
        best = after
        origins.append(origin)
    if math.isinf(best[-1]):
        return None
    chosen, place = [], len(places) - 1
    for stage in range(stages - 1, 0, -1):
        place = origins[stage][place]
        chosen.append(places[place])
    return tuple(reversed(chosen))
