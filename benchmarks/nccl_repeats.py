"""The same plans trained several times on NCCL ranks that share a GPU: the loss of the last step.

    PYTHONPATH=tests python benchmarks/nccl_repeats.py [--times 10] PLAN.json ...

Memory that two CUDA streams use at the same time shows as losses that differ from run to run
(docs/decisions/0024-streams.md). The first line is that of plain PyTorch on one device.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import cast

from meshwright.base.quantities import Seconds
from meshwright.plan.file import load_plan
from meshwright.plan.plan import Measurement
from meshwright.run.launch.ranks import Home, run_ranks
from meshwright.run.training import TrainingTask
from support.training_bodies import trains_each

PATIENCE = Seconds(900.0)


def losses(path: str, times: int) -> tuple[list[float], float]:
    """The last loss of each run, and that of one device."""
    plan = load_plan(path)
    tasks = [TrainingTask(plan, plan.model, one_device=number == 0) for number in range(times)]
    ranks = plan.cluster.devices
    (results, *_) = run_ranks(trains_each, tasks, ranks=ranks, home=Home(gpus=1), timeout=PATIENCE)
    ran = cast(list[Measurement], results)
    assert ran[0].one_device is not None
    return [measurement.loss[-1] for measurement in ran], ran[0].one_device.loss[-1]


def main(words: Sequence[str] | None = None) -> int:
    """Train and print; exit code 1 if runs of a plan differ from one another."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args(words)
    differing = 0
    for path in arguments.plans:
        last_losses, alone = losses(path, arguments.times)
        listed = ", ".join(f"{loss:.4f}" for loss in sorted(set(last_losses)))
        differing += max(last_losses) - min(last_losses) > 1e-4 * abs(alone)
        print(f"{path}: {listed} in {len(last_losses)} runs; one device {alone:.4f}", flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main())
