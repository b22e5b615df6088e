"""A simulation of whole plans, and of its parts against their slow twins.

    PYTHONPATH=tests python benchmarks/simulate_plans.py [--largest]

Plans are Megatron-LM's for models of the zoo. The processor time of one simulation, the smallest of
five, with compiled code and what is derived of the graph already there, as a search finds them; in
the same run that of the twins of building tasks and of memory over time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from meshwright.baselines.degrees.configured import configured
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.simulate import build_template
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.memory.memory_timeline import curves
from meshwright.simulate.simulation import simulate
from support import slow_build
from support.slow_held import curves as slow_curves

CASES = (("zoo:bert-large", 32, "dgx-a100", 4, (2, 2, 4)),)
LARGEST = (("zoo:llama3-70b", 256, "dgx-h100", 128, (8, 16, 32)),)


def seconds(call: Callable[[], object], times: int = 5) -> float:
    """The least processor time of a call."""
    durations = []
    for _ in range(times):
        begin = time.process_time()
        call()
        durations.append(time.process_time() - begin)
    return min(durations)


def measured(name: str, batch: int, cluster: str, nodes: int, sizes: tuple[int, int, int]) -> str:
    """One line about a plan."""
    machine = Cluster.named(cluster).resized({"node": nodes})
    prices = CollectivePrices(Pricer(machine, algorithm="best"))
    tensor, pipeline, micro_batches = sizes
    config = ParallelConfig(
        data=machine.devices // (tensor * pipeline),
        tensor=tensor,
        pipeline=pipeline,
        micro_batches=micro_batches,
    )
    plan = configured(load_model(name, batch).graph, machine, config)
    simulation = simulate(plan, prices)
    problem, timeline = simulation.problem, simulation.timeline
    arguments = (
        problem.units,
        problem.bundles,
        problem.places,
        len(problem.prices.kinds),
        problem.options.micro_batches,
    )
    whole = seconds(lambda: simulate(plan, prices))
    memory = seconds(lambda: list(curves(problem, problem.roles, timeline)))
    slow_memory = seconds(lambda: list(slow_curves(problem, problem.roles, timeline)), 1)
    tasks = seconds(lambda: build_template.skeleton(problem.joined, *arguments[2:]))
    slow_tasks = seconds(lambda: slow_build.skeleton(*arguments), 1)
    return (
        f"{name} on {machine.devices} devices, {len(problem.tasks.live)} tasks: "
        f"simulation {whole:.3f} s; memory {memory:.3f} s, its twin {slow_memory:.3f} s; "
        f"tasks {tasks:.3f} s, their twin {slow_tasks:.3f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest", action="store_true", help="also Llama 3 70B on 1024 GPUs")
    for case in CASES + LARGEST * parser.parse_args().largest:
        print(measured(*case))


if __name__ == "__main__":
    main()
