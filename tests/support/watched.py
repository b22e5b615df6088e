"""Ranks that may end in any way: their exit codes, and what they said last."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from meshwright.run.launch.ranks import PRELOADED, Home, Meeting, open_rendezvous


@contextmanager
def started(
    body: Callable[..., object],
    folder: Path,
    *arguments: object,
    ranks: int,
    home: Home | None = None,
) -> Iterator[list[ForkServerProcess]]:
    """Ranks that run `body(folder, *arguments)`; those that are left at the end are killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    processes = []
    with open_rendezvous(ranks, home) as all_:
        for rank, meeting in enumerate(all_):
            rank_arguments = rank, meeting, body, (str(folder), *arguments)
            processes.append(context.Process(target=_rank, args=rank_arguments, daemon=True))
            processes[-1].start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


PATIENCE = 180.0
"""Seconds until a rank counts as one that does not end: on a busy machine to start takes long."""


def exit_codes(
    processes: Sequence[ForkServerProcess], patience: float = PATIENCE
) -> list[int | None]:
    """How each has ended; None for those that have not."""
    until = time.monotonic() + patience
    while running := [p.sentinel for p in processes if p.exitcode is None]:
        if not wait(running, max(0.0, until - time.monotonic())):
            break
    return [process.exitcode for process in processes]


def last_words(folder: Path, rank: int) -> str:
    """The last line that a rank has written to standard error, less who says it."""
    lines = (folder / f"{rank}.err").read_text().strip().splitlines()
    return lines[-1].removeprefix(f"meshwright, rank {rank}: ") if lines else ""


def outcome(
    body: Callable[..., object], folder: Path, *arguments: object, ranks: int
) -> dict[tuple[int | None, str], list[int]]:
    """For each exit code and last line, the ranks that ended so."""
    with started(body, folder, *arguments, ranks=ranks) as processes:
        codes = exit_codes(processes)
    ranks_by_end: dict[tuple[int | None, str], list[int]] = {}
    for rank, code in enumerate(codes):
        ranks_by_end.setdefault((code, last_words(folder, rank)), []).append(rank)
    return ranks_by_end


def _rank(
    rank: int, meeting: Meeting, body: Callable[..., object], arguments: Sequence[object]
) -> None:
    import torch.distributed as dist

    meeting.join(rank)
    body(*arguments)
    dist.barrier()
    dist.destroy_process_group()
