"""Depth-first branch and bound over partial plans (Land & Doig 1960). Compiled. Enters: sums that
bound partial plans (`lagrangian`, `mini_buckets`, `partial_simulation`). Leaves: every whole plan
that is faster than the best.

At depth i the unit i from the end gets a layout, the one with the lowest bound first. Between two
calls all depths up to the current one have the bounds of what was not tried in them; the rest of a
depth is given up when the lowest is not below the best makespan. Whoever grows a tree decides
whether a faster plan becomes the best: it may be one that does not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.base.compiled import compiled, copy_row
from meshwright.exact.partial_simulation import SyncPoint, Waits, waited
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL
from meshwright.simulate import full
from meshwright.simulate.assign import assign_edge, assign_op_group
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.full import EngineScratch
from meshwright.simulate.move import MoveBuffers
from meshwright.simulate.tasks import Flags, Indices, Ints, Timeline
from meshwright.solvers.mini_buckets import Costs, MiniBuckets

ROUNDING: Final = 1e-3
"""Nanoseconds by which sums of floats may be off."""


class Sums(NamedTuple):
    """Functions of all sums, flat, for compiled code; see `mini_buckets`."""

    cost: Costs
    """The numbers of all functions, one after the other."""
    offset: Ints
    """[functions] where each begins."""
    stride: Ints
    """[functions, units]"""
    sum: Indices
    """[functions] the sum it belongs to."""
    ending: Ints
    """[units, most] the functions that end with a unit, or -1."""
    born: Ints
    """[units, most] the functions that eliminating a unit left, or -1."""


class Tree(NamedTuple):
    """Where the search is, and room for it."""

    number: Ints
    """[5] see the names below."""
    chosen: Indices
    """[units] layouts, by number, the last unit's first."""
    bound: Costs
    """[units, sums, layouts] of the partial plan with each layout of a unit."""
    worst: Costs
    """[units, layouts] the largest of them, infinite once tried."""
    added: Costs
    """[sums] what waiting adds (`partial_simulation`)."""
    named: Indices
    """[units, factors] how many coordinates have appeared before."""


DEPTH, NODES, SIMULATED, BEST, MAKESPAN = range(5)
"""In `Tree.number`: how many units have layouts, how many partial plans were looked into, how many
whole ones were simulated, the makespan to beat, and that of the last plan that did."""

FASTER: Final = 4
"""What growing ends with at a plan that beats the best; the other endings are those of
`edge_collectives`."""


class Ground(NamedTuple):
    """What does not change while a tree grows."""

    layouts: NDArray[np.int8]
    """[units, most layouts, factors], the last unit first."""
    counts: Indices
    """[units] layouts."""
    renamed: Flags
    """[factors] whether coordinates can be renamed."""
    bundles: Ints
    """[units, most] the bundles that are decided with a unit, or -1."""
    sums: Sums
    waits: Waits
    waist: SyncPoint


def empty_search_tree(sizes: Sequence[int], factors: int, sums: int) -> Tree:
    """A tree before any layout is chosen."""
    units, most = len(sizes), max(sizes)
    return Tree(
        number=np.zeros(5, np.int64),
        chosen=np.zeros(units, np.int32),
        bound=np.zeros((units, sums, most)),
        worst=np.full((units, most), math.inf),
        added=np.zeros(sums),
        named=np.zeros((units, factors), np.int32),
    )


def flat(buckets: Sequence[MiniBuckets], sizes: Sequence[int]) -> Sums:
    """Several sums side by side."""
    units = len(sizes)
    functions = [
        (n, function) for n, b in enumerate(buckets) for end in b.ending for function in end
    ]
    stride = np.zeros((len(functions), units), np.int64)
    ending: list[list[int]] = [[] for _ in sizes]
    born: list[list[int]] = [[] for _ in sizes]
    for number, (_, term) in enumerate(functions):
        for axis, unit in enumerate(term.scope):
            stride[number, unit] = math.prod(term.cost.shape[axis + 1 :])
        ending[term.scope[-1]].append(number)
        if term.born < units:
            born[term.born].append(number)
    return Sums(
        cost=np.concatenate([function.cost.ravel() for _, function in functions]),
        offset=np.cumsum([0, *(function.cost.size for _, function in functions)])[:-1],
        stride=stride,
        sum=np.array([n for n, _ in functions], np.int32),
        ending=padded(ending),
        born=padded(born),
    )


def padded(lists: Sequence[Sequence[int]]) -> Ints:
    """Lists side by side, each followed by at least one -1."""
    rows = np.full((len(lists), 1 + max(map(len, lists))), -1, np.int64)
    for row, entries in zip(rows, lists, strict=True):
        row[: len(entries)] = entries
    return rows


@compiled
def _place_of(sums: Sums, function: int, chosen: Indices, depth: int) -> int:
    """Where the number of a function is, but for the choice of the unit at this depth."""
    at, offset, stride = 0, sums.offset, sums.stride
    for unit in range(depth):
        at += chosen[unit] * stride[function, unit]
    return int(at + offset[function])


@compiled
def opened(tree: Tree, ground: Ground) -> None:
    """Bound the partial plans that the layouts of the next unit make."""
    depth, sums, count = tree.number[DEPTH], ground.sums, ground.counts[tree.number[DEPTH]]
    chosen, bound, worst, named = tree.chosen, tree.bound, tree.worst, tree.named
    cost, ending, born, whose = sums.cost, sums.ending, sums.born, sums.sum
    for s in range(bound.shape[1]):
        known = 0.0 if depth == 0 else bound[depth - 1, s, chosen[depth - 1]]
        for v in range(count):
            bound[depth, s, v] = known
    i = 0
    while born[depth, i] >= 0:
        function = born[depth, i]
        known = cost[_place_of(sums, function, chosen, depth)]
        for v in range(count):
            bound[depth, whose[function], v] -= known
        i += 1
    i = 0
    while ending[depth, i] >= 0:
        function = ending[depth, i]
        at, step = _place_of(sums, function, chosen, depth), sums.stride[function, depth]
        for v in range(count):
            bound[depth, whose[function], v] += cost[at + v * step]
        i += 1
    for v in range(worst.shape[1]):
        worst[depth, v] = np.inf
    for v in range(count):
        if is_canonical_coordinate_order(ground.layouts[depth, v], named[depth], ground.renamed):
            worst[depth, v] = bound[depth, 0, v] + tree.added[0]
            for s in range(1, bound.shape[1]):
                worst[depth, v] = max(worst[depth, v], bound[depth, s, v] + tree.added[s])


@compiled
def is_canonical_coordinate_order(roles: Codes, named: Indices, renamed: Flags) -> bool:
    """Whether every coordinate has appeared before, or is the next to appear."""
    fresh = True
    for f in range(len(roles)):
        fresh = fresh and not (renamed[f] and PARTIAL - 1 - roles[f] > named[f])
    return fresh


@compiled
def _lay(now: MoveBuffers, tree: Tree, ground: Ground) -> int:
    """Write the layout of the unit at hand into the task graph; FOUND, or what a table lacks."""
    depth = tree.number[DEPTH]
    unit = len(tree.chosen) - 1 - depth
    copy_row(ground.layouts[depth], tree.chosen[depth], now.roles, unit)
    status = assign_op_group(
        now.template, now.tasks, now.table, now.times, now.rates, now.radix,
        now.types[unit], unit, now.roles[unit], now.room,
    )  # fmt: skip
    i = 0
    while status == FOUND and ground.bundles[depth, i] >= 0:
        status = assign_edge(
            now.template, now.tasks, now.table, now.rates, now.radix,
            ground.bundles[depth, i], now.roles, now.room,
        )  # fmt: skip
        i += 1
    return status


@compiled
def _hopeless(now: MoveBuffers, tree: Tree, ground: Ground) -> bool:
    """Whether no completion is faster than the best; leaves what waiting adds."""
    depth, added = tree.number[DEPTH], tree.added
    waited(now.tasks, ground.waist, len(tree.chosen) - 1 - depth, ground.waits, added)
    for s in range(len(added)):
        bound = tree.bound[depth, s, tree.chosen[depth]] + added[s]
        if bound - ROUNDING > tree.number[BEST] - 1:
            return True
    return False


@compiled
def grown(
    now: MoveBuffers, work: EngineScratch, timeline: Timeline, tree: Tree, ground: Ground, turn: int
) -> int:
    """Look into so many partial plans, or all left; FOUND, FASTER, or what a table lacks."""
    number, chosen, worst, named = tree.number, tree.chosen, tree.worst, tree.named
    last = number[NODES] + turn
    while number[NODES] < last and number[DEPTH] >= 0:
        depth, lowest = number[DEPTH], 0
        for v in range(1, ground.counts[depth]):
            if worst[depth, v] < worst[depth, lowest]:
                lowest = v
        bound = worst[depth, lowest]
        if bound - ROUNDING > number[BEST] - 1:
            number[DEPTH] -= 1
            continue
        chosen[depth] = lowest
        status = _lay(now, tree, ground)
        if status != FOUND:
            return status
        number[NODES] += 1
        worst[depth, lowest] = np.inf
        if _hopeless(now, tree, ground):
            continue
        if depth < len(chosen) - 1:
            for f in range(named.shape[1]):
                used = PARTIAL - ground.layouts[depth, lowest, f]
                named[depth + 1, f] = max(named[depth, f], used)
            number[DEPTH] += 1
            opened(tree, ground)
            continue
        _, makespan = full.run(now.tasks, work, timeline)
        number[SIMULATED] += 1
        if makespan < number[BEST]:
            number[MAKESPAN] = makespan
            return FASTER
    return FOUND
