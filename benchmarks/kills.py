"""kill -9 of a random rank at a random moment of a training loop, and how the others end.

Run as `PYTHONPATH=tests python benchmarks/kills.py [TIMES] [RANKS]` (50 times, 4 ranks). Prints for
each time who was killed when, the seconds until all others had ended, their exit codes and what
they said; then the totals. Exit code 1 if any did not end as `meshwright.run.watch` says.
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
from typing import NamedTuple

from meshwright.run.watch import EXIT_CODE
from support.watch_bodies import long_training
from support.watched import exit_codes, last_words, started

WITHIN = 30.0
"""Seconds in which all others have to end."""

LONGEST = 1.5
"""Seconds of training at most before a rank is killed."""

PAUSES = (0.0, 0.002, 0.05)
"""Seconds of sleep in a step: ranks are killed while they compute, wait and communicate."""


class Kill(NamedTuple):
    """What became of one run."""

    victim: int
    after: float
    step: int | None
    """In which it was killed, as it noted itself."""
    seconds: float
    codes: tuple[int | None, ...]
    said: tuple[str, ...]

    @property
    def named(self) -> set[int | None]:
        """The steps in which others say that it died."""
        found = [re.fullmatch(rf"rank {self.victim} died in step (\d+)", s) for s in self.said]
        return {int(match.group(1)) if match else None for match in found}

    @property
    def as_stated(self) -> bool:
        """Whether all others ended in time, with the code, and named the rank and the time."""
        words = rf"rank {self.victim}\b.* (in step \d+|before its first step)"
        return (
            set(self.codes) == {EXIT_CODE}
            and self.seconds <= WITHIN
            and all(re.fullmatch(words, said) for said in self.said)
        )


def kill(chance: random.Random, ranks: int, folder: Path) -> Kill:
    """One run that loses a rank."""
    victim, after = chance.randrange(ranks), chance.uniform(0.0, LONGEST)
    pause = chance.choice(PAUSES)
    with started(long_training, folder, 10**6, pause, ranks=ranks) as processes:
        # They note their numbers when the process group stands and the watch does not yet.
        while any(not (folder / f"{rank}.pid").exists() for rank in range(ranks)):
            time.sleep(0.005)
        time.sleep(after)
        pid = processes[victim].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        others = [rank for rank in range(ranks) if rank != victim]
        codes = exit_codes([processes[rank] for rank in others], WITHIN + 10)
        seconds = time.monotonic() - begin
    note = folder / f"{victim}.step"
    content = note.read_bytes() if note.exists() else b""
    step = int.from_bytes(content, "big") if content else None
    said = tuple(last_words(folder, rank) for rank in others)
    return Kill(victim, after, step, seconds, tuple(codes), said)


def main(times: int, ranks: int) -> int:
    chance, kills = random.Random(7), []
    for number in range(times):
        with tempfile.TemporaryDirectory() as folder:
            one = kill(chance, ranks, Path(folder))
        kills.append(one)
        print(
            f"{number:3} rank {one.victim} in step {one.step} after {one.after:.2f} s: "
            f"others ended in {one.seconds:.2f} s, codes {sorted(set(map(str, one.codes)))}, "
            f"{'as stated' if one.as_stated else 'NOT AS STATED'}: {sorted(set(one.said))}",
            flush=True,
        )
    seconds = [one.seconds for one in kills]
    exact = sum(one.named == {one.step} for one in kills)
    good = sum(one.as_stated for one in kills)
    print(
        f"{times} kills, {ranks} ranks: {good} as stated, step exact in {exact}; seconds until all "
        f"others ended: median {statistics.median(seconds):.2f}, most {max(seconds):.2f}; "
        f"load average {os.getloadavg()[0]:.2f}"
    )
    return 0 if good == times else 1


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    raise SystemExit(main(*(given + [50, 4][len(given) :])))
