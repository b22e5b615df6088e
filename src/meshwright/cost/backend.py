"""Collective algorithms of NCCL and gloo (ring, tree, chain): one table a library.

An algorithm is a sequence of phases; a phase is a shape of transfers between the members of a
group (in the order of their device numbers) and the share of the collective's size that each
transfer carries. Sources: NCCL 2.10 and 2.30 `tuning.cc` and `broadcast.h` (only AllReduce has a
tree; Reduce and Broadcast are pipelined along the communicator's ring, at the pace of its slowest
hop, and nothing goes from the last member back to the first); gloo's
source and byte counters (ReduceScatter is an AllReduce, Broadcast a binomial tree of the whole
message, Reduce a ring and a gather).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import Seconds
from meshwright.cost.collective import Collective, Movement, Operation
from meshwright.cost.collective_bytes import SEGMENT

Algorithm = Literal["ring", "tree", "best"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "best")


class Shape(enum.Enum):
    """Who sends to whom in a phase."""

    RING = "every member to the next, the last to the first"
    CHAIN = "every member to the next, the last to nobody"
    TREE = "up and down a chain inside a machine and a double binary tree between machines"
    BINOMIAL = "a binomial tree, one whole message a round, distances doubling"
    GATHER = "every member to the first"
    SCATTER = "the first member to every other"
    ALL_TO_ALL = "every member to every other"
    SEND = "the first member to the last"
    SHIFT = "every member to the next, all at once, the last to nobody"


class Phase(NamedTuple):
    """A shape and the share of the size that each of its transfers carries, by group size."""

    shape: Shape
    share: Callable[[int], float]
    rounds: int = 1
    """How often a piece of data goes round, for its latency."""
    segment: int = 0
    """Bytes that a member waits for before it sends them on; 0: so few that nobody waits."""


class Backend(NamedTuple):
    """A communication library."""

    name: str
    table: Mapping[tuple[Collective, str], tuple[Phase, ...]]
    launch: Seconds
    """What starting one collective costs."""

    def phases(self, operation: Operation, algorithm: Algorithm) -> tuple[tuple[Phase, ...], ...]:
        """The algorithms it may run: one for "ring" or "tree", where it has it, or all for "best".

        Movements are made of sends between pairs, which every library does alike.

        >>> len(NCCL.phases(Collective.ALL_REDUCE, "best"))
        2
        """
        if isinstance(operation, Movement):
            return (_MOVEMENTS[operation],)
        wanted = ("ring", "tree") if algorithm == "best" else (algorithm, "ring")
        algorithms = [self.table[operation, a] for a in wanted if (operation, a) in self.table]
        return tuple(algorithms) if algorithm == "best" else tuple(algorithms[:1])


def _once(members: int) -> float:
    return 1.0


def _all_but_one(members: int) -> float:
    return (members - 1) / members


def _twice_all_but_one(members: int) -> float:
    return 2 * (members - 1) / members


def _one_part(members: int) -> float:
    return 1 / members


_MOVEMENTS: Mapping[Movement, tuple[Phase, ...]] = {
    Movement.ALL_TO_ALL: (Phase(Shape.ALL_TO_ALL, _one_part),),
    Movement.SCATTER: (Phase(Shape.SCATTER, _one_part),),
    Movement.GATHER: (Phase(Shape.GATHER, _once),),
    Movement.SEND: (Phase(Shape.SEND, _once),),
    Movement.SHIFT: (Phase(Shape.SHIFT, _once),),
}

_RING_ALL_REDUCE = (Phase(Shape.RING, _twice_all_but_one, rounds=2),)
_RING_ONCE = (Phase(Shape.RING, _all_but_one),)
_PIPELINED = (Phase(Shape.CHAIN, _once),)

NCCL = Backend(
    name="nccl",
    table={
        (Collective.ALL_REDUCE, "ring"): _RING_ALL_REDUCE,
        (Collective.ALL_REDUCE, "tree"): (Phase(Shape.TREE, _once, rounds=2),),
        (Collective.REDUCE_SCATTER, "ring"): _RING_ONCE,
        (Collective.ALL_GATHER, "ring"): _RING_ONCE,
        (Collective.REDUCE, "ring"): _PIPELINED,
        (Collective.BROADCAST, "ring"): _PIPELINED,
    },
    launch=Seconds(8.4e-6),
)

GLOO = Backend(
    name="gloo",
    table={
        (Collective.ALL_REDUCE, "ring"): _RING_ALL_REDUCE,
        (Collective.REDUCE_SCATTER, "ring"): _RING_ALL_REDUCE,
        (Collective.ALL_GATHER, "ring"): _RING_ONCE,
        (Collective.REDUCE, "ring"): (*_RING_ONCE, Phase(Shape.GATHER, _one_part)),
        (Collective.BROADCAST, "ring"): (Phase(Shape.BINOMIAL, _once),),
    },
    launch=Seconds(0.0),
)

_CHAIN = (Phase(Shape.CHAIN, _once, segment=SEGMENT),)

RINGS = Backend(
    name="rings",
    table={
        (Collective.ALL_REDUCE, "ring"): _RING_ALL_REDUCE,
        (Collective.REDUCE_SCATTER, "ring"): _RING_ONCE,
        (Collective.ALL_GATHER, "ring"): _RING_ONCE,
        (Collective.REDUCE, "ring"): _CHAIN,
        (Collective.BROADCAST, "ring"): _CHAIN,
    },
    launch=Seconds(0.0),
)
"""What `run` does on gloo: rings and chains of its own where gloo's algorithms move too much."""

_ALL_TO_ALL_ONCE = (Phase(Shape.ALL_TO_ALL, _one_part),)

PAIRS = Backend(
    name="pairs",
    table={
        (Collective.ALL_REDUCE, "ring"): (*_ALL_TO_ALL_ONCE, *_ALL_TO_ALL_ONCE),
        (Collective.REDUCE_SCATTER, "ring"): _ALL_TO_ALL_ONCE,
        (Collective.ALL_GATHER, "ring"): _ALL_TO_ALL_ONCE,
        (Collective.REDUCE, "ring"): (Phase(Shape.GATHER, _once),),
        (Collective.BROADCAST, "ring"): (Phase(Shape.SCATTER, _once),),
    },
    launch=Seconds(0.0),
)
"""Sends between pairs of devices and nothing else, as FlexFlow's runtime (Legion) did: what is
summed goes straight to the member that owns that part, and from there straight to everybody."""

BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (NCCL, GLOO, RINGS, PAIRS)}


def backend_named(name: str) -> Backend:
    """A backend by its name."""
    if name not in BACKENDS:
        raise InputError(f"there is no backend {name!r}", nearest(name, BACKENDS))
    return BACKENDS[name]
