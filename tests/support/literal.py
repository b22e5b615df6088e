"""A slow, literal synthesizer: enumerates programs on explicit chunk matrices, device by device.

Written from P² sections 3.2 to 3.5 and Table 2; shares nothing with `meshwright.collectives` but
the names of the collectives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from meshwright.cost.collective import Collective

Groups = tuple[tuple[int, ...], ...]
Rows = tuple[int, ...]
"""For each chunk, the set of contributing devices as a bit mask."""

States = tuple[Rows, ...]
"""The rows of every device."""


def all_groups(sizes: Sequence[int], masters: bool = True) -> dict[Groups, bool]:
    """Every set of groups that a slice and a form make on a hierarchy; True for a Master's."""
    levels = [1, *sizes]
    devices = range(math.prod(sizes))
    result: dict[Groups, bool] = {}

    def under(device: int, level: int) -> int:
        """The instance of a level that a device lies in."""
        return device // math.prod(levels[level + 1 :])

    def put(groups: Iterator[tuple[int, ...]], master: bool) -> None:
        kept = tuple(sorted(group for group in groups if len(group) > 1))
        if kept:
            result.setdefault(kept, master)

    def gathered(key: Callable[[int], Hashable]) -> Iterator[tuple[int, ...]]:
        members_by_key: dict[Hashable, list[int]] = {}
        for device in devices:
            members_by_key.setdefault(key(device), []).append(device)
        return (tuple(group) for group in members_by_key.values())

    for slice_ in range(len(levels)):
        inside = math.prod(levels[slice_ + 1 :])

        def same_group(device: int, level: int = slice_) -> Hashable:
            return under(device, level)

        put(gathered(same_group), False)
        for above in range(slice_):

            def same_place(device: int, level: int = above, size: int = inside) -> Hashable:
                return under(device, level), device % size

            parallel = list(gathered(same_place))
            put(iter(parallel), False)
            if masters:
                put((g for g in parallel if g[0] % inside == 0), True)
    return result


def apply(
    states: tuple[Rows, ...], collective: Collective, groups: Groups
) -> tuple[Rows, ...] | None:
    """The rules of figure 8; groups in which nobody holds anything are rejected."""
    after = list(states)
    for group in groups:
        group_states = [states[device] for device in group]
        kept = [[i for i, row in enumerate(state) if row] for state in group_states]
        if not any(kept):
            return None
        if collective is Collective.BROADCAST:
            if any(
                a & ~b
                for state in group_states
                for a, b in zip(state, group_states[0], strict=True)
            ):
                return None
            if all(state == group_states[0] for state in group_states):
                return None
            outcome = [group_states[0]] * len(group)
        elif collective is Collective.ALL_GATHER:
            if len({len(rows) for rows in kept}) > 1:
                return None
            if any(set(a) & set(b) for a, b in itertools.combinations(kept, 2)):
                return None
            outcome = [tuple(map(sum, zip(*group_states, strict=True)))] * len(group)
        else:
            if any(rows != kept[0] for rows in kept):
                return None
            for a, b in itertools.combinations(group_states, 2):
                if any(x & y for x, y in zip(a, b, strict=True)):
                    return None
            total = tuple(map(sum, zip(*group_states, strict=True)))
            nothing = (0,) * len(total)
            if collective is Collective.ALL_REDUCE:
                outcome = [total] * len(group)
            elif collective is Collective.REDUCE:
                outcome = [total] + [nothing] * (len(group) - 1)
            else:
                if len(kept[0]) % len(group):
                    return None
                share = len(kept[0]) // len(group)
                outcome = []
                for position in range(len(group)):
                    mine = kept[0][position * share : (position + 1) * share]
                    outcome.append(tuple(r if i in mine else 0 for i, r in enumerate(total)))
        for device, state in zip(group, outcome, strict=True):
            after[device] = state
    return tuple(after)


Program = tuple[tuple[Collective, Groups], ...]


def programs(sizes: Sequence[int], limit: int, *, paper: bool = False) -> set[Program]:
    """Every program that reduces over all devices of the hierarchy, lowered to groups."""
    everybody = tuple(range(math.prod(sizes)))
    return search(all_groups(sizes), [everybody], limit, paper=paper)


def programs_of_matrix(
    matrix: Sequence[Sequence[int]], row: int, hierarchy: str, limit: int, *, masters: bool = True
) -> set[Program]:
    """Every program that reduces over one row of a matrix, for P²'s hierarchies (a) to (d)."""
    columns = list(zip(*matrix, strict=True))
    factors = [(j, i) for j in range(len(columns)) for i in range(len(matrix))]
    radices = [matrix[i][j] for j, i in factors]
    together: dict[tuple[int, ...], list[int]] = {}
    by_row: dict[tuple[int, ...], int] = {}
    for device, digits in enumerate(itertools.product(*map(range, radices))):
        digit = dict(zip(factors, digits, strict=True))
        rows = [tuple(digit[j, i] for j in range(len(columns))) for i in range(len(matrix))]
        by_row[tuple(itertools.chain(*rows))] = device
        together.setdefault(tuple(itertools.chain(*rows[:row], *rows[row + 1 :])), []).append(
            device
        )
    if hierarchy == "system":
        moves = all_groups([math.prod(column) for column in columns], masters)
    elif hierarchy == "column":
        moves = all_groups(radices, masters)
    elif hierarchy == "row":
        order = [by_row[key] for key in sorted(by_row)]
        rowwise = all_groups(list(itertools.chain(*matrix)), masters)
        moves = {_renamed(groups, [order]): m for groups, m in rowwise.items()}
    else:
        inside = all_groups(matrix[row], masters)
        moves = {_renamed(groups, together.values()): m for groups, m in inside.items()}
    return search(moves, list(together.values()), limit)


def _renamed(groups: Groups, orders: Iterable[Sequence[int]]) -> Groups:
    """The groups with numbers replaced, once for each list of device numbers."""
    return tuple(sorted(tuple(sorted(order[d] for d in g)) for order in orders for g in groups))


def search(
    moves: dict[Groups, bool],
    reduction_groups: Sequence[Sequence[int]],
    limit: int,
    *,
    paper: bool = False,
) -> set[Program]:
    """Every sequence of moves that ends with each device holding its reduction group's sum."""
    count = sum(map(len, reduction_groups))
    start = tuple((1 << d,) * count for d in range(count))
    wanted = {d: sum(1 << m for m in group) for group in reduction_groups for d in group}
    goal = tuple((wanted[d],) * count for d in range(count))
    every = [
        (collective, groups)
        for groups, master in moves.items()
        for collective in Collective
        if not (paper and master and collective is not Collective.ALL_REDUCE)
    ]
    steps: dict[States, list[tuple[tuple[Collective, Groups], States]]] = {}
    possible: dict[tuple[States, int], bool] = {}

    def after(state: States) -> list[tuple[tuple[Collective, Groups], States]]:
        if state not in steps:
            results = ((move, apply(state, *move)) for move in every)
            steps[state] = [(move, new) for move, new in results if new is not None]
        return steps[state]

    def reaches(state: States, left: int) -> bool:
        if state == goal:
            return True
        key = (state, left)
        if key not in possible:
            possible[key] = left > 0 and any(reaches(new, left - 1) for _, new in after(state))
        return possible[key]

    def walk(state: States, left: int) -> Iterator[Program]:
        if state == goal:
            yield ()
            return
        for move, new in after(state) if left else ():
            if reaches(new, left - 1):
                for rest in walk(new, left - 1):
                    yield (move, *rest)

    return set(walk(start, limit))
