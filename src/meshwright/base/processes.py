"""A pool of worker processes (`multiprocessing`, spawned) with an unordered parallel map. Enters: a
function and items. Leaves: results as they come.

Every worker has a pipe of its own: nothing is shared that a worker could hold when it is ended, so
ending them never waits for anybody. A pool of the standard library may wait for ever there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ignore_interrupts() -> None:
    """To be run in a worker: the process that the user has started ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def available_cores() -> int:
    """As many as this process may use cores; one in a worker, which may have none of its own."""
    if multiprocessing.current_process().daemon:
        return 1
    # Not on every system; where it is, a container or `taskset` may leave fewer than there are.
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def spread(
    work: Callable[[Item], Result], items: Iterable[Item], processes: int
) -> Generator[Result]:
    """What the work makes of every item, in no order; closing the generator ends the workers.

    What goes wrong in a worker goes wrong here.
    """
    context = multiprocessing.get_context("spawn")
    waiting = iter(items)
    workers, busy = [], []
    try:
        for _, item in zip(range(processes), waiting, strict=False):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, work), daemon=True)
            workers.append((worker, ours))
            worker.start()
            theirs.close()
            ours.send(item)
            busy.append(ours)
        while busy:
            for link in wait(busy):
                assert isinstance(link, Connection)
                yield _received(link)
                for item in waiting:
                    link.send(item)
                    break
                else:
                    busy.remove(link)
    finally:
        for worker, link in workers:
            if worker.pid is not None:
                worker.terminate()
            link.close()


def _received(link: Connection) -> Any:
    try:
        done, value = link.recv()
    except EOFError:
        raise ChildProcessError("a worker process has ended before its work was done") from None
    if not done:
        raise value
    return value


def _serve(link: Connection, work: Callable[[Item], Result]) -> None:
    ignore_interrupts()
    while True:
        try:
            item = link.recv()
        except EOFError:
            return
        try:
            link.send((True, work(item)))
        except Exception as error:
            link.send((False, error))
