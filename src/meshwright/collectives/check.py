"""First judge of reduction programs: replay on P²'s Boolean chunk states, by the printed rules.

Enters: steps as device groups, and the groups of devices that are to reduce together. Leaves:
None if every device ends with each contribution exactly once, or a sentence about the first step
that breaks a rule. Written from section 3.2 and figure 8 of the paper; it knows nothing of
hierarchies, instructions or the synthesizer.

A device's state is a k x k Boolean matrix, k devices to a reduction group: row i is chunk i, and
entry (i, j) says that the j-th device's chunk i is in what this device holds. It is kept as one
integer whose bits are the matrix row by row.

Where groups differ in size, chunks do: there are as many rows as `weights`, chunk i is so many
times as large as the unit, and "evenly" and "as much" are said of weights. A group may then act on
some of the chunks only, and a device be in several groups that act on different ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.cost.collective import Collective

Step = (
    tuple[Collective, Sequence[Sequence[int]]]
    | tuple[Collective, Sequence[Sequence[int]], Sequence[Sequence[int] | None]]
)
"""A collective over groups; and on which chunks each group acts, if not on all."""


def check(
    steps: Sequence[Step],
    reduction_groups: Sequence[Sequence[int]],
    weights: Sequence[int] | None = None,
) -> str | None:
    """What is wrong with a program, or None.

    >>> pair = [(0, 1)]
    >>> check([(Collective.ALL_REDUCE, pair)], pair) is None
    True
    >>> check([(Collective.REDUCE_SCATTER, pair), (Collective.ALL_REDUCE, pair)], pair)
    'step 2, AllReduce over [0, 1]: the members hold different chunks'
    """
    size = len(reduction_groups[0])
    chunks = Chunks(size, weights)
    states = {
        device: chunks.start(j) for group in reduction_groups for j, device in enumerate(group)
    }
    whole = {device: number for number, group in enumerate(reduction_groups) for device in group}
    for number, (collective, groups, *rest) in enumerate(steps, start=1):
        acted = rest[0] if rest else [None] * len(groups)
        busy = [
            (device, chunk)
            for group, selection in zip(groups, acted, strict=True)
            for chunk in (range(chunks.rows) if selection is None else selection)
            for device in group
        ]
        if len(set(busy)) < len(busy):
            return f"step {number}, {collective.value}: the groups overlap"
        for group, selection in zip(groups, acted, strict=True):
            place = f"step {number}, {collective.value} over {list(group)}"
            if len({whole.get(device) for device in group}) > 1:
                return f"{place}: the members do not all reduce together"
            problem = chunks.apply(collective, group, states, selection)
            if problem:
                return f"{place}: {problem}"
    for device, state in states.items():
        if state != chunks.goal:
            return f"at the end device {device} does not hold every contribution of every chunk"
    return None


class Chunks:
    """The rules of the five collectives on matrices of so many devices and chunks."""

    def __init__(self, size: int, weights: Sequence[int] | None = None) -> None:
        self._size = size
        self._weights = [1] * size if weights is None else weights
        self._row = (1 << size) - 1
        self.rows = len(self._weights)
        self._column = sum(1 << (i * size) for i in range(self.rows))
        self.goal = (1 << (size * self.rows)) - 1

    def start(self, j: int) -> int:
        """Device j has its own contribution to every chunk."""
        return self._column << j

    def held(self, state: int) -> list[int]:
        """The chunks of which a state holds anything."""
        return [i for i in range(self.rows) if state >> (i * self._size) & self._row]

    def apply(
        self,
        collective: Collective,
        group: Sequence[int],
        states: dict[int, int],
        chunks: Sequence[int] | None = None,
    ) -> str | None:
        """Change the members' states as the rule says, or say which pre-condition fails."""
        if chunks is None:
            return self._apply(collective, group, states)
        mask = self._mask(chunks)
        some = {device: states[device] & mask for device in group}
        problem = self._apply(collective, group, some)
        if problem is None:
            states.update(
                {device: states[device] & ~mask | state for device, state in some.items()}
            )
        return problem

    def _mask(self, chunks: Iterable[int]) -> int:
        return sum(self._row << (i * self._size) for i in chunks)

    def _weight(self, chunks: Iterable[int]) -> int:
        return sum(self._weights[i] for i in chunks)

    def _cut(self, chunks: Sequence[int], parts: int) -> list[list[int]] | None:
        """The chunks in so many runs of equal weight."""
        share, rest = divmod(self._weight(chunks), parts)
        runs, reached = [list[int]() for _ in range(parts)], 0
        for chunk in chunks:
            first, last = reached // share if share else 0, reached + self._weights[chunk]
            if rest or last > (first + 1) * share:
                return None
            runs[first].append(chunk)
            reached = last
        return runs

    def _apply(
        self, collective: Collective, group: Sequence[int], states: dict[int, int]
    ) -> str | None:
        before = [states[device] for device in group]
        if not any(before):
            return "no member holds anything"
        rows = [self.held(state) for state in before]
        union = 0
        if collective is Collective.BROADCAST:
            if any(state & ~before[0] for state in before):
                return "a member holds something that the root does not"
            if all(state == before[0] for state in before):
                return "no member learns anything"
            states.update(dict.fromkeys(group, before[0]))
            return None
        if collective is Collective.ALL_GATHER:
            if len({self._weight(row) for row in rows}) > 1:
                return "the members hold different numbers of chunks"
            if len({i for row in rows for i in row}) < sum(map(len, rows)):
                return "two members hold the same chunk"
            for state in before:
                union |= state
            states.update(dict.fromkeys(group, union))
            return None
        if any(row != rows[0] for row in rows):
            return "the members hold different chunks"
        for state in before:
            if union & state:
                return "a contribution is added twice"
            union |= state
        if collective is Collective.ALL_REDUCE:
            states.update(dict.fromkeys(group, union))
        elif collective is Collective.REDUCE:
            states.update(dict.fromkeys(group, 0))
            states[group[0]] = union
        else:
            parts = self._cut(rows[0], len(group))
            if parts is None:
                return "the chunks cannot be scattered evenly"
            for device, part in zip(group, parts, strict=True):
                states[device] = union & self._mask(part)
        return None
