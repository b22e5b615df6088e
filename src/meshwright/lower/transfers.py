r"""Resharding steps between two placements. Enters: two `TensorPlacement`s of one tensor. Leaves:
steps, each a collective over some factors or an exchange of boxes.

Equal cuts go the way of `sharding.reshard`, so that what runs is what was priced. Where pieces
are unequal, where windows reach over, and where a dim's pieces are numbered anew, devices exchange
the boxes that overlap. The value at a reader is always

    x[box] = sum over terms t of (what t holds of box)

where the terms are the pieces (disjoint, or overlapping if they are gradients of windows) and the
parts of pending sums; each is fetched from one of its copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from meshwright.base.integers import set_bits
from meshwright.cost.collective import Collective
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import overlap
from meshwright.lower.device_mesh import Coordinates, MeshSizes
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.sharding.reshard import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    MOST,
    REDUCE,
    REDUCE_SCATTER,
    Codes,
    changes,
    resharding,
)
from meshwright.sharding.states import PARTIAL, WHOLE, States

COLLECTIVES = {
    ALL_REDUCE: Collective.ALL_REDUCE,
    REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    REDUCE: Collective.REDUCE,
    ALL_GATHER: Collective.ALL_GATHER,
    BROADCAST: Collective.BROADCAST,
}


class GroupCollective(NamedTuple):
    """A collective: each group's members differ along the factors `inside` alone."""

    kind: Collective
    inside: tuple[int, ...]
    beside: tuple[int, ...]
    """The factors along which groups run side by side."""
    before: TensorPlacement
    after: TensorPlacement


class Exchange(NamedTuple):
    """Boxes that overlap go from one copy of each term to every device that needs them."""

    before: TensorPlacement
    after: TensorPlacement


Step = GroupCollective | Exchange


class BoxMove(NamedTuple):
    """A box that one device gives to another, or keeps."""

    source: int
    target: int
    box: Box
    source_box: Box
    target_box: Box


def transfer(before: TensorPlacement, after: TensorPlacement) -> tuple[Step, ...]:
    """The steps that lead from one to the other; none if nothing moves."""
    if before.exact is None and after.exact is None and before.states == after.states:
        return ()
    source, needed = before.equal_cuts(), after.equal_cuts()
    if not (source.divides and needed.divides) or _renumbers(source.states, needed.states):
        return _exchanged(before, after)
    chain = tuple(_chain(source, needed))
    if _loses(chain) or not all(map(_fits, chain)):
        return _exchanged(before, after)
    # Gradients of windows overlap: first everybody gets what belongs to its own piece.
    return (*_exchanged(before, source), *chain, *_exchanged(needed, after))


def _loses(chain: tuple[Step, ...]) -> bool:
    """Whether what a device drops of a whole may be what it gets back from others later on."""
    exchanging = all(isinstance(step, Exchange) for step in chain)
    return exchanging and len(chain) > 1 and _cuts(chain[0])


def _cuts(step: Step) -> bool:
    """Whether something is whole before it and not after it."""
    pairs = zip(step.before.states, step.after.states, strict=True)
    return any(before == WHOLE != after for before, after in pairs)


def _exchanged(before: TensorPlacement, after: TensorPlacement) -> tuple[Step, ...]:
    """One exchange, if anything changes."""
    if before.states == after.states:
        holders = before.machine.present(before.states)
        if all(before.box(holder) == after.box(holder) for holder in holders):
            return ()
    return (Exchange(before, after),)


def _codes(states: States) -> Codes:
    return np.array(states, np.int8)


def _renumbers(source: States, needed: States) -> bool:
    """Whether the pieces of a dim get other numbers than what each factor's change gives them."""
    alone = np.zeros(len(source), np.int8)
    exchanging = int(changes(_codes(source), _codes(needed), alone))
    crossing = sum(
        1 << f
        for f, (a, b) in enumerate(zip(source, needed, strict=True))
        if a != b and min(a, b) >= 0
    )
    return exchanging != crossing


def _chain(before: TensorPlacement, after: TensorPlacement) -> Iterator[Step]:
    """One step for each kind of change, in the order in which little data moves."""
    sizes = np.array(before.machine.sizes, np.int64)
    operation, held = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
    scratch = np.zeros(len(sizes), np.int8)
    count = resharding(
        _codes(before.states), _codes(after.states), sizes, 1.0, scratch, operation, held
    )
    # What is whole everywhere is cut, or dropped but at one place, without moving: when a sum is
    # scattered in the same go, before it otherwise.
    cut = before._replace(states=_kept(before.states, after.states))
    current = before
    if cut.states != before.states and not (count and operation[0, 0] == REDUCE_SCATTER):
        yield Exchange(before, cut)
        current = cut
    for kind, inside, beside in operation[:count].tolist():
        factors = set_bits(inside)
        states = tuple(
            after.states[f] if f in factors else state for f, state in enumerate(cut.states)
        )
        cut = cut._replace(states=states)
        if kind in COLLECTIVES:
            yield GroupCollective(COLLECTIVES[kind], factors, set_bits(beside), current, cut)
        else:
            yield Exchange(current, cut)
        current = cut
    assert current.states == after.states


def _fits(step: Step) -> bool:
    """Whether what a collective scatters or gathers are parts of what its members hold."""
    if isinstance(step, Exchange) or step.kind not in (
        Collective.REDUCE_SCATTER,
        Collective.ALL_GATHER,
    ):
        return True
    return _nested(step.before.machine, step.inside, step.before.states, step.after.states)


@cache
def _nested(machine: MeshSizes, inside: tuple[int, ...], one: States, other: States) -> bool:
    """Whether each member's box is a part of that of the group, or the other way round."""
    shape = (math.prod(machine.sizes),) * (1 + max(0, *one, *other))
    before, after = TensorPlacement(machine, shape, one), TensorPlacement(machine, shape, other)
    if not one.count(PARTIAL):
        before, after = after, before
    return all(
        overlap(before.box(holder), after.box(member)) == after.box(member)
        for holder in machine.present(before.states)
        if after.holds(holder)
        for member in machine.along(inside, holder)
    )


def _kept(source: States, needed: States) -> States:
    return tuple(b if a == WHOLE else a for a, b in zip(source, needed, strict=True))


def received_boxes(step: Exchange, reader: Coordinates) -> Iterator[BoxMove]:
    """What a device gets."""
    before, after = step
    machine = before.machine
    needed = after.box(reader)
    for term in before.terms():
        if _apart(before.states, after.states, term, reader):
            continue
        source = before.copy_near(term, reader)
        source_box = before.box(source)
        shared = overlap(source_box, needed)
        if shared is not None:
            yield BoxMove(
                machine.device(source), machine.device(reader), shared, source_box, needed
            )


def sent_boxes(step: Exchange, source: Coordinates) -> Iterator[BoxMove]:
    """What a device gives to others."""
    before, after = step
    machine, sender = before.machine, before.machine.device(source)
    # Everybody takes from the copy with its own coordinates along what is whole.
    free = [f for f, state in enumerate(before.states) if state != WHOLE]
    for reader in machine.along(free, source):
        if reader == source or not after.holds(reader):
            continue
        if _apart(before.states, after.states, source, reader):
            continue
        shared = overlap(before.box(source), after.box(reader))
        if shared is not None:
            yield BoxMove(
                sender, machine.device(reader), shared, before.box(source), after.box(reader)
            )


def _apart(before: States, after: States, term: Coordinates, reader: Coordinates) -> bool:
    """Whether a part of a sum that stays pending belongs to another device than the reader."""
    return any(
        a == b == PARTIAL and source != target
        for a, b, source, target in zip(before, after, term, reader, strict=True)
    )
