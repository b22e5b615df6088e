"""A slow, literal synthesizer: enumerates programs on explicit chunk matrices, device by device.

Written from P² sections 3.2 to 3.5 and Table 2; shares nothing with `meshwright.reduce` but the
names of the collectives.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from meshwright.price.collective import Collective

Groups = tuple[tuple[int, ...], ...]
Rows = tuple[int, ...]
"""For each chunk, the set of contributing devices as a bit mask."""


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

    def gathered(key: object) -> Iterator[tuple[int, ...]]:
        found: dict[object, list[int]] = {}
        for device in devices:
            found.setdefault(key(device), []).append(device)  # type: ignore[operator]
        return (tuple(group) for group in found.values())

    for slice_ in range(len(levels)):
        put(gathered(lambda d, s=slice_: under(d, s)), False)
        inside = math.prod(levels[slice_ + 1 :])
        for above in range(slice_):
            parallel = list(gathered(lambda d, a=above, n=inside: (under(d, a), d % n)))
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
        own = [states[device] for device in group]
        kept = [[i for i, row in enumerate(state) if row] for state in own]
        if not any(kept):
            return None
        if collective is Collective.BROADCAST:
            if any(a & ~b for state in own for a, b in zip(state, own[0], strict=True)):
                return None
            if all(state == own[0] for state in own):
                return None
            outcome = [own[0]] * len(group)
        elif collective is Collective.ALL_GATHER:
            if len({len(rows) for rows in kept}) > 1:
                return None
            if any(set(a) & set(b) for a, b in itertools.combinations(kept, 2)):
                return None
            outcome = [tuple(map(sum, zip(*own, strict=True)))] * len(group)
        else:
            if any(rows != kept[0] for rows in kept):
                return None
            for a, b in itertools.combinations(own, 2):
                if any(x & y for x, y in zip(a, b, strict=True)):
                    return None
            total = tuple(map(sum, zip(*own, strict=True)))
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


def programs(
    sizes: Sequence[int], limit: int, *, paper: bool = False, masters: bool = True
) -> set[tuple[tuple[Collective, Groups], ...]]:
    """Every program that reduces over all devices of the hierarchy, lowered to groups."""
    count = math.prod(sizes)
    start = tuple((1 << d,) * count for d in range(count))
    goal = ((((1 << count) - 1),) * count,) * count
    moves = [
        (collective, groups)
        for groups, master in all_groups(sizes, masters).items()
        for collective in Collective
        if not (paper and master and collective is not Collective.ALL_REDUCE)
    ]
    steps: dict[tuple[Rows, ...], list[tuple[tuple[Collective, Groups], tuple[Rows, ...]]]] = {}
    possible: dict[tuple[tuple[Rows, ...], int], bool] = {}

    def after(state: tuple[Rows, ...]) -> list[tuple[tuple[Collective, Groups], tuple[Rows, ...]]]:
        if state not in steps:
            results = ((move, apply(state, *move)) for move in moves)
            steps[state] = [(move, new) for move, new in results if new is not None]
        return steps[state]

    def reaches(state: tuple[Rows, ...], left: int) -> bool:
        if state == goal:
            return True
        key = (state, left)
        if key not in possible:
            possible[key] = left > 0 and any(reaches(new, left - 1) for _, new in after(state))
        return possible[key]

    def walk(state: tuple[Rows, ...], left: int) -> Iterator[tuple[tuple[Collective, Groups], ...]]:
        if state == goal:
            yield ()
            return
        for move, new in after(state) if left else ():
            if reaches(new, left - 1):
                for rest in walk(new, left - 1):
                    yield (move, *rest)

    return set(walk(start, limit))
