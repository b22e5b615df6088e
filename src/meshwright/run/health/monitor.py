"""The heartbeat monitor: what the watching thread of a rank does. Enters: links to its kin. Leaves:
`Over` or `End`.

Every rank beats to its kin and takes theirs as signs of life; views of the ranks below travel
upwards with the beats, and the first rank judges what it sees (`outlook`). Time counts only while
this thread runs: a process that was stopped, or a machine that slept, blames nobody when it wakes.
It does not know how a process ends (`watch`).
"""

from __future__ import annotations

import selectors
import signal
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from meshwright.base.quantities import Seconds
from meshwright.run.health.channel import Beat, End, Go, Hello, Over, PeerLink, Ready
from meshwright.run.health.peers import parent_of
from meshwright.run.health.stall import Mark, StallDetector, complaint, merged, stall_detector_of

BEAT = 0.25
"""Seconds from one beat to the next."""

SETTLING = 2.0
"""Seconds from the first hint of a fault to the sentence: when a rank is lost, what the others run
into is often known before the loss itself."""


class Fault(NamedTuple):
    """What this rank itself has run into."""

    sentence: str
    since: float
    settling: float
    """Seconds in which news from others may turn out to be its cause."""
    trace: str = ""


class FailureMonitor:
    """The state of the thread; the main thread writes `mark` and `fault`, and then rings."""

    def __init__(self, rank: int, links: Sequence[PeerLink], limit: Seconds) -> None:
        self.rank, self.links, self.limit = rank, links, limit
        self.mark = Mark()
        self.fault: Fault | None = None
        parent = parent_of(rank)
        self._children = [link for link in links if link.peer != parent]
        self._seen, self._quiet = self.mark, 0.0
        self._complained: float | None = None
        self._ear, self.bell = socket.socketpair()
        # A full bell has been heard; who rings must not wait.
        self.bell.setblocking(False)

    def tell(self) -> None:
        """Tell all kin how far this rank is."""
        for link in self.links:
            link.send(Beat(self.mark))

    def ring(self) -> None:
        """Have the thread look at `mark` and `fault` now."""
        try:
            self.bell.send(b"\0")
        except BlockingIOError:
            return

    def close(self) -> None:
        """Take the bell down."""
        self.bell.close()
        self._ear.close()

    def watch(self) -> Over | End:
        """Look out until all ranks are done or one has failed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._ear, selectors.EVENT_READ)
            for link in self.links:
                link.socket.setblocking(False)
                selector.register(link.socket, selectors.EVENT_READ, link)
                # More may have come with the first message.
                if (news := self._read(link)) is not None:
                    return news
            return self._watch(selector)

    def _watch(self, selector: selectors.BaseSelector) -> Over | End:
        last = time.monotonic()
        while True:
            for key, _ in selector.select(max(0.0, last + BEAT - time.monotonic())):
                news = self._rung() if key.data is None else self._heard(key.data)
                if news is not None:
                    return news
            now = time.monotonic()
            if now >= last + BEAT:
                if (news := self._look(min(now - last, 2 * BEAT))) is not None:
                    return news
                last = now

    def _rung(self) -> Over | End | None:
        # The system rings too: with the numbers of the signals that it delivers.
        if signal.SIGTERM in self._ear.recv(4096) and self.fault is None:
            sentence = f"rank {self.rank} was told to end {self.mark.when} (SIGTERM)"
            self.fault = Fault(sentence, time.monotonic(), SETTLING)
        return self._look(0.0)

    def _heard(self, link: PeerLink) -> Over | End | None:
        try:
            link.fill()
        except BlockingIOError:
            return None
        except ConnectionError:
            return End(f"rank {link.peer} died {link.mark.when}")
        except OSError:
            # The machine or the way to it is gone.
            return End(f"rank {link.peer} cannot be reached any more, last {link.mark.when}")
        link.silence = 0.0
        return self._read(link)

    def _read(self, link: PeerLink) -> Over | End | None:
        before = link.outlook
        for message in link.messages():
            match message:
                case Beat(mark, outlook):
                    link.mark, link.outlook = mark, outlook or link.outlook
                case Over() | End():
                    return message
                case Hello() | Ready() | Go():
                    pass
                case _:
                    assert_never(message)
        return self._look(0.0) if _turned(before, link.outlook) else None

    def _look(self, elapsed: float) -> Over | End | None:
        """Judge what is known after some more seconds, and tell it."""
        mark, self._quiet = self.mark, self._quiet + elapsed
        if mark is not self._seen:
            self._seen, self._quiet = mark, 0.0
        view = stall_detector_of(self.rank, mark, self._quiet, self.limit)
        outlook = merged(view, *(link.outlook for link in self._children))
        for link in self.links:
            link.send(Beat(mark, None if link in self._children else outlook))
        return self._lost(elapsed) or self._failed() or self._judged(outlook)

    def _lost(self, elapsed: float) -> End | None:
        """A rank in a step that says nothing, though its connection was not closed."""
        for link in self.links:
            link.silence += elapsed
            # Outside steps long work may keep the others' threads from running too.
            if link.mark.inside and link.silence >= self.limit:
                silence = f"has not been heard of for {link.silence:.0f} s"
                return End(f"rank {link.peer} {silence}, last {link.mark.when}")
        return None

    def _failed(self) -> End | None:
        fault = self.fault
        if fault is None or time.monotonic() < fault.since + fault.settling:
            return None
        return End(fault.sentence)

    def _judged(self, outlook: StallDetector) -> Over | End | None:
        """What the first rank makes of the view of all."""
        if self.rank:
            return None
        if outlook.done:
            return Over()
        sentence = complaint(outlook, self.limit)
        now = time.monotonic()
        if sentence is None:
            self._complained = None
        elif self._complained is None:
            self._complained = now
        elif now >= self._complained + SETTLING:
            return End(sentence)
        return None


def _turned(before: StallDetector, after: StallDetector) -> bool:
    """Whether a view has changed so that those above should know at once."""
    return before.done != after.done or (before.stalled is None) != (after.stalled is None)
