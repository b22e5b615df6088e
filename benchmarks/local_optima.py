"""Whether what a search returns is locally optimal, judged by the full engine alone.

    python benchmarks/local_optima.py [--budget 20s] [--models alexnet,...] [--devices 2,4,8]

For each model of FlexFlow on 2, 4 and 8 P100s: search, then give every single unit every other
legal layout, write the whole task graph and simulate it. Neither the delta engine nor lower bounds
take part in that: `better` is how many changes of one unit are faster, and must be 0.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.search.budget import Budget
from meshwright.search.compare import Comparison, compare, told_apart
from meshwright.simulate import full
from meshwright.simulate.edge_collectives import FOUND, ILLEGAL
from meshwright.simulate.full import EngineScratch
from meshwright.simulate.layout_space import LayoutSpace, space
from meshwright.simulate.move import MoveBuffers, MoveUndo, apply, move_buffers, undo, undo_move
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Indices, Ints, Timeline
from task_graphs import compiled

BATCH = {"alexnet": 256}
"""Samples a device; 64 of all others."""

MODELS = ("alexnet", "inception-v3", "resnet-101", "rnntc", "rnnlm", "nmt")
MACHINES = {2: {"node": 1, "gpu": 2}, 4: {"node": 1}, 8: {"node": 2}}


@compiled
def tried(
    now: MoveBuffers,
    log: MoveUndo,
    room: LayoutSpace,
    work: EngineScratch,
    timeline: Timeline,
    unit: Indices,
    roles: np.ndarray[tuple[int, int], np.dtype[np.int8]],
    where: Ints,
) -> int:
    """Give units all their layouts; FOUND at the end, or what a table lacks.

    In `where`: the unit and layout at hand, the lowest makespan, how many were lower than the
    fourth number, and how many there were.
    """
    units, factors = now.roles.shape
    while where[0] < units:
        unit[0], rest = where[0], where[1]
        for f in range(factors):
            count = room.roles[unit[0], f]
            roles[0, f] = room.role[unit[0], f, rest % count]
            rest //= count
        if rest > 0:
            where[0], where[1] = where[0] + 1, 0
            continue
        status = apply(now, log, unit, roles, 1)
        if status not in (FOUND, ILLEGAL):
            return status
        where[1] += 1
        if status == ILLEGAL:
            continue
        _, makespan = full.run(now.tasks, work, timeline)
        where[2] = min(where[2], makespan)
        where[4] += makespan < where[3]
        where[5] += 1
        undo_move(now.tasks, now.roles, now.room.moved, log)
    return FOUND


def judged(problem: StepModel, comparison: Comparison) -> Ints:
    """See `tried`."""
    plan = comparison.searched.plan
    problem.lay(problem.codes([plan.layout[unit.name] for unit in problem.units]))
    makespan = full.simulate(problem.tasks).makespan
    where = np.array([0, 0, makespan, makespan, 0, 0], np.int64)
    room, log = space(problem), undo(problem, 1)
    work, timeline = full.scratch(problem.tasks), full.timeline_of(problem.tasks)
    unit, roles = np.zeros(1, np.int32), np.zeros((1, len(problem.factors)), np.int8)
    while True:
        status = tried(move_buffers(problem), log, room, work, timeline, unit, roles, where)
        if status == FOUND:
            return where
        problem.supply(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default=",".join(map(str, MACHINES)))
    arguments = parser.parse_args()
    print(f"{'model':14} devices   step ms  proposals  searched  says  changes tried  better")
    for name in arguments.models.split(","):
        for devices in map(int, arguments.devices.split(",")):
            batch = BATCH.get(name, 64) * devices
            graph = load_model(f"zoo:{name}", batch).graph
            cluster = Cluster.named("flexflow-p100", **MACHINES[devices])
            began = time.monotonic()
            result = compare(graph, cluster, Budget.parse(arguments.budget))
            took = time.monotonic() - began
            where = judged(StepModel(graph, cluster, apart=told_apart(cluster)), result)
            searched = result.found
            assert where[3] == searched.nanoseconds
            print(
                f"{name:14} {devices:7} {where[3] / 1e6:9.3f} {searched.proposals:10} {took:8.1f}s "
                f"{'local' if searched.local_optimum else 'budget':>6} {where[5]:14} {where[4]:7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
