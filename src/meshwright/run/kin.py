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

import msgspec
from torch.distributed import DistError, PrefixStore, Store

from meshwright.foundation.units import Seconds
from meshwright.run.agreement import DisagreementError
from meshwright.run.links import Hello, Link

NEAR = ("127.0.0.1", "localhost")

ANSWER = 2.0
"""Seconds for a stranger to say who it is, and for a host to take up a connection."""

POLL = 0.02
"""Seconds between two looks."""


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
    until = time.monotonic() + patience
    with socket.create_server(("", 0)) as server:
        own = Address(_hosts(), server.getsockname()[1], secrets.token_hex(8))
        try:
            # Each counts for itself how often it has joined, so that no old address is read.
            turn = store.add(f"meshwright/watch/{rank}", 1)
            common = PrefixStore(f"meshwright/watch/{turn}", store)
            common.set(str(rank), msgspec.json.encode(own).decode())
            if (parent := parent_of(rank)) is not None:
                there = _address(common, parent, until)
                links.append(_called(there, Hello(rank, ranks, there.token), parent, until))
        except DistError as error:
            raise JoinError(_lost_store(error)) from None
        missing = set(children_of(rank, ranks))
        while missing:
            link = _answered(server, missing, Hello(rank, ranks, own.token), until)
            if link is not None:
                links.append(link)
                missing.remove(link.peer)


def _lost_store(error: DistError) -> str:
    first = str(error).partition("\n")[0]
    return (
        f"the store at which ranks meet is gone ({first}): rank 0 has died, or the torchrun "
        "that serves it"
    )


def _address(store: Store, rank: int, until: float) -> Address:
    while not store.check([str(rank)]):
        if time.monotonic() > until:
            raise JoinError(f"rank {rank} has not come before the first step")
        time.sleep(POLL)
    return msgspec.json.decode(store.get(str(rank)), type=Address)


def _called(address: Address, own: Hello, peer: int, until: float) -> Link:
    """A connection to a rank that listens, by the first of its names at which it answers."""
    while time.monotonic() < until:
        for host in address.hosts:
            try:
                connection = socket.create_connection((host, address.port), ANSWER)
            except OSError:
                continue
            link = Link(connection, peer)
            link.send(own)
            # It may still wait for its own parent.
            heard = _hello(link, until - time.monotonic())
            if heard is not None and (heard.rank, heard.token) == (peer, own.token):
                _require_equal(heard, own)
                return link
            link.socket.close()
        time.sleep(POLL)
    raise JoinError(f"rank {peer} has not answered before the first step")


def _answered(server: socket.socket, missing: set[int], own: Hello, until: float) -> Link | None:
    """A connection that one of the missing has made; None if it was somebody else."""
    server.settimeout(max(POLL, until - time.monotonic()))
    try:
        connection, _ = server.accept()
    except TimeoutError:
        names = " and ".join(f"rank {rank}" for rank in sorted(missing))
        raise JoinError(f"{names} did not come before the first step") from None
    link = Link(connection, -1)
    heard = _hello(link, ANSWER)
    if heard is None or heard.token != own.token or heard.rank not in missing:
        connection.close()
        return None
    link.peer = heard.rank
    link.send(own)
    _require_equal(own, heard)
    return link


def _hello(link: Link, wait: float) -> Hello | None:
    """The first message, if it is one that is due first."""
    link.socket.settimeout(max(POLL, wait))
    try:
        while True:
            link.fill()
            for message in link.messages():
                return message if isinstance(message, Hello) else None
    except (OSError, msgspec.DecodeError):
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
