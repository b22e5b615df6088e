"""Random task graphs, right by construction, and random changes of them.

A graph is drawn from a source of random numbers, so that hypothesis can shrink it and a seed can
give thousands. Numbers of tasks say nothing of their order in time; most times are equal to others.
"""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import NamedTuple

import numpy as np

from meshwright.simulate.tasks import NOWHERE, TaskGraph
from task_graphs import Edge, task_graph


def random_graph(random: Random, most: int = 24) -> TaskGraph:
    """A graph of one of several shapes."""
    n = random.randint(1, most)
    shape = random.choice((_anything, _layers, _chains, _step))
    edges = shape(random, n)
    names = list(range(n))
    if random.random() < 0.5:
        random.shuffle(names)
    edges = [(names[a], names[b]) for a, b in edges]
    resources = random.choice((1, 3, 6, 70))
    kinds = [random.randint(0, 1) for _ in range(resources)]
    sets = [
        random.sample(range(resources), random.randint(0, min(resources, 4)))
        for _ in range(random.randint(1, 6))
    ]
    alive = random.choice((0.6, 0.9, 1.0))
    live = [random.random() < alive for _ in range(n)]
    drawn = [random_task(random, len(sets)) for _ in range(n)]
    return task_graph(
        edges,
        [task.duration for task in drawn],
        [task.places for task in drawn],
        sets,
        [0, *kinds[1:-1], 1] if resources > 1 else [1],
        joint=[task.joint for task in drawn],
        hold=[task.hold for task in drawn],
        live=live,
        edge_live=[live[a] and live[b] and random.random() < 0.9 for a, b in edges],
    )


class Task(NamedTuple):
    """What can change of a task."""

    duration: int
    joint: bool
    places: tuple[int, int]
    hold: tuple[int, int]


def random_task(random: Random, sets: int) -> Task:
    """Times are mostly small and equal; a task may hold for longer or shorter than it takes."""
    duration = random.choice((1, 1, 2, 2, 3, 5, random.randint(1, 100)))
    joint = random.random() < 0.4
    first = random.randint(NOWHERE, sets - 1)
    second = random.randint(NOWHERE, sets - 1) if joint else NOWHERE
    hold = random.choice(
        (
            (duration, 0),
            (0, duration),
            (duration, duration),
            (random.randint(0, 6), random.randint(0, 6)),
        )
    )
    return Task(duration, joint, (first, second), hold)


def _anything(random: Random, n: int) -> list[Edge]:
    density = random.choice((0.05, 0.15, 0.4))
    return [(a, b) for b in range(n) for a in range(b) if random.random() < density]


def _layers(random: Random, n: int) -> list[Edge]:
    """Every task after one to three of the few before it."""
    width = random.randint(1, 4)
    edges = set()
    for b in range(1, n):
        for _ in range(random.randint(1, 3)):
            edges.add((max(0, b - random.randint(1, 2 * width)), b))
    return sorted(edges)


def _chains(random: Random, n: int) -> list[Edge]:
    """Some chains side by side, and a few edges across."""
    chains = random.randint(1, 4)
    edges = {(b - chains, b) for b in range(chains, n)}
    for _ in range(random.randint(0, 3)):
        a, b = sorted((random.randrange(n), random.randrange(n)))
        if a < b:
            edges.add((a, b))
    return sorted(edges)


def _step(random: Random, n: int) -> list[Edge]:
    """Forward, backward, and after each backward a synchronisation and an update."""
    units = n // 4
    edges = [(i, i + 1) for i in range(max(0, 2 * units - 1))]
    edges += [(i, 2 * units - 1 - i) for i in range(units - 1)]
    edges += [(units + i, 2 * units + i) for i in range(units)]
    edges += [(2 * units + i, 3 * units + i) for i in range(units)]
    return edges


class Change(NamedTuple):
    """What a change touched, and what the graph was before it."""

    touched: list[int]
    edges: list[int]
    before: TaskGraph


def undo(graph: TaskGraph, change: Change) -> None:
    """Make the graph what it was."""
    for now, before in zip(graph, change.before, strict=True):
        np.copyto(np.asarray(now), np.asarray(before))


def random_change(random: Random, graph: TaskGraph) -> Change:
    """Change some tasks and edges of a graph in place."""
    before = deepcopy(graph)
    n, sets = len(graph.live), len(graph.set_start) - 1
    touched = random.sample(range(n), min(n, random.choice((1, 1, 2, 3, 6))))
    for t in touched:
        if random.random() < 0.3:
            _turn(random, graph, t)
        if random.random() < 0.3:
            graph.duration[t] = random_task(random, sets).duration
        elif random.random() < 0.8:
            task = random_task(random, sets)
            graph.duration[t], graph.joint[t] = task.duration, task.joint
            graph.places[t], graph.hold[t] = task.places, task.hold
    if random.random() < 0.2 and len(graph.succ):
        edge = random.randrange(len(graph.succ))
        ends = int(np.searchsorted(graph.succ_start, edge, "right")) - 1, graph.succ[edge]
        graph.edge_live[edge] ^= bool(graph.live[list(ends)].all())
    edges = np.flatnonzero(graph.edge_live != before.edge_live).tolist()
    return Change(touched, edges, before)


def _turn(random: Random, graph: TaskGraph, t: int) -> None:
    """Turn a task off with its edges, or on with some of them."""
    graph.live[t] = not graph.live[t]
    after = range(graph.succ_start[t], graph.succ_start[t + 1])
    around = [(edge, int(graph.succ[edge])) for edge in after]
    ahead = range(graph.pred_start[t], graph.pred_start[t + 1])
    around += [(int(graph.pred_edge[at]), int(graph.pred[at])) for at in ahead]
    for edge, other in around:
        graph.edge_live[edge] = graph.live[t] and graph.live[other] and random.random() < 0.8
