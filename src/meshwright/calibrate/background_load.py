"""Background load during profiling: ranks that compute beside the one that is measured. Enters: how
many ranks there are in all, and one call after the other. Leaves: nothing; the machine is as busy
as it is in a step of that many.

Ranks on one machine share its cores, caches and memory, and in a step all do about the same at the
same time: so the others repeat the call that is measured until the next one comes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

import torch

from meshwright.base.quantities import Seconds
from meshwright.calibrate.measure import measure_call
from meshwright.graph.operator_graph import Call
from meshwright.run.launch.ranks import PRELOADED


@contextmanager
def company(ranks: int | None) -> Iterator[Callable[[Call], None]]:
    """What tells the others which call is measured; this process has one thread meanwhile.

    None: nobody else, and as many threads as there were.
    """
    if ranks is None:
        yield _alone
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    others = [_started() for _ in range(ranks - 1)]

    def accompany(call: Call) -> None:
        for _, mouth in others:
            mouth.send(call)

    try:
        yield accompany
    finally:
        for process, mouth in others:
            process.kill()
            process.join()
            mouth.close()
        torch.set_num_threads(threads)


def _alone(call: Call) -> None:
    """Nobody is there to be told."""


def _started() -> tuple[ForkServerProcess, Connection]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    ear, mouth = context.Pipe(duplex=False)
    process = context.Process(target=_repeat, args=(ear,), daemon=True)
    process.start()
    ear.close()
    return process, mouth


def _repeat(ear: Connection) -> None:
    """Run the last call that came, again and again, until nobody speaks any more."""
    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt):
        call: Call = ear.recv()
        while True:
            while ear.poll():
                call = ear.recv()
            try:
                measure_call(call, torch.device("cpu"), budget=Seconds(0.0))
            except Exception:
                # The one that is measured tells why it fails; there is nothing to do until then.
                call = ear.recv()
