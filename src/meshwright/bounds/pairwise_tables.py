"""Pairwise costs of sharding degrees: what two neighbours must move across the network. Enters:
ways of units, trips of tensors. Leaves: choices, and what trips take.

Across a network a tensor of B bytes is cut g_d ways along each dim d, a pending sum of p parts, and
copied c times, on U = c · Π g_d positions. What a position needs and does not have must be moved to
it, and its part of the tensor has at most B / Π max(g_d, g'_d) in common with the part that it is
to have. So from one way of the maker to one of the reader
    bytes >= B (p - 1) + B max(0, c' - c)                      if p > 1 (`network_traffic`)
    bytes >= B (c' - min(U, U') / Π max(g_d, g'_d))            else                     `_fractions`
where dims between which a way leaves the choice (`Ways.loose`) count together, by their products;
and whatever moves takes at least the delay of the network, as halos and sums of statistics do. Ways
of a unit that lie alike across the network are one choice. Where choices are too many, those that
are cut along the same splits, each about as often, are taken together: what takes least of any of
them counts, for times and for what moves apart, so that the bound stays one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.bounds.network_traffic import (
    NetworkTraffic,
    ReaderExchange,
    States,
    TensorTransfers,
)
from meshwright.bounds.unary_bound import AlikeOpGroups
from meshwright.sharding.states import PARTIAL, WHOLE

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


SLIGHT = 1e-9
"""What is less of a tensor is rounding."""


class NetworkPlacement(NamedTuple):
    """How a tensor lies across the network in each choice of a unit."""

    parts: Floats
    """[choices] of a pending sum."""
    copies: Floats
    """[choices]"""
    cuts: Floats
    """[dims, choices] how many ways each dim is cut."""
    loose: frozenset[int]
    """Dims of which one stands for the others."""


class PairChoices(NamedTuple):
    """What seats of a unit lie alike across the network, or about alike."""

    first: Whole
    """[choices] the number of its first seat: seats are in the order of choices."""
    times: Floats
    """[4, seats] as of `AlikeOpGroups.times`, in that order."""
    lying: tuple[NetworkPlacement, ...]
    """For each slot."""
    together: Whole
    """[choices] the first of how tensors lie that is taken for it."""
    across: Whole
    """[seats, splits + 1] as of `Seats.across`."""
    loose: tuple[int, ...]
    """Splits of which one stands for the others."""

    def exchanging(self, beside: ReaderExchange, network: NetworkTraffic) -> Floats:
        """[choices] nanoseconds for which parts talk among themselves at least."""
        nanoseconds = np.zeros(len(self.across))
        for split in beside.sums:
            if split not in self.loose:
                nanoseconds += [network.sums[n] for n in self.across[:, split].tolist()]
        # What is cut along one may be cut along several.
        loose = [split for split in beside.sums if split in self.loose]
        nanoseconds += [network.chains[n] for n in self.across[:, loose].prod(axis=1).tolist()]
        for split in beside.rows:
            nanoseconds += network.delay * (self.across[:, split] > 1)
        return np.minimum.reduceat(nanoseconds, self.first)


class TransferCosts(NamedTuple):
    """What a trip takes, by the choices of both units, in nanoseconds."""

    units: tuple[int, int]
    moved: Floats
    """[choices, choices] for which it holds the network."""
    waited: Floats
    """[choices, choices]"""
    last: Floats
    """[choices] to be summed up."""


def pairwise_transfer_costs(
    choices: Sequence[PairChoices], trips: TensorTransfers, network: NetworkTraffic
) -> list[TransferCosts]:
    """What all trips take; trips that take the same share their tables."""
    known: dict[object, tuple[Floats, Floats, Floats]] = {}
    later: dict[object, Floats] = {}
    shares: dict[object, tuple[Floats, Floats]] = {}
    every = {id(placement): placement for unit in choices for placement in unit.lying}
    distinct = {key: _distinct(placement) for key, placement in every.items()}
    costs = []
    for n, (one, other) in enumerate(trips.units):
        produced = choices[one].lying[trips.source[n] - trips.first[one]]
        needed = choices[other].lying[trips.target[n] - trips.first[other]]
        pair = id(produced), id(needed)
        if pair not in shares:
            (few, row), (fewer, column) = distinct[id(produced)], distinct[id(needed)]
            groups = choices[one].together, choices[other].together
            share = _least(_fractions(few, fewer), row, column, *groups)
            shares[pair] = share, np.minimum.reduceat(produced.parts - 1, groups[0])
        key = (pair, trips.bytes[n])
        if key not in known:
            whole = float(trips.bytes[n]) * network.pace
            known[key] = _priced(*shares[pair], whole, network.delay)
        moved, waited, last = known[key]
        beside = trips.beside[n]
        if beside is not None:
            reader = one if trips.backward[n] else other
            longer = (key, reader == one, beside)
            if longer not in later:
                more = choices[reader].exchanging(beside, network)
                later[longer] = waited + (more[:, None] if reader == one else more[None, :])
            waited = later[longer]
        costs.append(TransferCosts((one, other), moved, waited, last))
    return costs


def choices(
    kinds: Sequence[AlikeOpGroups],
    trips: TensorTransfers,
    micro_batches: int,
    parts: int | None = None,
) -> list[PairChoices]:
    """The choices of each unit; units of a kind share theirs.

    Degrees are told apart by so many parts of their range, and from 1; all of them if None.
    """
    by_unit: dict[int, PairChoices] = {}
    for kind in kinds:
        kind_choices = _choices(kind, trips.slots[int(kind.units[0])], micro_batches, parts)
        by_unit |= dict.fromkeys(kind.units.tolist(), kind_choices)
    return [by_unit[unit] for unit in range(len(trips.slots))]


def elimination_effort(choices: Sequence[PairChoices], trips: TensorTransfers) -> float:
    """About how many sums a round of the game takes: where two neighbours are joined."""
    around: dict[int, set[int]] = {}
    for one, other in trips.units:
        around.setdefault(one, set()).add(other)
        around.setdefault(other, set()).add(one)
    total = 0.0
    for unit, others in around.items():
        sizes = sorted((len(choices[other].first) for other in others), reverse=True)[:2]
        total += len(choices[unit].first) * math.prod(sizes)
    return total


def _choices(
    kind: AlikeOpGroups, slots: tuple[States, ...], micro_batches: int, parts: int | None
) -> PairChoices:
    seats = kind.seats
    # Seats that are cut and copied alike stand together.
    changes = (seats.across[1:] != seats.across[:-1]).any(axis=1)
    runs = np.flatnonzero(np.concatenate(([True], changes)))
    states = [_lying(seats.across[runs], slot, kind.ways.loose) for slot in slots]
    rows = np.vstack([np.ones((1, len(runs))), *(np.vstack(placement[:3]) for placement in states)])
    alike = rows if parts is None else np.vstack([_ranges(rows, parts), rows])
    _, first, run = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    which = np.repeat(run.reshape(-1), np.diff(np.append(runs, len(seats.way))))
    order = np.argsort(which, kind="stable")
    starts = np.searchsorted(which[order], np.arange(len(first)))
    together = np.arange(len(first))
    if parts is not None:
        # Sorted by ranges first, so that those of a range stand together.
        ranges = alike[: len(rows), first]
        together = np.flatnonzero(
            np.concatenate(([True], (ranges[:, 1:] != ranges[:, :-1]).any(axis=0)))
        )
    return PairChoices(
        first=starts[together].astype(np.int64),
        times=kind.times(micro_batches)[:, order],
        lying=tuple(
            NetworkPlacement(
                placement.parts[first],
                placement.copies[first],
                placement.cuts[:, first],
                placement.loose,
            )
            for placement in states
        ),
        together=together,
        across=seats.across[order],
        loose=kind.ways.loose,
    )


def _ranges(degrees: Floats, parts: int) -> Floats:
    """0 for 1, and else the part of its row's range, by logarithms, that a degree is in."""
    most = np.log(np.maximum(degrees.max(axis=1, keepdims=True), 2.0))
    return np.where(degrees > 1, np.ceil(parts * np.log(degrees) / most - SLIGHT), 0.0)


def _lying(across: Whole, states: States, loose: tuple[int, ...]) -> NetworkPlacement:
    """How a tensor lies in each seat."""
    parts, copies = np.ones(len(across)), across[:, -1].astype(np.float64)
    cuts = np.ones((max((*states, -1)) + 1, len(across)))
    for split, state in enumerate(states):
        if state == WHOLE:
            copies = copies * across[:, split]
        elif state == PARTIAL:
            parts = parts * across[:, split]
        else:
            cuts[state] *= across[:, split]
    return NetworkPlacement(
        parts, copies, cuts, frozenset(states[s] for s in loose if states[s] >= 0)
    )


def _distinct(placement: NetworkPlacement) -> tuple[NetworkPlacement, Whole]:
    """The different ways in which a tensor lies, and for each choice which of them it is."""
    rows = np.vstack((placement.parts, placement.copies, placement.cuts))
    few, which = np.unique(rows, axis=1, return_inverse=True)
    return NetworkPlacement(few[0], few[1], few[2:], placement.loose), which.reshape(-1)


def _least(costs: Floats, row: Whole, column: Whole, one: Whole, other: Whole) -> Floats:
    """The least of choices that are taken together, whose costs are in some rows and columns."""
    rows = np.minimum.reduceat(costs[row], one, axis=0)
    return np.minimum.reduceat(rows[:, column], other, axis=1)


def _priced(
    share: Floats, summed: Floats, whole: float, delay: float
) -> tuple[Floats, Floats, Floats]:
    """For what moves of a tensor: how long it holds the network, how long it is waited for, and how
    long for what is summed up; more takes no less.
    """
    return (
        whole * share,
        whole * share + delay * (share > SLIGHT),
        whole * summed + delay * (summed > SLIGHT),
    )


def _fractions(produced: NetworkPlacement, needed: NetworkPlacement) -> Floats:
    """What moves at least, as a share of the tensor, by choices of the maker and the reader."""
    dims = max(len(produced.cuts), len(needed.cuts))
    cuts, pieces = (
        np.vstack((placement.cuts, np.ones((dims - len(placement.cuts), placement.cuts.shape[1]))))
        for placement in (produced, needed)
    )
    loose = [d in produced.loose | needed.loose for d in range(dims)]
    alone = [[d] for d in range(dims) if not loose[d]]
    common = np.ones((len(produced.parts), len(needed.parts)))
    for group in (*alone, [d for d in range(dims) if loose[d]]):
        common *= np.maximum(cuts[group].prod(axis=0)[:, None], pieces[group].prod(axis=0))
    wide = (produced.copies * cuts.prod(axis=0))[:, None]
    used = np.minimum(wide, needed.copies * pieces.prod(axis=0))
    exchanged = np.maximum(needed.copies - used / common, 0.0)
    parts = produced.parts[:, None]
    summed = parts - 1 + np.maximum(needed.copies - produced.copies[:, None], 0.0)
    return np.where(parts > 1, summed, exchanged)
