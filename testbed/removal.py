"""Taking testbeds down. Enters: the name of one, or nothing. Leaves: no trace of it, or of any
whose owner has died. Namespaces with other names are never touched.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from meshwright.base.errors import InputError, nearest
from testbed.netlink import namespaces, processes, remove_namespace
from testbed.owners import NOBODY, Owner, read_name


class Standing(NamedTuple):
    """A testbed that is up."""

    name: str
    owner: Owner
    namespaces: tuple[str, ...]


def standing() -> tuple[Standing, ...]:
    """All testbeds of this machine, by name."""
    beds: dict[str, Standing] = {}
    for name in sorted(namespaces()):
        said = read_name(name)
        if said is not None:
            known = beds.get(said.bed, Standing(said.bed, said.owner, ()))
            beds[said.bed] = known._replace(namespaces=(*known.namespaces, name))
    return tuple(beds.values())


def remove_leftovers() -> tuple[Standing, ...]:
    """Remove the testbeds whose owners have died; which ones these were."""
    dead = tuple(bed for bed in standing() if not bed.owner.lives)
    for bed in dead:
        remove(bed.namespaces)
    return dead


def remove_kept(name: str | None) -> tuple[Standing, ...]:
    """Remove a testbed that was brought up to stay, or all of them; which ones these were."""
    kept = tuple(bed for bed in standing() if bed.owner == NOBODY)
    if name is not None:
        known = [bed.name for bed in kept]
        if name not in known:
            raise InputError(f"no testbed {name!r} stays up here", nearest(name, known))
        kept = tuple(bed for bed in kept if bed.name == name)
    for bed in kept:
        remove(bed.namespaces)
    return kept


def remove(names: Iterable[str]) -> None:
    """Remove namespaces and what still runs in them; those that are gone already are no mistake.

    A process would keep its namespace alive beyond its name, and ranks outlive an owner that was
    killed.
    """
    for name in names:
        for process in processes(name):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        remove_namespace(name)
