"""Chunk states, and semantics of the five collectives on them, by level and not by device.

In P² a device's state is a k x k Boolean matrix (k devices reduce together): row i is chunk i,
entry (i, j) says that device j's chunk i has been added to what the device holds. For n levels
this module represents the states of all devices with at most 2^n *entries*, whatever the sizes:

* What happens to a device depends only on which of its coordinates are zero (roots and masters
  have zeros), so there is one entry for each set of non-zero coordinates.
* An entry is empty, or (splits, reduced). `reduced` is the set of levels along which
  contributions have been added: entry (i, j) of the matrix is set for exactly the devices j that
  agree with the device outside those levels. `splits` says which rows it holds: +u is a
  ReduceScatter along level u, -u the AllGather that undoes it; the order matters, as a later
  scatter divides what is held at that moment. Rows of devices that agree on all open splits are
  equal, others are disjoint.

States that this form cannot hold (rows with unlike contributions after an AllGather or AllReduce
of unlike entries) are dead: a contribution can never be taken out again. `tests` compare this
module with the literal matrices, program by program.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, assert_never

from meshwright.cost.collective import Collective

Levels = int
"""A set of levels as a bit mask, bit 0 the outermost."""


class StateEntry(NamedTuple):
    """What the devices with one set of non-zero coordinates hold."""

    splits: tuple[int, ...]
    reduced: Levels
    open: Levels
    """The levels along which the rows are scattered; follows from `splits`."""


State = tuple[StateEntry | None, ...]
"""The entry for each set of non-zero coordinates (as a bit mask); None if they hold nothing."""


class CollectiveGroups(NamedTuple):
    """The groups of an instruction: the levels they vary, and those held at zero."""

    varied: Levels
    first: Levels


def start(levels: int) -> State:
    """Every device holds all rows with its own contribution."""
    return (StateEntry((), 0, 0),) * (1 << levels)


def goal(levels: int) -> State:
    """Every device holds all rows with the contributions of its whole reduction group."""
    return (StateEntry((), (1 << levels) - 1, 0),) * (1 << levels)


def apply(state: State, collective: Collective, groups: CollectiveGroups) -> State | None:
    """The state after the collective, or None if it would be wrong or useless in any group.

    >>> one = apply(start(1), Collective.ALL_REDUCE, CollectiveGroups(1, 0))
    >>> one == goal(1), apply(goal(1), Collective.ALL_REDUCE, CollectiveGroups(1, 0))
    (True, None)
    """
    after = list(state)
    rest: StateEntry | None
    for root, others in _contexts(len(state), groups):
        held = state[root]
        if held is None:
            return None
        if collective is Collective.BROADCAST:
            if not _may_broadcast(state, held, root, others, groups):
                return None
            result, rest = held, held
        else:
            if any(state[member] != held for member in others):
                return None
            outcome = _combined(held, collective, groups.varied)
            if outcome is None:
                return None
            result = outcome
            rest = None if collective is Collective.REDUCE else outcome
        after[root] = result
        for member in others:
            after[member] = rest
    return tuple(after)


def scattered(state: State, groups: CollectiveGroups) -> set[Levels]:
    """Along which levels the data of the groups' roots is scattered: what sets their sizes."""
    return {
        entry.open
        for root, _ in _contexts(len(state), groups)
        if (entry := state[root]) is not None
    }


def _combined(held: StateEntry, collective: Collective, varied: Levels) -> StateEntry | None:
    """The entry of the members of groups whose members all hold `held`."""
    match collective:
        case Collective.ALL_GATHER:
            # Rows must be disjoint for every pair of members.
            if varied & ~held.open:
                return None
            return state_entry((*held.splits, *(-u for u in _signed(varied))), held.reduced)
        case Collective.ALL_REDUCE | Collective.REDUCE | Collective.REDUCE_SCATTER:
            # Rows must be equal and contributions disjoint for every pair of members.
            if varied & (held.open | held.reduced):
                return None
            reduced = held.reduced | varied
            if collective is Collective.REDUCE_SCATTER:
                return state_entry((*held.splits, *_signed(varied)), reduced)
            return StateEntry(held.splits, reduced, held.open)
        case Collective.BROADCAST:
            raise AssertionError("a Broadcast does not combine")
        case _:
            assert_never(collective)


def _may_broadcast(
    state: State, held: StateEntry, root: int, others: tuple[int, ...], groups: CollectiveGroups
) -> bool:
    """Whether every member holds a part of what the root holds, and one of them less."""
    if held.open & groups.varied:
        return False
    increase = False
    for member in others:
        entry = state[member]
        if entry is not None:
            apart = member ^ root
            if (apart | entry.reduced) & ~held.reduced or not _within(entry, held):
                return False
        increase |= entry != held
    return increase


def _within(small: StateEntry, large: StateEntry) -> bool:
    """Whether the rows of one entry are among those of the other."""
    if large.open & ~small.open:
        return False
    closing = tuple(-u for u in _signed(small.open & ~large.open))
    return state_entry(small.splits + closing, 0).splits == large.splits


@cache
def state_entry(splits: tuple[int, ...], reduced: Levels) -> StateEntry:
    """The entry in its normal form: a split undone before anything else was divided is gone."""
    kept = list(splits)
    while True:
        last = max((i for i, u in enumerate(kept) if u > 0), default=None)
        if last is None:
            break
        undone = next((i for i in range(last, len(kept)) if kept[i] == -kept[last]), None)
        if undone is None:
            break
        del kept[undone], kept[last]
    opened = 0
    for u in kept:
        opened ^= 1 << (abs(u) - 1)
    return StateEntry(_sorted_closings(kept) if opened else (), reduced, opened)


def _sorted_closings(splits: list[int]) -> tuple[int, ...]:
    """AllGathers that follow each other directly commute; put them in order."""
    result: list[int] = []
    run: list[int] = []
    for u in splits:
        if u < 0:
            run.append(u)
        else:
            result += [*sorted(run), u]
            run = []
    return (*result, *sorted(run))


def _signed(levels: Levels) -> Iterator[int]:
    """The levels of a mask, outermost first, as the numbers 1, 2, ... that splits are made of."""
    return (u + 1 for u in range(levels.bit_length()) if levels >> u & 1)


@cache
def _contexts(states: int, groups: CollectiveGroups) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """For each kind of group, its root and its other members, as sets of non-zero coordinates."""
    varied, first = groups
    subsets = [m for m in range(1, states) if m & ~varied == 0]
    roots = [m for m in range(states) if not m & (varied | first)]
    return tuple((root, tuple(root | subset for subset in subsets)) for root in roots)
