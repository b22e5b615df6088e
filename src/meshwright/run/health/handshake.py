"""The handshake of two ranks. Enters: addresses. Leaves: a `PeerLink` whose other end is known.

It does not know who looks for whom (`kin`).
"""

from __future__ import annotations

import contextlib
import os
import socket

import msgspec

from meshwright.run.health.channel import Hello, PeerLink
from meshwright.run.health.consistency import DisagreementError

NEAR = ("127.0.0.1", "localhost")

ANSWER = 2.0
"""Seconds for a stranger to say who it is, and for a host to take up a connection."""


class Address(msgspec.Struct, frozen=True):
    """Where a rank listens; by which of its names it can be reached, the others find out."""

    hosts: tuple[str, ...]
    port: int
    token: str


def hosts() -> tuple[str, ...]:
    """The addresses at which this rank may be found, the likeliest first."""
    master = os.environ.get("MASTER_ADDR", "")
    addresses = [_address_towards(master)] if master else []
    # Some systems give a host's own name an address that only the host itself can reach.
    if master not in NEAR and all(host.startswith("127.") for host in addresses):
        with contextlib.suppress(OSError):
            addresses += socket.gethostbyname_ex(socket.gethostname())[2]
    return tuple(dict.fromkeys(addresses)) or NEAR[:1]


def _address_towards(host: str) -> str:
    """The address of this machine on the way to another."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            address: str = probe.getsockname()[0]
            return address
    except OSError:
        return NEAR[0]


def connection(host: str, port: int) -> socket.socket | None:
    """A connection, if there is somebody."""
    try:
        return socket.create_connection((host, port), ANSWER)
    except OSError:
        return None


def answered(server: socket.socket, missing: set[int], greeting: Hello) -> PeerLink | None:
    """A connection that one of the missing has made; None if nobody has, or somebody else."""
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return None
    link = PeerLink(connection, -1)
    try:
        heard = receive_hello(link, ANSWER)
    except OSError:
        heard = None
    if heard is None or heard.token != greeting.token or heard.rank not in missing:
        connection.close()
        return None
    link.peer = heard.rank
    link.send(greeting)
    require_equal_world_size(greeting, heard)
    return link


def receive_hello(link: PeerLink, wait: float) -> Hello | None:
    """The first message, if it is one that is due first."""
    link.socket.settimeout(wait)
    while True:
        link.fill()
        try:
            for message in link.messages():
                return message if isinstance(message, Hello) else None
        except msgspec.DecodeError:
            return None


def require_equal_world_size(above: Hello, below: Hello) -> None:
    """Refuse ranks that do not believe in the same number of ranks."""
    if above.ranks != below.ranks:
        raise DisagreementError(
            f"rank {below.rank} was started as one of {below.ranks} ranks, rank {above.rank} as "
            f"one of {above.ranks}",
            "start all of them with the same WORLD_SIZE",
        )
