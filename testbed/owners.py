"""Whose a namespace is. Enters: names. Leaves: owners, and whether they still live.

The name of every namespace of a testbed tells its owner: a process by its number and the moment it
started, so that a number used again is not taken for it. A testbed that was brought up to stay has
no owner. Nothing here makes or removes a namespace.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

PREFIX = "meshbed"
_NAME = re.compile(rf"({PREFIX}-(\d+)-(\d+)-(\w+))-(\w+)")


class Owner(NamedTuple):
    """A process, or nobody."""

    process: int
    started: int
    """In ticks since the machine started."""

    @staticmethod
    def this() -> Owner:
        """The process that asks."""
        return Owner(os.getpid(), _started(os.getpid()) or 0)

    @property
    def lives(self) -> bool:
        """Whether what it made is still wanted."""
        return self == NOBODY or _started(self.process) == self.started

    def name(self, bed: str | int, part: str | int) -> str:
        """The name of one namespace of one of its testbeds.

        >>> Owner(12, 3456).name("b0", "fabric")
        'meshbed-12-3456-b0-fabric'
        """
        return f"{PREFIX}-{self.process}-{self.started}-{bed}-{part}"


NOBODY = Owner(0, 0)


class Named(NamedTuple):
    """What the name of a namespace says."""

    bed: str
    """What all namespaces of its testbed begin with."""
    owner: Owner
    part: str


def read_name(namespace: str) -> Named | None:
    """What a name says; None for a namespace that is not ours.

    >>> read_name("meshbed-12-3456-b0-fabric")
    Named(bed='meshbed-12-3456-b0', owner=Owner(process=12, started=3456), part='fabric')
    >>> read_name("docker0")
    """
    match = _NAME.fullmatch(namespace)
    if match is None:
        return None
    bed, process, started, _, part = match.groups()
    return Named(bed, Owner(int(process), int(started)), part)


def _started(process: int) -> int | None:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, in parentheses, may hold spaces; a zombie has ended.
    state, *rest = text.rpartition(")")[2].split()
    return None if state == "Z" else int(rest[18])
