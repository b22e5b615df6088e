"""The watchdog of a run: a run that fails ends everywhere. Enters: a store, and what a rank says of
its steps. Leaves: nothing; or every process of the run, with exit code 3 and one sentence on
standard error.

    with Watch(store, rank, ranks) as watch:
        for number in range(steps):
            watch.step(number)
            ...                              # compute
            watch.progress(waiting=True)     # what follows needs other ranks
            ...                              # communicate
            watch.progress()

A rank that dies, raises, stops making progress within a step or cannot be heard any more is named
with its step. A rank that waits inside a collective cannot raise, so a thread ends the process.
Outside steps (before the first, after `rest`) a rank may take as long as it likes. Who is done
waits until all are done, so that all end together or none does.

Within 30 s: a death is known at once (closed connections, `kin`); a rank that stands still is named
after `LIMIT` and `SETTLING`, 22 s; a machine that is lost after 20 s; a rank that never joins after
`JOINING`, 21 s. Not seen: a rank that hangs outside steps, and one that calls `progress` in a loop
that it never leaves. A stopped process (SIGSTOP) ends when it goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from torch._C._distributed_c10d import Store

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.run.health.channel import End, Over, PeerLink
from meshwright.run.health.consistency import DisagreementError
from meshwright.run.health.monitor import SETTLING, FailureMonitor, Fault
from meshwright.run.health.peers import LATER, JoinError, join
from meshwright.run.health.stall import Mark

EXIT_CODE = 3
"""With what every rank of a run that failed ends, except those that were killed."""

LIMIT = Seconds(20.0)
"""How long a rank may make no progress within a step, if nothing else is said."""

JOINING = Seconds(20.0)
"""How long ranks wait for each other at the beginning, if nothing else is said."""

PARTING = 1.0
"""Seconds for the last message to arrive."""

ENDING = 3.0
"""Seconds after which a process ends even if printing or cleaning up hangs."""


class Watchdog:
    """Watches the ranks of a run and has itself watched; see the top of the module."""

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        *,
        limit: Seconds = LIMIT,
        joining: Seconds = JOINING,
    ) -> None:
        self._store, self._rank, self._ranks = store, rank, ranks
        self._limit, self._joining = limit, joining
        self._clean_ups: list[Callable[[], object]] = []
        self._lookout: FailureMonitor
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        links: list[PeerLink] = []
        # A store that neither answers nor breaks has no limit of its own that is short enough.
        silent = End("rank 0, or what else serves the store at which ranks meet, does not answer")
        guard = threading.Timer(self._joining + LATER + ENDING, self._end, [links, silent])
        guard.daemon = True
        guard.start()
        try:
            join(self._store, self._rank, self._ranks, links, self._joining)
        except (JoinError, DisagreementError) as error:
            self._end(links, End(str(error)))
        finally:
            guard.cancel()
        self._lookout = FailureMonitor(self._rank, links, self._limit)
        self._signals = _Signals(self._lookout.bell)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or (isinstance(error, SystemExit) and not error.code):
            self._lookout.mark = Mark(self._lookout.mark.step, done=True)
        else:
            self._lookout.fault = _fault(self._rank, self._lookout.mark, error)
        self._lookout.ring()
        self._thread.join()
        self._signals.restore()
        self._lookout.close()

    def step(self, number: int) -> None:
        """A step begins, and with it the one before it is over."""
        self._lookout.mark = Mark(number, inside=True)
        self._lookout.tell()

    def progress(self, *, waiting: bool = False) -> None:
        """Something is done; whether what follows needs other ranks.

        A rank that waits may stand still as long as another one makes progress.
        """
        mark = self._lookout.mark
        self._lookout.mark = Mark(mark.step, mark.count + 1, mark.inside, waiting)

    def rest(self) -> None:
        """Until the next step no progress is expected, as while a model is compiled or saved."""
        self._lookout.mark = Mark(self._lookout.mark.step)
        self._lookout.tell()

    @contextmanager
    def cleaning(self, action: Callable[[], object]) -> Iterator[None]:
        """Have something done if the process is ended meanwhile."""
        self._clean_ups.append(action)
        try:
            yield
        finally:
            self._clean_ups.remove(action)

    @contextmanager
    def written_whole(self, path: Path) -> Iterator[Path]:
        """A path to write to, which becomes the given one when all is written, and else nothing."""
        part = path.with_name(f".{path.name}.part")
        remove = partial(part.unlink, missing_ok=True)
        with self.cleaning(remove):
            try:
                yield part
                part.replace(path)
            finally:
                remove()

    def _run(self) -> None:
        lookout = self._lookout
        try:
            news = lookout.watch()
        except BaseException:
            # Nobody else would end this process.
            news = End(f"the watch of rank {self._rank} failed:\n{traceback.format_exc()}")
        if isinstance(news, End):
            fault = lookout.fault
            cause = fault if fault is not None and fault.sentence == news.sentence else None
            self._end(lookout.links, news, cause.trace if cause else "")
        _part(lookout.links, news)

    def _end(self, links: Sequence[PeerLink], news: End, trace: str = "") -> NoReturn:
        """End this process, whatever else goes wrong."""
        guard = threading.Timer(ENDING, os._exit, [EXIT_CODE])
        guard.daemon = True
        guard.start()
        try:
            _part(links, news)
            message = f"{trace}meshwright, rank {self._rank}: {news.sentence}"
            print(message, file=sys.stderr, flush=True)
            for action in reversed(self._clean_ups):
                action()
        finally:
            os._exit(EXIT_CODE)


class _Signals:
    """Has SIGTERM ring a bell while the main thread waits in a collective and cannot be asked.

    Launchers send it to the other ranks when one is lost. Programs that do something about it
    themselves are left alone.
    """

    def __init__(self, bell: socket.socket) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        self._own = in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._own:
            signal.signal(signal.SIGTERM, lambda number, frame: None)
            self._before = signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)

    def restore(self) -> None:
        if self._own:
            signal.set_wakeup_fd(self._before)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _part(links: Sequence[PeerLink], news: Over | End) -> None:
    for link in links:
        link.send(news)
    until = time.monotonic() + PARTING
    for link in links:
        link.part(until)


def _fault(rank: int, mark: Mark, error: BaseException) -> Fault:
    """What an exception means to the others."""
    now = time.monotonic()
    if isinstance(error, DisagreementError):
        return Fault(str(error), now, 0.0)
    if isinstance(error, InputError):
        return Fault(f"rank {rank} failed {mark.when}: {error}", now, 0.0)
    said = "".join(traceback.format_exception_only(error)).strip()
    # PyTorch tells the loss of another rank by this kind.
    settling = SETTLING if isinstance(error, RuntimeError) else 0.0
    trace = "".join(traceback.format_exception(error))
    return Fault(f"rank {rank} failed {mark.when}: {said}", now, settling, trace)
