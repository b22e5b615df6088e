"""Collective operations (AllReduce, AllGather, ...) and movements (AllToAll, Send, ...)."""

from __future__ import annotations

import enum


class Collective(enum.Enum):
    """A collective operation; the value is its name in text and JSON."""

    ALL_REDUCE = "AllReduce"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_GATHER = "AllGather"
    REDUCE = "Reduce"
    BROADCAST = "Broadcast"

    def size(self, held: float, members: int) -> float:
        """The size by which the collective is priced, from what each member holds before it.

        It is the buffer that goes in, except for AllGather, whose output is the larger one.
        """
        return held * members if self is Collective.ALL_GATHER else held


class Movement(enum.Enum):
    """What moves data between the members of a group and reduces nothing; no step of a program."""

    ALL_TO_ALL = "AllToAll"
    SCATTER = "Scatter"
    GATHER = "Gather"
    SEND = "Send"
    SHIFT = "Shift"

    def size(self, held: float, members: int) -> float:
        """The size by which it is priced: what each member, or the one that has any, holds."""
        return held


Operation = Collective | Movement
