"""Binary-tree overlay of ranks for failure detection: TCP links to parent and children. Enters: a
store. Leaves: a `PeerLink` to the parent and each child.

Ranks form a binary tree (the parent of rank r is (r - 1) // 2) of TCP connections of their own:
    - when a process dies, its system closes its connections, so that its kin know at once; a store
      would have to be asked, and is itself gone when the rank or agent that serves it dies;
    - a rank has at most three connections and news reach n ranks in 2 log2(n) hops, where a star
      would give one rank n - 1 connections and a ring would take n / 2 hops;
    - a tree from which some ranks are lost falls into pieces, but every piece has lost a kin and so
      knows of it by itself.
The store is used once, to tell each other's addresses. It does not know what is said (`watch`).
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistError

from meshwright.base.quantities import Seconds
from meshwright.run.health.channel import End, Go, Hello, PeerLink, Ready
from meshwright.run.health.consistency import DisagreementError
from meshwright.run.health.handshake import (
    Address,
    answered,
    connection,
    hosts,
    receive_hello,
    require_equal_world_size,
)

POLL = 0.1
"""Seconds between two looks."""

LATER = 4.0
"""Seconds by which ranks that have joined wait longer for the others."""

CANCELLED = "cancelled"


class JoinError(Exception):
    """A rank that did not come; the message is the sentence."""


def parent_of(rank: int) -> int | None:
    """The rank above.

    >>> [parent_of(rank) for rank in range(5)]
    [None, 0, 0, 1, 1]
    """
    return (rank - 1) // 2 if rank else None


def children_of(rank: int, ranks: int) -> tuple[int, ...]:
    """The ranks below.

    >>> children_of(1, 4), children_of(2, 4)
    ((3,), ())
    """
    return tuple(child for child in (2 * rank + 1, 2 * rank + 2) if child < ranks)


def join(store: Store, rank: int, ranks: int, links: list[PeerLink], patience: Seconds) -> None:
    """Connect to the parent and to the children, and wait until all ranks have done so.

    If one does not come, `links` has those that came.
    """
    try:
        # Each counts for itself how often it has joined, so that no old address is read.
        turn = store.add(f"meshwright/watch/{rank}", 1)
        common = PrefixStore(f"meshwright/watch/{turn}", store)
        meeting = _Meeting(common, rank, ranks, time.monotonic() + patience)
        try:
            meeting.join(links)
            meeting.assemble(links)
        except (JoinError, DisagreementError) as error:
            meeting.cancel(str(error))
            raise
    except DistError:
        raise JoinError(_lost_store()) from None


def _lost_store() -> str:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return "torchrun, which serves the store at which ranks meet, died before the first step"
    return "rank 0, which serves the store at which ranks meet, died before its first step"


class _Meeting(NamedTuple):
    """Ranks that look for each other through a store."""

    store: PrefixStore
    rank: int
    ranks: int
    until: float

    def join(self, links: list[PeerLink]) -> None:
        with socket.create_server(("", 0)) as server:
            server.settimeout(POLL)
            address = Address(hosts(), server.getsockname()[1], secrets.token_hex(8))
            self.store.set(str(self.rank), msgspec.json.encode(address).decode())
            if (parent := parent_of(self.rank)) is not None:
                links.append(self._called(parent))
            missing = set(children_of(self.rank, self.ranks))
            while missing:
                self._look(f"rank {min(missing)}")
                link = answered(server, missing, Hello(self.rank, self.ranks, address.token))
                if link is not None:
                    links.append(link)
                    missing.remove(link.peer)

    def assemble(self, links: Sequence[PeerLink]) -> None:
        """Return when all ranks have joined: nobody begins while another may still fail to come."""
        parent = parent_of(self.rank)
        above = [link for link in links if link.peer == parent]
        below = [link for link in links if link.peer != parent]
        # Who has joined waits a little longer than those it waits for, which know who is missing.
        later = self._replace(until=self.until + LATER)
        for link in below:
            later._await(Ready, link, links)
        for link in above:
            link.send(Ready())
            later._await(Go, link, links)
        for link in below:
            link.send(Go())

    def _await(self, kind: type[Ready | Go], link: PeerLink, links: Sequence[PeerLink]) -> None:
        """Wait for a word from one rank, while none is lost."""
        while True:
            for message in link.messages():
                if isinstance(message, kind):
                    return
                if isinstance(message, End):
                    raise JoinError(message.sentence)
            self._look(f"rank {link.peer}, or a rank that it waits for,")
            sockets = {other.socket: other for other in links}
            for ready in select.select(list(sockets), [], [], POLL)[0]:
                _fill(sockets[ready])

    def cancel(self, sentence: str) -> None:
        """Tell those that still look, and give them the time to see it: the store may be here."""
        if not self.store.check([CANCELLED]):
            self.store.set(CANCELLED, sentence)
        time.sleep(10 * POLL)

    def _look(self, awaited: str) -> None:
        """Go on looking for a rank, unless it is time to give up or others have done so."""
        if self.store.check([CANCELLED]):
            raise JoinError(self.store.get(CANCELLED).decode())
        if time.monotonic() > self.until:
            raise JoinError(f"{awaited} did not come before its first step")

    def _called(self, peer: int) -> PeerLink:
        """A connection to a rank that listens, by the first of its names at which it answers."""
        while not self.store.check([str(peer)]):
            self._look(f"rank {peer}")
            time.sleep(POLL)
        address = msgspec.json.decode(self.store.get(str(peer)), type=Address)
        greeting = Hello(self.rank, self.ranks, address.token)
        while True:
            for host in address.hosts:
                self._look(f"rank {peer}")
                if (called := connection(host, address.port)) is None:
                    continue
                link = PeerLink(called, peer)
                link.send(greeting)
                heard = self._greeting(link)
                if heard is not None and (heard.rank, heard.token) == (peer, greeting.token):
                    require_equal_world_size(heard, greeting)
                    return link
                called.close()
            time.sleep(POLL)

    def _greeting(self, link: PeerLink) -> Hello | None:
        """What a rank answers, which may have to find its own parent first."""
        while True:
            self._look(f"rank {link.peer}")
            try:
                return receive_hello(link, POLL)
            except TimeoutError:
                continue
            except OSError:
                return None


def _fill(link: PeerLink) -> None:
    try:
        link.fill()
    except OSError:
        ends = [message.sentence for message in link.messages() if isinstance(message, End)]
        raise JoinError(*ends or [f"rank {link.peer} died before its first step"]) from None
