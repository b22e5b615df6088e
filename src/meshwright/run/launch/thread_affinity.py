"""Core and thread affinity of ranks on one machine. Enters: nothing, or a rank's number. Leaves:
nothing.

A thread of gloo that finds a connection locked tries again at once. Linux lets a thread that wakes
up go before one that computes; if that one holds the lock, the other spins for its whole slice of 2
to 6 ms, and nothing is gained. Where every core computes, that happens to every second message. As
batch threads they go on when somebody waits, or after the others' slice. Where ranks have no core
to spare, none may wake up on another rank's core either and wait for that one's slice.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NAME = "gloo_tcp"
"""What the names of gloo's threads begin with."""


def schedule_gloo_as_batch() -> None:
    """For all threads that gloo has in this process; only on Linux, elsewhere nothing happens."""
    for thread in Path("/proc/self/task").glob("*"):
        # A thread may end at any time.
        with suppress(OSError):
            if (thread / "comm").read_text().startswith(NAME):
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))


def pin_to_one_core(rank: int, ranks: int) -> None:
    """Have this process, the rank of so many on a machine, compute on one core, if it has no two.

    Threads made later do as the one that calls.
    """
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2 * ranks:
        os.sched_setaffinity(0, {cores[rank * len(cores) // ranks]})


def pin_to_core_share(rank: int, ranks: int) -> None:
    """Have this process, the rank of so many on a machine, use its share of the cores, if there is
    one for each.

    The threads of NCCL wait busily, and two of them on one core take turns of milliseconds.
    """
    if not hasattr(os, "sched_getaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= ranks:
        share = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
        os.sched_setaffinity(0, share)
