"""Synthesis of reduction programs over unequal groups. Enters: an `IslandCluster`. Leaves: every
program in which no island takes part in more than `limit` steps, or how many there are.

Programs of one island are walks from its start to its goal over two kinds of moves, those of P²
inside it and crossings (`laws`). A walk's *signature* is its crossings with the copies that cross;
programs of the whole are tuples of walks with one signature. So

    programs  =  Σ over signatures of  ∏ over islands of  walks(island, signature)

(less those with a Broadcast that teaches nobody). Which walks there are depends on an island's
number of levels and, by `copies`, on their sizes; islands that are alike have the same.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.collectives.dsl import Program
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.islands.crossing_laws import CROSSINGS, Crossed, IslandLaws
from meshwright.collectives.islands.island_program import IslandCrossing, IslandProgram
from meshwright.collectives.laws import State, apply
from meshwright.collectives.synthesize import SIZE_LIMIT, CollectiveMove, MoveSpace
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement

SUM_AXIS = "data"

Move = CollectiveMove | IslandCrossing


class Signature(NamedTuple):
    """What islands must agree on."""

    crossings: tuple[IslandCrossing, ...]
    copies: tuple[int, ...]

    def then(self, crossing: IslandCrossing, copies: int) -> Signature:
        """The signature with one crossing more."""
        return Signature((*self.crossings, crossing), (*self.copies, copies))


NO_CROSSING = Signature((), ())

Learns = tuple[bool, ...]
"""For each crossing whether it is of use to an island."""


class IslandWalk(NamedTuple):
    """What one island does."""

    moves: tuple[Move, ...]
    learns: Learns

    def phases(self) -> Iterator[list[CollectiveMove]]:
        """The moves before, between and after crossings."""
        phase: list[CollectiveMove] = []
        for move in self.moves:
            if isinstance(move, IslandCrossing):
                yield phase
                phase = []
            else:
                phase.append(move)
        yield phase


def inner_hierarchy(cluster: Cluster) -> Hierarchy:
    """The synthesis hierarchy of an island all of whose devices sum up."""
    return hierarchy_of(cluster.level_names, cluster.hierarchy)


def hierarchy_of(names: Sequence[str], sizes: Sequence[int]) -> Hierarchy:
    """The same from the names and sizes of its levels."""
    placement = Placement((Axis(SUM_AXIS, math.prod(sizes)),), (tuple(sizes),))
    return Hierarchy(placement, names, [SUM_AXIS])


class IslandSpace:
    """The walks of one island."""

    def __init__(self, hierarchy: Hierarchy, *, root: bool, single: bool = False) -> None:
        """Enter besides: whether all islands have one device, so that all forms are the same."""
        self.space = MoveSpace(hierarchy)
        self.laws = IslandLaws(self.space.sizes, root=root)
        self.crossings = tuple(c for c in CROSSINGS if not single or c.form == "everybody")
        self._after: dict[State, tuple[tuple[Move, State, int, bool], ...]] = {}
        self._reaches: dict[tuple[State, int], bool] = {}

    def after(self, state: State) -> tuple[tuple[Move, State, int, bool], ...]:
        """Every move that the laws allow, the state after it, copies, and whether it is of use."""
        if state not in self._after:
            following: list[tuple[Move, State, int, bool]] = []
            for move in self.space.graph.moves:
                result = apply(state, *move)
                if result is not None:
                    following.append((move, result, 0, True))
            for crossing in self.crossings:
                crossed = self.laws.cross(state, crossing)
                if crossed is not None:
                    following.append((crossing, *crossed))
            self._after[state] = tuple(following)
        return self._after[state]

    def reaches(self, state: State, left: int) -> bool:
        """Whether the goal can be reached in so many moves."""
        if state == self.laws.goal:
            return True
        key = (state, left)
        if key not in self._reaches:
            self._reaches[key] = left > 0 and any(
                self.reaches(after, left - 1) for _, after, _, _ in self.after(state)
            )
        return self._reaches[key]

    def walks(self, limit: int) -> dict[Signature, list[IslandWalk]]:
        """Every walk of at most `limit` moves, by its signature.

        A walk that has reached the goal may still take part in a Broadcast that others need.
        """
        by_signature: dict[Signature, list[IslandWalk]] = defaultdict(list)

        def go(state: State, signature: Signature, walk: IslandWalk) -> None:
            if state == self.laws.goal:
                by_signature[signature].append(walk)
            left = limit - len(walk.moves)
            for move, after, copies, learns in self.after(state) if left else ():
                if self.reaches(after, left - 1):
                    moves = (*walk.moves, move)
                    if isinstance(move, IslandCrossing):
                        flags = (*walk.learns, learns)
                        go(after, signature.then(move, copies), IslandWalk(moves, flags))
                    else:
                        go(after, signature, IslandWalk(moves, walk.learns))

        go(self.laws.start, NO_CROSSING, IslandWalk((), ()))
        return dict(by_signature)

    def program(self, moves: Sequence[CollectiveMove]) -> Program:
        """What an island does in a phase, in words."""
        return self.space.program(moves)


Stage = tuple[tuple[tuple[State, Move], ...], ...]
"""For each island its moves, each with the state before it."""


class IslandTrace(NamedTuple):
    """A program by the laws."""

    stages: tuple[Stage, ...]
    """Phases and crossings in turn."""
    copies: tuple[int, ...]
    """On which islands agree at each crossing."""


class IslandMoveSpace:
    """The walks of all islands of a cluster."""

    def __init__(self, cluster: IslandCluster) -> None:
        self.cluster = cluster
        self.names = tuple(island.name for island in cluster.islands)
        single = cluster.devices == len(cluster)
        by_shape: dict[tuple[bool, tuple[tuple[str, int], ...]], IslandSpace] = {}
        spaces = []
        for number, island in enumerate(cluster.islands):
            names = tuple(zip(island.cluster.level_names, island.cluster.hierarchy, strict=True))
            key = (number == 0, names)
            if key not in by_shape:
                hierarchy = inner_hierarchy(island.cluster)
                by_shape[key] = IslandSpace(hierarchy, root=number == 0, single=single)
            spaces.append(by_shape[key])
        self.spaces = tuple(spaces)

    def program(self, signature: Signature, walks: Sequence[IslandWalk]) -> IslandProgram:
        """The program of one walk of each island."""
        phases = zip(*(walk.phases() for walk in walks), strict=True)
        return IslandProgram(
            self.names,
            tuple(
                tuple(space.program(moves) for space, moves in zip(self.spaces, phase, strict=True))
                for phase in phases
            ),
            signature.crossings,
        )

    def trace(self, program: IslandProgram) -> IslandTrace:
        """A program step by step by the laws; a sentence if they do not allow it."""
        if program.islands != self.names:
            raise InputError(
                f"the program is of islands {', '.join(program.islands)}",
                f"give one of {', '.join(self.names)}",
            )
        states = [space.laws.start for space in self.spaces]
        stages = [self._phase(program.phases[0], states)]
        agreed: list[int] = []
        for crossing, phase in zip(program.crossings, program.phases[1:], strict=True):
            before = tuple(states)
            outcomes = [self._moved(number, crossing, states) for number in range(len(states))]
            copies = {outcome.copies for outcome in outcomes}
            if len(copies) > 1:
                raise InputError(
                    f"{crossing} joins the holders of each piece, and islands have "
                    f"{' and '.join(map(str, sorted(copies)))} of them",
                    "let islands scatter until one device of each holds a piece",
                )
            if not any(outcome.learns for outcome in outcomes):
                raise InputError(f"{crossing} teaches nobody anything", "leave it out")
            agreed += copies
            stages += [
                tuple(((state, crossing),) for state in before),
                self._phase(phase, states),
            ]
        if any(state != space.laws.goal for state, space in zip(states, self.spaces, strict=True)):
            raise InputError(
                f"{str(program)!r} does not finish the reduction",
                "add the missing steps, or give a program that 'meshwright reduce' lists",
            )
        return IslandTrace(tuple(stages), tuple(agreed))

    def _phase(self, phase: Sequence[Program], states: list[State]) -> Stage:
        stage: list[tuple[tuple[State, Move], ...]] = []
        for number, program in enumerate(phase):
            steps: list[tuple[State, Move]] = []
            for instruction in program.instructions:
                move = self.spaces[number].space.move(instruction)
                steps.append((states[number], move))
                self._moved(number, move, states)
            stage.append(tuple(steps))
        return tuple(stage)

    def _moved(self, number: int, move: Move, states: list[State]) -> Crossed:
        space = self.spaces[number]
        for candidate, after, copies, learns in space.after(states[number]):
            if candidate == move:
                states[number] = after
                return Crossed(after, copies, learns)
        words = move if isinstance(move, IslandCrossing) else space.space.instruction(move)
        raise InputError(
            f"{words} of island {self.names[number]!r} crosses with what is not the island's whole "
            "sum, mixes different chunks, adds a contribution twice, or brings nothing new",
            "give a program that 'meshwright reduce' lists",
        )

    def walks(self, limit: int) -> Iterator[tuple[Signature, list[list[IslandWalk]]]]:
        """For each signature that all islands have, the walks of each."""
        known = {space: space.walks(limit) for space in dict.fromkeys(self.spaces)}
        for signature in shared(known.values()):
            yield signature, [known[space][signature] for space in self.spaces]


def shared(known: Iterable[Mapping[Signature, object]]) -> list[Signature]:
    """The signatures that all islands have, shorter ones first."""
    common = reduce(lambda a, b: a & b, (set(signatures) for signatures in known))
    return sorted(
        common,
        key=lambda signature: (
            len(signature.crossings),
            *map(str, signature.crossings),
            signature.copies,
        ),
    )


def synthesize_islands(
    cluster: IslandCluster, *, limit: int = SIZE_LIMIT
) -> Iterator[IslandProgram]:
    """All programs in which no island takes part in more than `limit` steps.

    They may be very many: as many as products of walks of islands; `count_island_programs` says.
    """
    space = IslandMoveSpace(cluster)
    for signature, walks in space.walks(limit):
        for chosen in product(*walks):
            if are_crossings_useful(tuple(walk.learns for walk in chosen)):
                yield space.program(signature, chosen)


def are_crossings_useful(learns: Sequence[Learns]) -> bool:
    """Whether every crossing is of use to some island."""
    return all(any(flags) for flags in zip(*learns, strict=True))


def count_island_programs(cluster: IslandCluster, *, limit: int = SIZE_LIMIT) -> int:
    """How many programs `synthesize_islands` gives, without listing them."""
    total = 0
    for _, walks in IslandMoveSpace(cluster).walks(limit):
        counts: Counter[Learns] = Counter({(): 1})
        first = True
        for island_walks in walks:
            mine = Counter(walk.learns for walk in island_walks)
            if first:
                counts, first = mine, False
                continue
            joined: Counter[Learns] = Counter()
            for (a, left), (b, right) in product(counts.items(), mine.items()):
                joined[tuple(x or y for x, y in zip(a, b, strict=True))] += left * right
            counts = joined
        total += sum(count for learns, count in counts.items() if all(learns))
    return total
