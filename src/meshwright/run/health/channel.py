"""A channel between two ranks of the failure detector. Enters: a socket. Leaves: messages.

It does not know who is connected to whom (`kin`), nor what is said and why (`watch`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator

import msgspec

from meshwright.run.health.stall import UNKNOWN, Mark, StallDetector


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first message on a connection, in both directions."""

    rank: int
    ranks: int
    token: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The sender and all below it have joined."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """All ranks have joined."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""

    mark: Mark
    outlook: StallDetector | None = None
    """Of the sender and all below it, for its parent only."""


class Over(msgspec.Struct, frozen=True, tag=True):
    """All ranks are done."""


class End(msgspec.Struct, frozen=True, tag=True):
    """The run ends now, for a reason."""

    sentence: str


Message = Hello | Ready | Go | Beat | Over | End

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_OPEN: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_PIECE = 1 << 16


def _close_inherited() -> None:
    for inherited in list(_OPEN):
        inherited.close()


# A process that a rank forks, as a data loader does, would keep a dead rank's connections open.
os.register_at_fork(after_in_child=_close_inherited)


KEEPING = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""With these a system finds within 20 s that another machine, not only a process on it, is gone."""


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has them all.
    for name in KEEPING.keys() & vars(socket).keys():
        connection.setsockopt(socket.IPPROTO_TCP, vars(socket)[name], KEEPING[name])


class PeerLink:
    """A connection to another rank, and what was last heard from there."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        _prepare(connection)
        _OPEN.add(connection)
        self.socket, self.peer = connection, peer
        self.mark, self.outlook = Mark(), UNKNOWN
        self.silence = 0.0
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send without waiting. A beat is left out if the one before it is still under way."""
        content = _ENCODER.encode(message)
        with self._lock:
            if not self._outgoing or not isinstance(message, Beat):
                self._outgoing += len(content).to_bytes(4, "big") + content
            try:
                sent = self.socket.send(self._outgoing, socket.MSG_DONTWAIT)
            except OSError:
                # It is full, or lost, which the receiving side tells.
                return
            del self._outgoing[:sent]

    def fill(self) -> None:
        """Read what has come, waiting as long as the socket does; OSError if it is lost."""
        piece = self.socket.recv(_PIECE)
        if not piece:
            raise ConnectionResetError
        self._incoming += piece

    def messages(self) -> Iterator[Message]:
        """The messages that were read, each once."""
        while (end := self._end()) is not None:
            content = bytes(self._incoming[4:end])
            del self._incoming[:end]
            yield _DECODER.decode(content)

    def _end(self) -> int | None:
        """Where the first message ends, if all of it has come."""
        end = 4 + int.from_bytes(self._incoming[:4], "big")
        return end if len(self._incoming) >= max(end, 5) else None

    def part(self, until: float) -> None:
        """Send what is left and wait until the other side has closed too.

        Closing with something unread would make the system throw away what is still under way.
        """
        try:
            with self._lock:
                self.socket.settimeout(max(0.01, until - time.monotonic()))
                self.socket.sendall(self._outgoing)
                self.socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < until and self.socket.recv(_PIECE):
                pass
        except OSError:
            pass
        self.socket.close()
