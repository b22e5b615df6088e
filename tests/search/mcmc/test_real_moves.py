"""Along real searches the delta engine holds, after every proposal, the timeline of the full one.

`REAL_MOVES=10000` makes so many proposals for each model and machine instead of a few, on all
machines from 4 to 64 devices.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from meshwright.baselines.data import data_parallel
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.mcmc.metropolis import (
    BEST,
    COST,
    LONGEST,
    PROPOSED,
    ChainBuffers,
    Engine,
    MetropolisChain,
    chain_buffers,
    run_metropolis,
)
from meshwright.simulate import full, reference
from meshwright.simulate.delta.engine import timeline_of
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import LayoutSpace, space
from meshwright.simulate.move import MoveUndo, move_buffers, undo
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Timeline

MOVES = int(os.environ.get("REAL_MOVES", "40"))
COLDNESS_BY_NODES = {1: 1e-2, 16: 1e-4}
if MOVES >= 1000:
    COLDNESS_BY_NODES |= {2: 1e-4, 4: 1e-3, 8: 1e-2}
REFERENCE_EVERY = 1000 if MOVES >= 1000 else 20
SAMPLES = {"nmt": 64, "inception-v3": 64, "bert-large": 4}


class Search:
    """A walk that makes one proposal at a time."""

    def __init__(self, graph: OperatorGraph, nodes: int, engine: Engine) -> None:
        cluster = Cluster.named("flexflow-k80", node=nodes)
        self.problem = StepModel(graph, cluster)
        plan = data_parallel(graph, cluster)
        self.problem.lay(self.problem.codes([plan.layout[unit.name] for unit in plan.units]))
        cost = full.simulate(self.problem.tasks).makespan
        self.room: LayoutSpace = space(self.problem)
        self.log: MoveUndo = undo(self.problem, LONGEST)
        self.table: ChainBuffers = chain_buffers(self.problem, engine)
        self.walk = MetropolisChain(
            random=np.array([nodes], np.uint64),
            number=np.zeros(6, np.int64),
            temperature=np.array([COLDNESS_BY_NODES[nodes] * cost]),
            best=self.problem.roles.copy(),
        )
        self.walk.number[COST] = self.walk.number[BEST] = cost

    def propose(self) -> None:
        done = self.walk.number[PROPOSED]
        while self.walk.number[PROPOSED] == done:
            now = move_buffers(self.problem)
            status = run_metropolis(now, self.log, self.room, self.walk, self.table, 1)
            if status != FOUND:
                self.problem.supply(status)


def same(one: Timeline, other: Timeline) -> bool:
    return (
        np.array_equal(one.ready, other.ready)
        and np.array_equal(one.start, other.start)
        and np.array_equal(one.end, other.end)
        and np.array_equal(one.order, other.order)
    )


@pytest.mark.parametrize("nodes", COLDNESS_BY_NODES)
@pytest.mark.parametrize("name", SAMPLES)
def test_delta_is_full_along_a_search(name: str, nodes: int) -> None:
    graph = load_model(f"zoo:{name}", 4 * nodes * SAMPLES[name]).graph
    delta, whole = Search(graph, nodes, "delta"), Search(graph, nodes, "full")
    tasks = delta.problem.tasks
    for move in range(MOVES):
        delta.propose()
        whole.propose()
        assert delta.walk.number.tolist() == whole.walk.number.tolist()
        expected = full.simulate(tasks)
        assert same(timeline_of(delta.table.state), expected)
        assert delta.walk.number[COST] == expected.makespan
        if move % REFERENCE_EVERY == 0:
            assert same(expected, reference.simulate(tasks))
