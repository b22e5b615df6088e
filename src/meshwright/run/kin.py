"""Which ranks watch each other. Enters: a store. Leaves: a `Link` to the parent and each child.

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

import contextlib
import os
import secrets
import socket
import time
from typing import NamedTuple

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import DistError

from meshwright.foundation.units import Seconds
from meshwright.run.agreement import DisagreementError
from meshwright.run.links import Hello, Link

NEAR = ("127.0.0.1", "localhost")

ANSWER = 2.0
"""Seconds for a stranger to say who it is, and for a host to take up a connection."""

POLL = 0.1
"""Seconds between two looks."""

CANCELLED = "cancelled"


class JoinError(Exception):
    """A rank that did not come; the message is the sentence."""


class Address(msgspec.Struct, frozen=True):
    """Where a rank listens; by which of its names it can be reached, the others find out."""

    hosts: tuple[str, ...]
    port: int
    token: str


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


def join(store: Store, rank: int, ranks: int, links: list[Link], patience: Seconds) -> None:
    """Connect to the parent and to the children; `links` has those that came, if one does not."""
    try:
        # Each counts for itself how often it has joined, so that no old address is read.
        turn = store.add(f"meshwright/watch/{rank}", 1)
        common = PrefixStore(f"meshwright/watch/{turn}", store)
        meeting = _Meeting(common, rank, ranks, time.monotonic() + patience)
        try:
            meeting.join(links)
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

    def join(self, links: list[Link]) -> None:
        with socket.create_server(("", 0)) as server:
            server.settimeout(POLL)
            own = Address(_hosts(), server.getsockname()[1], secrets.token_hex(8))
            self.store.set(str(self.rank), msgspec.json.encode(own).decode())
            if (parent := parent_of(self.rank)) is not None:
                links.append(self._called(parent))
            missing = set(children_of(self.rank, self.ranks))
            while missing:
                self._look(min(missing))
                link = _answered(server, missing, Hello(self.rank, self.ranks, own.token))
                if link is not None:
                    links.append(link)
                    missing.remove(link.peer)

    def cancel(self, sentence: str) -> None:
        """Tell those that still look, and give them the time to see it: the store may be here."""
        if not self.store.check([CANCELLED]):
            self.store.set(CANCELLED, sentence)
        time.sleep(10 * POLL)

    def _look(self, awaited: int) -> None:
        """Go on looking for a rank, unless it is time to give up or others have done so."""
        if self.store.check([CANCELLED]):
            raise JoinError(self.store.get(CANCELLED).decode())
        if time.monotonic() > self.until:
            raise JoinError(f"rank {awaited} did not come before its first step")

    def _called(self, peer: int) -> Link:
        """A connection to a rank that listens, by the first of its names at which it answers."""
        while not self.store.check([str(peer)]):
            self._look(peer)
            time.sleep(POLL)
        address = msgspec.json.decode(self.store.get(str(peer)), type=Address)
        own = Hello(self.rank, self.ranks, address.token)
        while True:
            for host in address.hosts:
                self._look(peer)
                if (connection := _connection(host, address.port)) is None:
                    continue
                link = Link(connection, peer)
                link.send(own)
                heard = self._greeting(link)
                if heard is not None and (heard.rank, heard.token) == (peer, own.token):
                    _require_equal(heard, own)
                    return link
                connection.close()
            time.sleep(POLL)

    def _greeting(self, link: Link) -> Hello | None:
        """What a rank answers, which may have to find its own parent first."""
        while True:
            self._look(link.peer)
            try:
                return _hello(link, POLL)
            except TimeoutError:
                continue
            except OSError:
                return None


def _connection(host: str, port: int) -> socket.socket | None:
    try:
        return socket.create_connection((host, port), ANSWER)
    except OSError:
        return None


def _answered(server: socket.socket, missing: set[int], own: Hello) -> Link | None:
    """A connection that one of the missing has made; None if nobody has, or somebody else."""
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return None
    link = Link(connection, -1)
    try:
        heard = _hello(link, ANSWER)
    except OSError:
        heard = None
    if heard is None or heard.token != own.token or heard.rank not in missing:
        connection.close()
        return None
    link.peer = heard.rank
    link.send(own)
    _require_equal(own, heard)
    return link


def _hello(link: Link, wait: float) -> Hello | None:
    """The first message, if it is one that is due first."""
    link.socket.settimeout(wait)
    while True:
        link.fill()
        try:
            for message in link.messages():
                return message if isinstance(message, Hello) else None
        except msgspec.DecodeError:
            return None


def _require_equal(above: Hello, below: Hello) -> None:
    if above.ranks != below.ranks:
        raise DisagreementError(
            f"rank {below.rank} was started as one of {below.ranks} ranks, rank {above.rank} as "
            f"one of {above.ranks}",
            "start all of them with the same WORLD_SIZE",
        )


def _hosts() -> tuple[str, ...]:
    """The addresses at which this rank may be found, the likeliest first."""
    master = os.environ.get("MASTER_ADDR", "")
    found = [_address_towards(master)] if master else []
    # Some systems give a host's own name an address that only the host itself can reach.
    if master not in NEAR and all(host.startswith("127.") for host in found):
        with contextlib.suppress(OSError):
            found += socket.gethostbyname_ex(socket.gethostname())[2]
    return tuple(dict.fromkeys(found)) or NEAR[:1]


def _address_towards(host: str) -> str:
    """The address of this machine on the way to another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            own: str = probe.getsockname()[0]
            return own
    except OSError:
        return NEAR[0]
