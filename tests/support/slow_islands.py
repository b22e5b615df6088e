"""A slow, literal synthesizer over islands: chunk matrices, device by device, equal chunks.

Written from P²'s rules (`literal.apply`) and the words of `collectives.islands.program`; it shares
nothing with `meshwright.collectives`. The payload is cut into lcm(sizes of islands, all devices)
blocks of as many chunks as there are islands, all equally large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from meshwright.cost.collective import Collective
from support import literal

Groups = literal.Groups
Rows = literal.Rows
States = tuple[Rows, ...]
Step = tuple[str, Collective, Groups]
"""Where ("0", "1", ... for an island, or the form of a crossing), what, and inner groups."""

Program = tuple[Step, ...]


class SlowIslands:
    """Islands by the sizes of their levels."""

    def __init__(self, islands: Sequence[Sequence[int]]) -> None:
        counts = [math.prod(sizes) for sizes in islands]
        self.k, self.devices = len(islands), sum(counts)
        self.blocks = math.lcm(self.devices, *counts)
        ends = list(itertools.accumulate(counts, initial=0))
        self.members = [tuple(range(a, b)) for a, b in itertools.pairwise(ends)]
        self.own = [
            sum(1 << d for d in members) for members in self.members for _ in members
        ]  # of each device, the mask of its island
        self.inner: list[Step] = []
        for number, (sizes, first) in enumerate(zip(islands, ends, strict=False)):
            for groups in literal.all_groups(sizes):
                moved = tuple(tuple(d + first for d in group) for group in groups)
                self.inner += [(str(number), collective, moved) for collective in Collective]
        forms = ["everybody"] if self.k == self.devices else ["everybody", "across", "leaders"]
        self.crossings: list[Step] = [
            (form, collective, ())
            for form in forms
            for collective in Collective
            if (form, collective) != ("across", Collective.BROADCAST)
        ]
        chunks = self.blocks * self.k
        self.start = tuple((1 << d,) * chunks for d in range(self.devices))
        self.goal = ((1 << self.devices) - 1,) * chunks

    def after(self, states: States, step: Step) -> States | None:
        form, collective, groups = step
        match form:
            case "everybody":
                return literal.apply(states, collective, (tuple(range(self.devices)),))
            case "across":
                return self.across(states, collective, range(self.devices))
            case "leaders":
                leaders = tuple(members[0] for members in self.members)
                if collective is Collective.BROADCAST:
                    if not all(states[0]):
                        return None
                    return literal.apply(states, collective, (leaders,))
                return self.across(states, collective, leaders)
            case _:
                return literal.apply(states, collective, groups)

    def across(self, states: States, collective: Collective, part: Sequence[int]) -> States | None:
        """Block by block the first, second, ... holders in all islands, if they hold whole sums."""
        for device in part:
            mask = self.own[device]
            if not any(states[device]) or any(row and mask & ~row for row in states[device]):
                return None
        for members in self.members:
            if len({sum(map(bool, states[d])) for d in members if d in part}) > 1:
                return None
        after = [list(rows) for rows in states]
        for block in range(self.blocks):
            places = range(block * self.k, (block + 1) * self.k)
            holders = [
                [d for d in members if d in part and any(states[d][i] for i in places)]
                for members in self.members
            ]
            if len({len(devices) for devices in holders}) > 1 or not holders[0]:
                return None
            for group in zip(*holders, strict=True):
                cut = tuple(tuple(states[d][i] for i in places) for d in group)
                states_after = literal.apply(cut, collective, (tuple(range(self.k)),))
                if states_after is None:
                    return None
                for d, rows in zip(group, states_after, strict=True):
                    after[d][places.start : places.stop] = rows
        return tuple(map(tuple, after))

    def programs(self, limit: int) -> set[Program]:
        """Every program in which no island takes part in more than `limit` steps.

        Between crossings islands are written one after the other, in their order.
        """
        goals = (self.goal,) * self.devices
        known: dict[tuple[States, Step], States | None] = {}
        possible: dict[tuple[States, tuple[int, ...], int], bool] = {}

        def moves(
            state: States, left: tuple[int, ...], first: int
        ) -> Iterator[tuple[Step, tuple[States, tuple[int, ...], int]]]:
            for step in (*self.inner, *self.crossings):
                crossing = not step[0].isdigit()
                number = 0 if crossing else int(step[0])
                if number < first and not crossing:
                    continue
                if min(left) == 0 if crossing else left[number] == 0:
                    continue
                if (state, step) not in known:
                    known[state, step] = self.after(state, step)
                new = known[state, step]
                if new is not None:
                    less = tuple(n - (crossing or i == number) for i, n in enumerate(left))
                    yield step, (new, less, number)

        def reaches(state: States, left: tuple[int, ...], first: int) -> bool:
            if state == goals:
                return True
            key = (state, left, first)
            if key not in possible:
                possible[key] = any(reaches(*rest) for _, rest in moves(state, left, first))
            return possible[key]

        def walk(state: States, left: tuple[int, ...], first: int) -> Iterator[Program]:
            if state == goals:
                yield ()
                return
            for step, rest in moves(state, left, first):
                if reaches(*rest):
                    for more in walk(*rest):
                        yield (step, *more)

        return set(walk(self.start, (limit,) * self.k, 0))
