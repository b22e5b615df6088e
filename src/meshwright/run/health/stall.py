"""Stall detection. Enters: what each rank last said of itself. Leaves: a sentence, or nothing.

When one rank hangs, the others soon wait for it and stand still as well, so that it takes a look at
all of them to name the one:
    stalled: in a step, not waiting for others, and without progress for the limit;
    stuck:   no rank is stalled, but none makes progress: they wait for each other in a circle.
Of several, those are named that are furthest behind by (step, progress within it). `merged` is
associative and commutative, so that a tree of ranks can carry views upwards at a fixed size.
It does not know how views travel (`links`), nor what follows from a sentence (`watch`).
"""

from __future__ import annotations

import math
from functools import reduce

import msgspec

from meshwright.base.quantities import Seconds, counted


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """How far a rank says it is."""

    step: int | None = None
    """The step it is in, or was in last; None before the first."""
    count: int = 0
    """How often it has told of progress within the step."""
    inside: bool = False
    waiting: bool = False
    """Whether what it does now needs other ranks."""
    done: bool = False

    @property
    def when(self) -> str:
        """The time in words.

        >>> Mark().when, Mark(4, inside=True).when, Mark(4).when
        ('before its first step', 'in step 4', 'after step 4')
        """
        if self.step is None:
            return "before its first step"
        return f"{'in' if self.inside else 'after'} step {self.step}"


class Suspect(msgspec.Struct, frozen=True, array_like=True):
    """The rank that is furthest behind, and how many others are level with it."""

    step: int
    count: int
    rank: int
    seconds: float
    """Since its last progress; of several, since the latest."""
    others: int = 0

    @property
    def names(self) -> str:
        """Whom it stands for.

        >>> Suspect(4, 1, 2, 20.0).names, Suspect(4, 1, 2, 20.0, others=3).names
        ('rank 2 has', 'rank 2 and 3 others have')
        """
        if not self.others:
            return f"rank {self.rank} has"
        return f"rank {self.rank} and {counted(self.others, 'other')} have"


class StallDetector(msgspec.Struct, frozen=True, array_like=True):
    """What some ranks look like together; as it is made, like no rank at all."""

    quiet: float = math.inf
    """Seconds since the last progress of any; 0 while one is outside steps and may take its time,
    infinite for those that are done."""
    stalled: Suspect | None = None
    slowest: Suspect | None = None
    done: bool = True


UNKNOWN = StallDetector(quiet=0.0, done=False)
"""What a rank looks like that has not been heard yet: it may be busy."""


def stall_detector_of(rank: int, mark: Mark, quiet: float, limit: Seconds) -> StallDetector:
    """What one rank looks like that made its last progress `quiet` seconds ago."""
    if mark.done:
        return StallDetector()
    if not mark.inside or mark.step is None:
        return UNKNOWN
    suspect = Suspect(mark.step, mark.count, rank, quiet)
    stalled = None if mark.waiting or quiet < limit else suspect
    return StallDetector(quiet=quiet, stalled=stalled, slowest=suspect, done=False)


def merged(*views: StallDetector) -> StallDetector:
    """What the ranks of several views look like together."""
    return reduce(_merged, views, StallDetector())


def _merged(one: StallDetector, other: StallDetector) -> StallDetector:
    return StallDetector(
        quiet=min(one.quiet, other.quiet),
        stalled=_behind(one.stalled, other.stalled),
        slowest=_behind(one.slowest, other.slowest),
        done=one.done and other.done,
    )


def _behind(one: Suspect | None, other: Suspect | None) -> Suspect | None:
    if one is None or other is None:
        return one or other
    first, second = sorted((one, other), key=lambda s: (s.step, s.count, s.rank))
    if (first.step, first.count) != (second.step, second.count):
        return first
    return msgspec.structs.replace(
        first,
        seconds=min(first.seconds, second.seconds),
        others=first.others + second.others + 1,
    )


def complaint(outlook: StallDetector, limit: Seconds) -> str | None:
    """What is wrong with the ranks of a view, if anything.

    >>> complaint(stall_detector_of(2, Mark(4, inside=True), 20.3, Seconds(20.0)), Seconds(20.0))
    'rank 2 has made no progress in step 4 for 20 s'
    """
    if (suspect := outlook.stalled) is not None:
        return (
            f"{suspect.names} made no progress in step {suspect.step} for {suspect.seconds:.0f} s"
        )
    if (suspect := outlook.slowest) is not None and outlook.quiet >= limit:
        return (
            f"no rank makes progress, each waits for another: furthest behind, "
            f"{suspect.names} waited in step {suspect.step} for {suspect.seconds:.0f} s"
        )
    return None
