"""Searches with the full and with the delta engine, and simulations of small and huge machines.

    python benchmarks/search_engines.py [--proposals 4000]

Both engines make the same walk from data parallelism, one after the other in one run, after a walk
that fills the tables of prices; with delta, bounds and limits refuse what they can. A proposal
includes laying it out and taking it back.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from meshwright.baselines.data import data_parallel
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.mcmc.metropolis import (
    BEST,
    COST,
    LONGEST,
    PROPOSED,
    Engine,
    MetropolisChain,
    chain_buffers,
    run_metropolis,
)
from meshwright.simulate import full, simulation
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import space
from meshwright.simulate.move import move_buffers, undo
from meshwright.simulate.problem import StepModel

MODELS = (
    ("nmt", "zoo:nmt", 64),
    ("nmt unrolled", "zoo:nmt?run=40&unroll=40", 64),
    ("inception-v3", "zoo:inception-v3", 64),
    ("bert-large", "zoo:bert-large", 4),
)
"""Names, models and samples for a device."""

NODES = (1, 2, 4, 8, 16)
"""Of four devices each."""

COLDNESS = 1e-4
"""The temperature for each nanosecond of the first cost."""


def lay_data_parallel(problem: StepModel) -> None:
    plan = data_parallel(problem.graph, problem.cluster)
    problem.lay(problem.codes([plan.layout[unit.name] for unit in plan.units]))


def walked(problem: StepModel, engine: Engine, proposals: int) -> tuple[float, list[int]]:
    """Microseconds a proposal of a walk from data parallelism, and where it went."""
    lay_data_parallel(problem)
    room, log, table = space(problem), undo(problem, LONGEST), chain_buffers(problem, engine)
    cost = full.simulate(problem.tasks).makespan
    walk = MetropolisChain(
        random=np.array([1], np.uint64),
        number=np.zeros(6, np.int64),
        temperature=np.array([COLDNESS * cost]),
        best=problem.roles.copy(),
    )
    walk.number[COST] = walk.number[BEST] = cost
    spent = 0.0
    while walk.number[PROPOSED] < proposals:
        now, left = move_buffers(problem), int(proposals - walk.number[PROPOSED])
        began = time.process_time()
        status = run_metropolis(now, log, room, walk, table, left)
        spent += time.process_time() - began
        if status != FOUND:
            problem.supply(status)
    return spent / proposals * 1e6, walk.number.tolist()


def compared(name: str, graph: OperatorGraph, nodes: int, proposals: int) -> str:
    """One line of the table: the same walk with either engine."""
    problem = StepModel(graph, Cluster.named("flexflow-k80", node=nodes))
    walked(problem, "delta", proposals)
    whole, path = walked(problem, "full", proposals)
    part, same = walked(problem, "delta", proposals)
    assert path == same
    live, ratio = int(problem.tasks.live.sum()), whole / part
    return f"{name:14} {4 * nodes:5} {live:6} {whole:9.1f} {part:9.1f} {ratio:6.1f}"


def whole_simulation(graph: OperatorGraph) -> str:
    """How long NMT on 8 devices takes the full engine, called from Python."""
    problem = StepModel(graph, Cluster.named("flexflow-k80", node=2))
    lay_data_parallel(problem)
    work, timeline = full.scratch(problem.tasks), full.timeline_of(problem.tasks)
    began = time.process_time()
    for _ in range(500):
        full.run(problem.tasks, work, timeline)
    return f"nmt on 8 devices simulated whole: {(time.process_time() - began) / 500 * 1e6:.1f} us"


def symmetric(nodes: int) -> float:
    """Seconds for simulating data parallel BERT-Large on nodes of eight devices."""
    cluster = Cluster.named("dgx-h100", node=nodes)
    graph = load_model("zoo:bert-large", 4 * cluster.devices).graph
    plan = data_parallel(graph, cluster)
    began = time.process_time()
    simulation.simulate(plan)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=4000)
    proposals = parser.parse_args().proposals
    print("model        devices  tasks   full us  delta us  ratio")
    for name, model, samples in MODELS:
        for nodes in NODES:
            graph = load_model(model, 4 * nodes * samples).graph
            print(compared(name, graph, nodes, proposals), flush=True)
    print(whole_simulation(load_model("zoo:nmt", 8 * 64).graph))
    symmetric(8)
    few, many = symmetric(8), symmetric(2048)
    print(
        f"bert-large, data parallel: {few:.2f} s on 64 devices, {many:.2f} s on 16,384; "
        f"ratio {many / few:.2f}"
    )


if __name__ == "__main__":
    main()
