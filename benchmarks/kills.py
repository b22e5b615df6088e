"""Ranks that train a model by a plan, of which a random one goes wrong, and how the others end.

Run as `PYTHONPATH=tests python benchmarks/kills.py [TIMES] [--gpu]` (50 times, 4 ranks of gloo, or
of NCCL that share a GPU). A rank is killed (SIGKILL) or stopped (SIGSTOP) at a random moment, or
gives in a random step a batch that disagrees with the plan. Prints for each time who went wrong how
and when, the seconds until all others had ended, their exit codes and what they said; then the
totals. Exit code 1 if any did not end as `meshwright.run.health.watchdog` says: within 30 s, with
its exit code and a sentence that names the rank and the step.
"""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.health.watchdog import EXIT_CODE
from meshwright.run.launch.ranks import Home
from meshwright.sharding.layout import REPLICA, Layout, divides
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from support.kill_bodies import endless_training
from support.module_bodies import BATCH
from support.watched import exit_codes, last_words, started

RANKS = 4
WITHIN = 30.0
"""Seconds in which all others have to end."""

LONGEST = 1.5
"""Seconds of training at most before a rank is killed or stopped."""

LATEST = 60
"""Steps at most before a rank disagrees."""

NEVER = -1

How = Literal["killed", "stopped", "disagrees"]

SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}

SOURCES = ("zoo:lenet/tiny", "zoo:bert-large/tiny?layers=2")


class Failure(NamedTuple):
    """What became of one run."""

    how: How
    victim: int
    step: int | None
    """In which it went wrong, as it noted itself."""
    seconds: float
    codes: tuple[int | None, ...]
    said: tuple[str, ...]

    @property
    def named(self) -> set[int | None]:
        """The steps in which others say that it went wrong."""
        matches = [re.search(rf"rank {self.victim}\b.* in step (\d+)", said) for said in self.said]
        return {int(match.group(1)) if match else None for match in matches}

    @property
    def as_stated(self) -> bool:
        """Whether all others ended in time, with the code, and named the rank and the time."""
        words = rf"rank {self.victim}\b.* in step \d+"
        return (
            set(self.codes) == {EXIT_CODE}
            and self.seconds <= WITHIN
            and all(re.match(words, said) for said in self.said)
        )


def plans(source: str) -> list[Plan]:
    """Split by samples and channels; and with sharded optimizers, micro-batches and stages."""
    graph = cast_graph(load_model(source, BATCH).graph, "float64")
    groups = units(graph)
    cluster = Cluster.named("laptop").resized({"process": RANKS})

    def cut(*roles: str) -> list[Layout]:
        return [Layout(tuple(_or_copies(u, r, roles.count(r)) for r in roles)) for u in groups]

    stages = [
        Layout((f"@{2 * number // len(groups)}", _or_copies(u, "sample", 2)))
        for number, u in enumerate(groups)
    ]
    return [
        Plan.of("channels", graph, cluster, cut("sample", "channel")),
        Plan.of("sharded", graph, cluster, cut("sample", "sample"), Options(zero=3)),
        Plan.of("stages", graph, cluster, stages, Options(micro_batches=2)),
    ]


def _or_copies(unit: OpGroup, role: str, times: int) -> str:
    """A role that so many factors of two have, or copies where a unit cannot be cut so."""
    return role if divides(unit.extents.get(role, (1,)), 2**times) else REPLICA


def failure(
    chance: random.Random,
    choices: list[tuple[str, Plan]],
    folder: Path,
    home: Home | None = None,
) -> Failure:
    """One run in which a rank goes wrong."""
    how: How = chance.choice(get_args(How))
    victim, after = chance.randrange(RANKS), chance.uniform(0.0, LONGEST)
    at = chance.randrange(2, LATEST) if how == "disagrees" else NEVER
    source, plan = chance.choice(choices)
    others = [rank for rank in range(RANKS) if rank != victim]
    arguments = folder, source, plan, victim, at
    with started(endless_training, *arguments, ranks=RANKS, home=home) as processes:
        # Before its first step a rank may take as long as it likes.
        while any((step_of(folder, rank) or 0) < 1 for rank in range(RANKS)):
            time.sleep(0.005)
        if how == "disagrees":
            # The rank that does notices it itself: its end is where the clock starts.
            exit_codes([processes[victim]])
        else:
            time.sleep(after)
            pid = processes[victim].pid
            assert pid is not None
            os.kill(pid, SIGNALS[how])
        begin = time.monotonic()
        codes = exit_codes([processes[rank] for rank in others], WITHIN + 10)
        seconds = time.monotonic() - begin
    said = tuple(last_words(folder, rank) for rank in others)
    return Failure(how, victim, step_of(folder, victim), seconds, tuple(codes), said)


def step_of(folder: Path, rank: int) -> int | None:
    """The step that a rank has noted."""
    note = folder / f"{rank}.step"
    content = note.read_bytes() if note.exists() else b""
    return int.from_bytes(content, "big") if content else None


def main(times: int, home: Home | None = None) -> int:
    chance, failures = random.Random(7), []
    choices = [(source, plan) for source in SOURCES for plan in plans(source)]
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            one = failure(chance, choices, Path(folder), home)
        failures.append(one)
        print(
            f"{number:3} rank {one.victim} {one.how} in step {one.step}: "
            f"others ended in {one.seconds:.2f} s, codes {sorted(set(map(str, one.codes)))}, "
            f"{'as stated' if one.as_stated else 'NOT AS STATED'}: {sorted(set(one.said))}",
            flush=True,
        )
    good = sum(one.as_stated for one in failures)
    for how in get_args(How):
        alike = [one for one in failures if one.how == how]
        if alike:
            exact = sum(one.named == {one.step} for one in alike)
            seconds = [one.seconds for one in alike]
            print(
                f"{len(alike)} {how}: {sum(one.as_stated for one in alike)} as stated, step "
                f"exact in {exact}; seconds until all others ended: median "
                f"{statistics.median(seconds):.2f}, most {max(seconds):.2f}"
            )
    print(f"{good} of {times} as stated, {RANKS} ranks; load average {os.getloadavg()[0]:.2f}")
    return 0 if good == times else 1


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--gpu"]
    shared = Home(gpus=1) if "--gpu" in sys.argv else None
    raise SystemExit(main(int(given[0]) if given else 50, shared))
