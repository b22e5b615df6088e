"""Full against delta simulation on training steps of 200 units, for 4 to 64 devices.

    python benchmarks/engines.py [--moves 2000]

A move puts one unit on other devices and is kept if it costs little. Both engines make the same
moves, one after the other in one run, called from compiled code as a search calls them.
"""

from __future__ import annotations

import argparse
import time
from random import Random

import numba
import numpy as np

from meshwright.simulate import full
from meshwright.simulate.delta import engine as delta
from meshwright.simulate.delta.state import AcceptedMove, DeltaTrial
from meshwright.simulate.delta.walk import NEVER
from meshwright.simulate.tasks import Indices, Ints, Timeline
from task_graphs import UNITS, Step, lay, training_step


@numba.njit(cache=True)
def search_with_full(
    step: Step, moves: Indices, work: full.EngineScratch, timeline: Timeline, makespans: Ints
) -> int:
    """Make moves and simulate each with the full engine; leaves how many were kept."""
    touched, flipped = np.zeros(64, np.int32), np.zeros(64, np.int32)
    best, kept = 1 << 40, 0
    for i in range(len(moves)):
        unit, layout, keep = moves[i]
        before = step.layout[unit]
        lay(step, unit, layout, touched, flipped)
        _, makespans[i] = full.run(step.graph, work, timeline)
        if makespans[i] < best + best * keep // 1_000_000:
            best = makespans[i]
            kept += 1
        else:
            lay(step, unit, before, touched, flipped)
    return kept


@numba.njit(cache=True)
def search_with_delta(
    step: Step, moves: Indices, state: AcceptedMove, trial: DeltaTrial, makespans: Ints
) -> None:
    """Make moves and simulate each with the delta engine."""
    touched, flipped = np.zeros(64, np.int32), np.zeros(64, np.int32)
    best = 1 << 40
    for i in range(len(moves)):
        unit, layout, keep = moves[i]
        before = step.layout[unit]
        count, flips = lay(step, unit, layout, touched, flipped)
        makespans[i] = delta.propose(
            step.graph, state, trial, touched[:count], flipped[:flips], NEVER
        )
        if makespans[i] < best + best * keep // 1_000_000:
            best = makespans[i]
            delta.commit(step.graph, state, trial)
        else:
            lay(step, unit, before, touched, flipped)


def warm_up() -> None:
    """Compile both searches."""
    step, moves, makespans = (
        training_step(2, Random(0)),
        np.zeros((1, 3), np.int32),
        np.zeros(1, np.int64),
    )
    search_with_full(step, moves, full.scratch(step.graph), full.timeline_of(step.graph), makespans)
    engine = delta.Delta(step.graph)
    search_with_delta(step, moves, engine.state, engine.trial, makespans)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=2000)
    count = parser.parse_args().moves
    warm_up()
    for name, longest in (("links keep up", 100_000), ("links are the bottleneck", 10_000)):
        print(f"{name}\ndevices  live tasks  kept  full us  ns/task  delta us  ratio")
        for devices in (4, 8, 16, 32, 64):
            print(measured(devices, longest, count))


def measured(devices: int, longest: int, count: int) -> str:
    """One line of the table: the same moves with either engine."""
    random = Random(devices)
    step, again = (training_step(devices, Random(devices), longest) for _ in range(2))
    moves = np.array(
        [
            [random.randrange(UNITS), random.randrange(len(step.size)), random.expovariate(0.002)]
            for _ in range(count)
        ],
        np.int32,
    )
    makespans, same = np.zeros(count, np.int64), np.zeros(count, np.int64)
    work, timeline = full.scratch(step.graph), full.timeline_of(step.graph)
    engine = delta.Delta(again.graph)
    began = time.process_time()
    kept = search_with_full(step, moves, work, timeline, makespans)
    middle = time.process_time()
    search_with_delta(again, moves, engine.state, engine.trial, same)
    ended = time.process_time()
    assert (makespans == same).all()
    whole, part = (middle - began) / count * 1e6, (ended - middle) / count * 1e6
    live = int(step.graph.live.sum())
    each, ratio = whole / live * 1e3, whole / part
    return f"{devices:7} {live:11} {kept:5} {whole:8.1f} {each:8.1f} {part:9.1f} {ratio:6.1f}"


if __name__ == "__main__":
    main()
