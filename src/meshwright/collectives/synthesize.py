"""Synthesis of P²'s reduction programs (Xie et al. 2022) by enumeration of paths. Enters: a
hierarchy and a size limit. Leaves: every reduction program that the laws accept, in increasing
size, in a fixed order; or only how many there are.

Which programs exist depends on the number of levels, never on their sizes. Programs are paths
from the start state to the goal; `ProgramGraph` remembers what follows each state, and for each
number of steps left how many paths there are, so that only states that lead to the goal are walked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from meshwright.base.errors import InputError, nearest
from meshwright.collectives.dsl import Form, Master, Program, ReductionInstruction
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.laws import CollectiveGroups, State, apply, goal, start
from meshwright.collectives.outlook import SynthesisOutlook
from meshwright.cost.collective import Collective
from meshwright.cost.pattern import Pattern

SIZE_LIMIT = 5
"""P²'s limit on the number of steps."""

Rules = Literal["literal", "paper"]
"""The printed rules, or the restriction of Master to AllReduce that gives the paper's counts."""

RULES: tuple[Rules, ...] = get_args(Rules)


class CollectiveMove(NamedTuple):
    """A collective over groups: an instruction without its words."""

    collective: Collective
    groups: CollectiveGroups


class MoveSpace:
    """The moves of a hierarchy: which instruction and which groups each one stands for."""

    def __init__(self, hierarchy: Hierarchy, rules: Rules = "literal") -> None:
        if rules not in RULES:
            raise InputError(f"the rules are {rules!r}", nearest(rules, RULES))
        self.hierarchy = hierarchy
        units = [i for i, v in enumerate(hierarchy.levels) if v.reduced and v.size > 1]
        self.sizes = tuple(hierarchy.levels[i].size for i in units)
        self.complete = math.prod(self.sizes) == hierarchy.group_size
        """Whether the levels can tell apart all devices that reduce together."""
        self._bit = {level: 1 << u for u, level in enumerate(units)}
        self._words: dict[CollectiveGroups, tuple[str, Form]] = {}
        self._instructions: dict[CollectiveMove, ReductionInstruction] = {}
        for slice_, form, varied, first in hierarchy.instructions():
            groups = CollectiveGroups(self._mask(varied), self._mask(first))
            self._words.setdefault(groups, (slice_, form))
        moves = tuple(
            CollectiveMove(collective, groups)
            for groups, (_, form) in self._words.items()
            for collective in Collective
            if rules == "literal"
            or collective is Collective.ALL_REDUCE
            or not isinstance(form, Master)
        )
        self.graph = _graph(len(units), moves)

    def walks(self, limit: int) -> Iterator[tuple[CollectiveMove, ...]]:
        """The moves of every program of at most `limit` steps, in increasing size."""
        for size in self._program_sizes(limit):
            yield from self.graph.walks(self.graph.start, size)

    def count(self, limit: int) -> int:
        """How many programs of at most `limit` steps there are."""
        graph = self.graph
        return sum(graph.count(graph.start, size) for size in self._program_sizes(limit))

    def _program_sizes(self, limit: int) -> range:
        return range(limit + 1 if self.complete else 0)

    def program(self, moves: Sequence[CollectiveMove]) -> Program:
        """The program that the moves stand for."""
        return Program(tuple(map(self.instruction, moves)))

    def instruction(self, move: CollectiveMove) -> ReductionInstruction:
        """The instruction that a move stands for."""
        if move not in self._instructions:
            words = self._words[move.groups]
            self._instructions[move] = ReductionInstruction(*words, move.collective)
        return self._instructions[move]

    def move(self, instruction: ReductionInstruction) -> CollectiveMove:
        """The move that an instruction stands for."""
        varied, first = self.hierarchy.span(instruction.slice, instruction.form)
        if not self.hierarchy.allows(varied, first):
            raise InputError(
                f"{instruction} runs over devices that do not reduce together, or over one",
                "give a program that 'meshwright reduce' lists",
            )
        return CollectiveMove(
            instruction.collective, CollectiveGroups(self._mask(varied), self._mask(first))
        )

    def pattern(self, groups: CollectiveGroups) -> Pattern:
        """How the groups lie on the machine."""
        varied, first = (
            [
                f
                for i, bit in self._bit.items()
                if mask & bit
                for f in self.hierarchy.levels[i].factors
            ]
            for mask in groups
        )
        return self.hierarchy.pattern(varied, first)

    def _mask(self, levels: range) -> int:
        return sum(self._bit.get(i, 0) for i in levels)


def synthesize(
    hierarchy: Hierarchy, *, limit: int = SIZE_LIMIT, rules: Rules = "literal"
) -> Iterator[Program]:
    """All programs of at most `limit` steps that reduce over the hierarchy, in increasing size.

    >>> from meshwright import Cluster, placements, reduction_hierarchy, synthesize
    >>> cluster = Cluster.named("gcp-a100", node=4)
    >>> first = next(placements(cluster, {"data": 4, "tensor": 16}))
    >>> for program in synthesize(reduction_hierarchy(cluster, first, ["data"])):
    ...     print(program)
    root.InsideGroup.AllReduce
    root.InsideGroup.ReduceScatter; root.InsideGroup.AllGather
    root.InsideGroup.Reduce; root.InsideGroup.Broadcast
    """
    space = MoveSpace(hierarchy, rules)
    return map(space.program, space.walks(limit))


def count_programs(
    hierarchy: Hierarchy, *, limit: int = SIZE_LIMIT, rules: Rules = "literal"
) -> int:
    """How many programs `synthesize` gives, without listing them."""
    return MoveSpace(hierarchy, rules).count(limit)


class ProgramGraph:
    """States and what the moves make of them, computed where somebody looks."""

    def __init__(self, levels: int, moves: tuple[CollectiveMove, ...]) -> None:
        self.moves, self._levels = moves, levels
        self.start, self.goal = start(levels), goal(levels)
        self._after: dict[State, tuple[tuple[CollectiveMove, State], ...]] = {}
        self._counts: dict[tuple[State, int], int] = {}
        self._outlooks: dict[int, SynthesisOutlook] = {}

    def outlook(self, limit: int) -> SynthesisOutlook:
        """The lower bounds' graph for programs of at most `limit` moves."""
        if limit not in self._outlooks:
            self._outlooks[limit] = SynthesisOutlook(self._levels, self.moves, limit)
        return self._outlooks[limit]

    def after(self, state: State) -> tuple[tuple[CollectiveMove, State], ...]:
        """Every move that the laws allow, with the state it leads to."""
        if state not in self._after:
            steps = ((move, apply(state, *move)) for move in self.moves)
            self._after[state] = tuple((move, result) for move, result in steps if result)
        return self._after[state]

    def count(self, state: State, steps: int) -> int:
        """How many walks of exactly so many moves reach the goal, and not before."""
        if state == self.goal or steps == 0:
            return int(state == self.goal and steps == 0)
        key = (state, steps)
        if key not in self._counts:
            self._counts[key] = sum(self.count(after, steps - 1) for _, after in self.after(state))
        return self._counts[key]

    def walks(self, state: State, steps: int) -> Iterator[tuple[CollectiveMove, ...]]:
        """The walks that `count` counts, in the order of the moves."""
        if state == self.goal and steps == 0:
            yield ()
        elif state != self.goal and steps > 0:
            for move, after in self.after(state):
                if self.count(after, steps - 1):
                    for rest in self.walks(after, steps - 1):
                        yield (move, *rest)


@lru_cache(maxsize=16)
def _graph(levels: int, moves: tuple[CollectiveMove, ...]) -> ProgramGraph:
    return ProgramGraph(levels, moves)
