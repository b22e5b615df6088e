"""Task graphs from lists, and a training step whose units can be moved between devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeVar, cast

import numba
import numpy as np

from meshwright.base.compiled import BARE
from meshwright.simulate.tasks import NOWHERE, Indices, Ints, TaskGraph

Edge = tuple[int, int]
Function = TypeVar("Function", bound=Callable[..., object])

UNITS = 200
DEVICE, LINK = 0, 1
FORWARD, BACKWARD, SYNC, UPDATE = range(4)


def compiled(function: Function) -> Function:
    """The function, compiled in every process: on disk is kept only what the package says."""
    return cast(Function, numba.njit(**BARE)(function))


class Step(NamedTuple):
    """A training step whose units can move: the tasks and edges of each unit and of each pair."""

    graph: TaskGraph
    layout: Indices
    """[units] the set of devices of each; the set of their links follows `layouts` later."""
    size: Ints
    """[layouts] devices."""
    work: Ints
    """[units] nanoseconds of a forward pass on one device."""
    pair: Indices
    """[pairs, 2] units of which one feeds the other."""
    pairs_start: Indices
    pairs_of: Indices
    """The pairs of each unit."""
    sync_edges: Indices
    """[units, 3] backward to sync, sync to update, backward to update."""
    pair_edges: Indices
    """[pairs, 6] through the transfer, its second half, past it; the same backward."""


def pairs_of_units() -> list[tuple[int, int]]:
    """Blocks of five units: one, three branches of it side by side, one that joins them."""
    pairs = []
    for first in range(0, UNITS, 5):
        if first:
            pairs.append((first - 1, first))
        pairs += [(first, first + branch) for branch in (1, 2, 3)]
        pairs += [(first + branch, first + 4) for branch in (1, 2, 3)]
    return pairs


def training_step(devices: int, random: Random, longest: int = 100_000) -> Step:
    """All units on all devices: data parallelism; `longest` is the longest forward pass in ns."""
    pairs = pairs_of_units()
    n = 4 * UNITS + 2 * len(pairs)

    def task(unit: int, part: int) -> int:
        return 4 * unit + part

    edges: list[tuple[int, int]] = []
    for unit in range(UNITS):
        b, s, u = (task(unit, part) for part in (BACKWARD, SYNC, UPDATE))
        edges += [(b, s), (s, u), (b, u), (task(unit, FORWARD), b)]
    for pair, (a, b) in enumerate(pairs):
        forward, backward = 4 * UNITS + 2 * pair, 4 * UNITS + 2 * pair + 1
        fa, fb, ba, bb = task(a, FORWARD), task(b, FORWARD), task(a, BACKWARD), task(b, BACKWARD)
        edges += [(fa, forward), (forward, fb), (fa, fb), (bb, backward), (backward, ba), (bb, ba)]
    sets = [list(range(at, at + size)) for size in sizes(devices) for at in range(0, devices, size)]
    links = [[devices + r for r in members] for members in sets]
    number = {edge: i for i, edge in enumerate(sorted(edges, key=lambda edge: edge[0]))}
    graph = task_graph(
        edges,
        [1] * n,
        [[NOWHERE]] * n,
        sets + links,
        [DEVICE] * devices + [LINK] * devices,
        hold=[[0, 0]] * n,
        live=[t < 4 * UNITS for t in range(n)],
        edge_live=[False] * len(edges),
    )
    for unit in range(UNITS):
        graph.edge_live[number[task(unit, FORWARD), task(unit, BACKWARD)]] = True
    of_unit: list[list[int]] = [[] for _ in range(UNITS)]
    for i, (a, b) in enumerate(pairs):
        of_unit[a].append(i)
        of_unit[b].append(i)
    step = Step(
        graph,
        np.zeros(UNITS, np.int32),
        np.array([len(members) for members in sets], np.int64),
        np.array([random.randint(1, 40) * longest // 40 for _ in range(UNITS)], np.int64),
        np.array(pairs, np.int32),
        np.cumsum([0, *map(len, of_unit)]).astype(np.int32),
        np.array([i for pair_numbers in of_unit for i in pair_numbers], np.int32),
        np.array([[number[e] for e in edges[4 * u : 4 * u + 3]] for u in range(UNITS)], np.int32),
        np.array(
            [
                [number[e] for e in edges[4 * UNITS + 6 * i : 4 * UNITS + 6 * i + 6]]
                for i in range(len(pairs))
            ],
            np.int32,
        ),
    )
    touched, flipped = np.zeros(n, np.int32), np.zeros(len(edges), np.int32)
    for unit in range(UNITS):
        lay(step, unit, 0, touched, flipped)
    return step


def sizes(devices: int) -> list[int]:
    """All devices, half of them, ... one."""
    return [devices >> k for k in range(devices.bit_length())]


@compiled
def lay(step: Step, unit: int, layout: int, touched: Indices, flipped: Indices) -> tuple[int, int]:
    """Put a unit on a set of devices; leaves how many tasks were touched and edges flipped."""
    graph, size = step.graph, step.size[layout]
    step.layout[unit] = layout
    pass_time = step.work[unit] * step.size[0] // size + 5_000
    count = flips = 0
    for part in range(4):
        t = 4 * unit + part
        graph.places[t, 0] = layout
        graph.duration[t] = pass_time * (1 + (part == BACKWARD)) if part < SYNC else 3_000
        graph.hold[t, DEVICE] = graph.duration[t]
        touched[count] = t
        count += 1
    t = 4 * unit + SYNC
    graph.joint[t] = True
    graph.places[t, 0] = layout + len(step.size)
    graph.duration[t] = 10_000 + 60_000 * (size - 1) // size
    graph.hold[t, DEVICE], graph.hold[t, LINK] = 0, graph.duration[t]
    flips = switch(graph, t, size > 1, step.sync_edges[unit], 0, flipped, flips)
    for at in range(step.pairs_start[unit], step.pairs_start[unit + 1]):
        pair = step.pairs_of[at]
        a, b = step.layout[step.pair[pair, 0]], step.layout[step.pair[pair, 1]]
        for backward in range(2):
            t = 4 * UNITS + 2 * pair + backward
            graph.joint[t] = True
            graph.places[t, 0], graph.places[t, 1] = a + len(step.size), b + len(step.size)
            graph.duration[t] = 8_000 + 200_000 // min(step.size[a], step.size[b])
            graph.hold[t, LINK] = graph.duration[t] - 8_000
            flips = switch(graph, t, a != b, step.pair_edges[pair], 3 * backward, flipped, flips)
            touched[count] = t
            count += 1
    return count, flips


@compiled
def switch(
    graph: TaskGraph,
    t: int,
    live: bool,
    edges: Indices,
    first: int,
    flipped: Indices,
    flips: int,
) -> int:
    """Send what flows through a task or past it; leaves how many edges were flipped so far."""
    graph.live[t] = live
    for at in range(3):
        edge = edges[first + at]
        if graph.edge_live[edge] != (live == (at < 2)):
            graph.edge_live[edge] = not graph.edge_live[edge]
            flipped[flips] = edge
            flips += 1
    return flips


def task_graph(
    edges: Sequence[Edge],
    duration: Sequence[int],
    places: Sequence[Sequence[int]],
    sets: Sequence[Sequence[int]],
    kinds: Sequence[int],
    *,
    joint: Sequence[bool] | None = None,
    hold: Sequence[Sequence[int]] | None = None,
    live: Sequence[bool] | None = None,
    edge_live: Sequence[bool] | None = None,
) -> TaskGraph:
    """A graph from lists; by default all live, no task joint, each holding all it uses throughout.

    Edges are numbered by their first task, then as given.
    """
    n = len(duration)
    by_first = sorted(range(len(edges)), key=lambda i: edges[i][0])
    wanted = [True] * len(edges) if edge_live is None else edge_live
    firsts = [edges[i][0] for i in by_first]
    seconds = [edges[i][1] for i in by_first]
    by_second = sorted(range(len(edges)), key=lambda i: seconds[i])
    count = max(kinds, default=0) + 1
    return TaskGraph(
        live=np.array([True] * n if live is None else live, np.bool_),
        duration=np.array(duration, np.int64),
        joint=np.array([False] * n if joint is None else joint, np.bool_),
        places=np.array([[*p, NOWHERE, NOWHERE][:2] for p in places], np.int32).reshape(n, 2),
        hold=np.array([[d] * count for d in duration] if hold is None else hold, np.int64).reshape(
            n, count
        ),
        set_start=_starts([len(s) for s in sets]),
        set_resource=np.array([r for s in sets for r in s], np.int32),
        resource_kind=np.array(kinds, np.int32),
        succ_start=_starts(np.bincount(np.array(firsts, int), minlength=n).tolist()),
        succ=np.array(seconds, np.int32),
        edge_live=np.array([wanted[i] for i in by_first], np.bool_),
        pred_start=_starts(np.bincount(np.array(seconds, int), minlength=n).tolist()),
        pred=np.array([firsts[i] for i in by_second], np.int32),
        pred_edge=np.array(by_second, np.int32),
    )


def _starts(lengths: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.concatenate(([0], np.cumsum(np.array(lengths, int)))).astype(np.int32)
