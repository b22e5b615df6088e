"""Semantics of collectives between islands: when programs over unequal groups are right.

Inside an island nothing is new: its state is that of `collectives.laws`, an entry for each set of
non-zero coordinates along its own levels, and P²'s collectives act on it. Two numbers come besides
the levels of the island (U of them above one), in `splits`, `reduced` and `open`:

    U       all islands: `reduced` has it if the sums are those of all islands, `open` if each
            island has its part of every piece
    U + 1   everybody: `open` if each device has its part of the whole (one of N)

What crosses is whole: sums of the sender's island, complete. (Partial sums of unlike islands do
not pair up: of 4 + 2 devices each of the two would be added twice.) With that, a crossing changes
each island's state by a law of its own, and islands must agree only on

    the crossing, and how many devices of the island hold each piece (`copies`; the j-th holders
    of a piece in all islands make a group, so there must be as many of them everywhere; for
    everybody.AllGather of what islands scattered, how many devices there are)

so that the programs over I_1 + ... + I_k are the tuples of programs of one island each that agree
on these, and in which no Broadcast teaches nobody anything. `tests` hold this against matrices of
chunks, program by program.

    across.X       every entry alike, not empty, whole; X = AllReduce, ReduceScatter, AllGather,
                   Reduce (to the first island; who holds nothing cannot receive by piece, so there
                   is no across.Broadcast)
    leaders.X      the entry of the first device: whole, with every piece
    everybody.X    the start for AllReduce, ReduceScatter, Reduce; AllGather where all have equal
                   parts; Broadcast is of the first device, once it has all
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, assert_never

from meshwright.collectives.islands.island_program import IslandCrossing
from meshwright.collectives.laws import State, StateEntry, start, state_entry
from meshwright.cost.collective import Collective

SUMS = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

CROSSINGS = (
    *(IslandCrossing("everybody", kind) for kind in Collective),
    *(IslandCrossing("across", kind) for kind in Collective if kind is not Collective.BROADCAST),
    *(IslandCrossing("leaders", kind) for kind in Collective),
)


class Crossed(NamedTuple):
    """What a crossing makes of an island."""

    state: State
    copies: int
    """What all islands must agree on."""
    learns: bool
    """Whether it is of use here; only a Broadcast may not be."""


class IslandLaws:
    """The laws for an island of levels of these sizes, each above one."""

    def __init__(self, sizes: Sequence[int], *, root: bool) -> None:
        """Enter besides: whether it is the first island, the root of Reduce and Broadcast."""
        self.sizes, self._root = tuple(sizes), root
        self._inner = (1 << len(self.sizes)) - 1
        self._islands = self._inner + 1
        self._everybody = self._islands << 1
        self._count = 1 << len(self.sizes)
        self._complete = StateEntry((), self._inner | self._islands, 0)
        self.start = start(len(self.sizes))
        self.goal: State = (self._complete,) * self._count

    def cross(self, state: State, crossing: IslandCrossing) -> Crossed | None:
        """The state after a crossing, or None if it would be wrong."""
        match crossing.form:
            case "everybody":
                return self._everybody_crosses(state, crossing.collective)
            case "across":
                return self._pieces_cross(state, crossing.collective)
            case "leaders":
                return self._leader_crosses(state, crossing.collective)
            case _:
                assert_never(crossing.form)

    def _everybody_crosses(self, state: State, collective: Collective) -> Crossed | None:
        if collective in SUMS:
            if state != self.start:
                return None
            nothing: State = (None,) * self._count
            if collective is Collective.REDUCE:
                after = (self._complete, *nothing[1:]) if self._root else nothing
            elif collective is Collective.REDUCE_SCATTER:
                entry = state_entry((len(self.sizes) + 2,), self._inner | self._islands)
                after = (entry,) * self._count
            else:
                after = self.goal
            return Crossed(after, 1, True)
        if collective is Collective.ALL_GATHER:
            return self._everybody_gathers(state)
        if self._root and state[0] != self._complete:
            return None
        return Crossed(self.goal, 1, state != self.goal)

    def _everybody_gathers(self, state: State) -> Crossed | None:
        """All parts are alike after everybody's ReduceScatter, or if islands have equal sizes."""
        opened = {0 if entry is None else entry.open for entry in state}
        if opened == {self._everybody}:
            return Crossed(self.goal, 0, True)
        if opened == {self._inner | self._islands}:
            return Crossed(self.goal, math.prod(self.sizes), True)
        return None

    def _pieces_cross(self, state: State, collective: Collective) -> Crossed | None:
        held = state[0]
        if held is None or any(entry != held for entry in state):
            return None
        after = self._crossed(held, collective)
        if after is None:
            return None
        copies = math.prod(size for u, size in enumerate(self.sizes) if not held.open >> u & 1)
        gone = collective is Collective.REDUCE and not self._root
        return Crossed((None if gone else after,) * self._count, copies, True)

    def _leader_crosses(self, state: State, collective: Collective) -> Crossed | None:
        held = state[0]
        if collective is Collective.BROADCAST:
            if self._root and held != self._complete:
                return None
            return Crossed((self._complete, *state[1:]), 1, held != self._complete)
        if held is None or held.open & self._inner:
            return None
        after = self._crossed(held, collective)
        if after is None:
            return None
        gone = collective is Collective.REDUCE and not self._root
        return Crossed((None if gone else after, *state[1:]), 1, True)

    def _crossed(self, held: StateEntry, collective: Collective) -> StateEntry | None:
        """What whole sums become; None if they are not whole, or the collective is out of place."""
        number = len(self.sizes) + 1
        if self._inner & ~held.reduced or held.open & self._everybody:
            return None
        if collective is Collective.ALL_GATHER:
            if not held.open & self._islands:
                return None
            return state_entry((*held.splits, -number), held.reduced)
        if held.reduced & self._islands:
            return None
        reduced = held.reduced | self._islands
        if collective is Collective.REDUCE_SCATTER:
            return state_entry((*held.splits, number), reduced)
        return StateEntry(held.splits, reduced, held.open)

    def parts(self, opened: int, islands: int) -> int:
        """Into how many parts data is scattered along levels, islands and everybody."""
        by_level = math.prod(size for u, size in enumerate(self.sizes) if opened >> u & 1)
        whole = islands * math.prod(self.sizes) if opened & self._everybody else 1
        return by_level * whole * (islands if opened & self._islands else 1)
