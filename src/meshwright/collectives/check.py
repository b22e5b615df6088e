"""The first judge: replays a lowered program on chunk states, by the rules as P² prints them.

Enters: steps as device groups, and the groups of devices that are to reduce together. Leaves:
None if every device ends with each contribution exactly once, or a sentence about the first step
that breaks a rule. Written from section 3.2 and figure 8 of the paper; it knows nothing of
hierarchies, instructions or the synthesizer.

A device's state is a k x k Boolean matrix, k devices to a reduction group: row i is chunk i, and
entry (i, j) says that the j-th device's chunk i is in what this device holds. It is kept as one
integer whose bits are the matrix row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.cost.collective import Collective

Step = tuple[Collective, Sequence[Sequence[int]]]


def check(steps: Sequence[Step], reduction_groups: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with a program, or None.

    >>> pair = [(0, 1)]
    >>> check([(Collective.ALL_REDUCE, pair)], pair) is None
    True
    >>> check([(Collective.REDUCE_SCATTER, pair), (Collective.ALL_REDUCE, pair)], pair)
    'step 2, AllReduce over [0, 1]: the members hold different chunks'
    """
    size = len(reduction_groups[0])
    chunks = Chunks(size)
    states = {
        device: chunks.start(j) for group in reduction_groups for j, device in enumerate(group)
    }
    whole = {device: number for number, group in enumerate(reduction_groups) for device in group}
    for number, (collective, groups) in enumerate(steps, start=1):
        members = [device for group in groups for device in group]
        if len(set(members)) < len(members):
            return f"step {number}, {collective.value}: the groups overlap"
        for group in groups:
            place = f"step {number}, {collective.value} over {list(group)}"
            if len({whole.get(device) for device in group}) > 1:
                return f"{place}: the members do not all reduce together"
            problem = chunks.apply(collective, group, states)
            if problem:
                return f"{place}: {problem}"
    for device, state in states.items():
        if state != chunks.goal:
            return f"at the end device {device} does not hold every contribution of every chunk"
    return None


class Chunks:
    """The rules of the five collectives on k x k matrices."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._row = (1 << size) - 1
        self._column = sum(1 << (i * size) for i in range(size))
        self.goal = (1 << (size * size)) - 1

    def start(self, j: int) -> int:
        """Device j has its own contribution to every chunk."""
        return self._column << j

    def rows(self, state: int) -> list[int]:
        """The chunks of which a state holds anything."""
        return [i for i in range(self._size) if state >> (i * self._size) & self._row]

    def apply(
        self, collective: Collective, group: Sequence[int], states: dict[int, int]
    ) -> str | None:
        """Change the members' states as the rule says, or say which pre-condition fails."""
        before = [states[device] for device in group]
        if not any(before):
            return "no member holds anything"
        rows = [self.rows(state) for state in before]
        union = 0
        if collective is Collective.BROADCAST:
            if any(state & ~before[0] for state in before):
                return "a member holds something that the root does not"
            if all(state == before[0] for state in before):
                return "no member learns anything"
            states.update(dict.fromkeys(group, before[0]))
            return None
        if collective is Collective.ALL_GATHER:
            if len({len(own) for own in rows}) > 1:
                return "the members hold different numbers of chunks"
            if len({i for own in rows for i in own}) < sum(map(len, rows)):
                return "two members hold the same chunk"
            for state in before:
                union |= state
            states.update(dict.fromkeys(group, union))
            return None
        if any(own != rows[0] for own in rows):
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
            if len(rows[0]) % len(group):
                return "the chunks cannot be scattered evenly"
            share = len(rows[0]) // len(group)
            for position, device in enumerate(group):
                own = rows[0][position * share : (position + 1) * share]
                states[device] = sum(union & self._row << (i * self._size) for i in own)
        return None
