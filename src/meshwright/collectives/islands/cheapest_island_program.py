"""Predicted time of programs over unequal groups; the cheapest by Pareto shortest paths.

    T = Σ over phases of max over islands of (Σ of the island's steps)
      + Σ over crossings of max over islands of (the crossing as if all islands were like it)

A step inside an island is priced on the island's own cluster, a crossing of unlike members on the
regular cluster of islands that are all like one of them (`IslandCluster.like`), for each in turn;
so no price is new. Before a step a device holds payload / ∏ of what its data is scattered over.

The cheapest program of a signature (`synthesize`): a walk of one island costs a vector, its phases
and crossings in turn; T is the sum over the componentwise maximum of the islands' vectors, and so
grows with each of them. Of walks to one state with one signature only those are kept that no other
is at most equal to in every component, in no more steps (Pareto; Martins 1984); then islands are
joined one after the other, and again only such vectors are kept. Islands that are alike do alike.

Cost: states x moves of one island for each kind of island, whatever their sizes; k joins of small
fronts. `tests` hold it against the least of all programs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, TypeVar

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.collectives.dsl import ReductionInstruction
from meshwright.collectives.islands.island_program import IslandCrossing, IslandProgram
from meshwright.collectives.islands.island_synthesis import (
    NO_CROSSING,
    IslandMoveSpace,
    IslandSpace,
    IslandWalk,
    Learns,
    Move,
    Signature,
    shared,
)
from meshwright.collectives.laws import State, scattered
from meshwright.collectives.synthesize import SIZE_LIMIT
from meshwright.cost.alpha_beta import CostLine, Pricer, cheapest_line
from meshwright.cost.collective import Collective, Operation
from meshwright.cost.pattern import Digit, Pattern, PatternUse

Pricers = Callable[[Cluster], Pricer]

Vector = tuple[float, ...]
"""Seconds of phases and crossings in turn."""


class IslandStepPrice(NamedTuple):
    """One step of a program on one island, predicted."""

    island: str
    instruction: ReductionInstruction | IslandCrossing
    held: float
    """Bytes on each member before it."""
    line: CostLine
    """The price, as a function of the bytes held."""

    @property
    def seconds(self) -> Seconds:
        """How long it takes."""
        return self.line.at(self.held)

    @property
    def link(self) -> str:
        """The link that sets the pace."""
        return self.line.link


class PricedIslandProgram(NamedTuple):
    """A program over unequal groups with its predicted time."""

    program: IslandProgram
    stages: tuple[tuple[tuple[IslandStepPrice, ...], ...], ...]
    """Phases and crossings in turn: for each island its steps."""

    @property
    def seconds(self) -> Seconds:
        """What it takes."""
        return Seconds(sum(max(map(_seconds, stage)) for stage in self.stages))


def _seconds(steps: Sequence[IslandStepPrice]) -> float:
    return sum(step.seconds for step in steps)


def crossing_line(pricer: Pricer, operation: Operation, inner: PatternUse, held: float) -> CostLine:
    """The price of a collective between islands, on a cluster of islands that are all alike.

    `inner` is what the devices of an island do: all cross side by side (EVERY), the first alone
    (FIRST), or all of all islands as one group (MEMBER).
    """
    outer, *levels = pricer.cluster.levels
    pattern: Pattern = (
        (Digit(outer.cardinality, PatternUse.MEMBER),),
        *((Digit(level.cardinality, inner),) for level in levels),
    )
    plain = tuple(tuple(digit for digit in digits if digit.radix > 1) for digits in pattern)
    return cheapest_line(pricer.lines(operation, plain), held)


INNER_USES = {
    "across": PatternUse.EVERY,
    "leaders": PatternUse.FIRST,
    "everybody": PatternUse.MEMBER,
}


class IslandPrices:
    """Prices of moves of one island, one of so many, for one payload."""

    def __init__(
        self,
        space: IslandSpace,
        island: Island,
        cluster: IslandCluster,
        pricers: Pricers,
        payload: float,
    ) -> None:
        if not 0 < payload < math.inf:
            raise InputError(f"a payload of {payload} bytes", "give a number above 0")
        self._space, self._name = space, island.name
        self._inner = pricers(island.cluster)
        self._count = len(cluster)
        self._across = pricers(cluster.like(island, self._count))
        self._mixed = pricers(cluster.like(island, self._count, mixed=True))
        self._payload = payload
        self._known: dict[tuple[Move, float], IslandStepPrice] = {}

    def step(self, state: State, move: Move) -> IslandStepPrice:
        """A move that the laws allow, priced."""
        held = self._held(state, move)
        if (move, held) not in self._known:
            self._known[move, held] = self._priced(move, held)
        return self._known[move, held]

    def _held(self, state: State, move: Move) -> float:
        if isinstance(move, IslandCrossing):
            # A Broadcast between islands brings all there is to who holds nothing, or a part.
            held = None if move.collective is Collective.BROADCAST else state[0]
            opened = {0 if held is None else held.open}
        else:
            opened = scattered(state, move.groups)
        return self._payload / min(self._space.laws.parts(mask, self._count) for mask in opened)

    def _priced(self, move: Move, held: float) -> IslandStepPrice:
        if isinstance(move, IslandCrossing):
            use = INNER_USES[move.form]
            pricer = self._mixed if move.form == "everybody" else self._across
            line = crossing_line(pricer, move.collective, use, held)
            return IslandStepPrice(self._name, move, held, line)
        pattern = self._space.space.pattern(move.groups)
        lines = self._inner.lines(move.collective, pattern)
        instruction = self._space.space.instruction(move)
        return IslandStepPrice(self._name, instruction, held, cheapest_line(lines, held))


class _Label(NamedTuple):
    """A walk with what it costs; the last component is that of the phase it is in."""

    vector: Vector
    walk: IslandWalk


_Front = list[_Label]


class _Place(NamedTuple):
    """What walks must have in common for one to stand for another."""

    state: State
    signature: Signature
    learns: Learns


class _Joined(NamedTuple):
    """Walks of the first islands, and the maximum of what they cost."""

    vector: Vector
    walks: tuple[IslandWalk, ...]


_L = TypeVar("_L", _Label, _Joined)


class IslandPredictor:
    """Prices programs over one cluster, for one payload."""

    def __init__(
        self,
        cluster: IslandCluster,
        pricers: Pricers,
        payload: float,
        *,
        limit: int = SIZE_LIMIT,
    ) -> None:
        self._space, self._limit = IslandMoveSpace(cluster), limit
        self._prices = [
            IslandPrices(space, island, cluster, pricers, payload)
            for space, island in zip(self._space.spaces, cluster.islands, strict=True)
        ]
        self._kinds: list[int] = []
        for number, island in enumerate(cluster.islands):
            alike = (
                first
                for first in range(1, number)
                if cluster.islands[first].cluster == island.cluster
            )
            self._kinds.append(next(alike, number))

    def predict(self, program: IslandProgram) -> PricedIslandProgram:
        """The predicted time of a program, step by step."""
        return PricedIslandProgram(
            program,
            tuple(
                tuple(
                    tuple(prices.step(state, move) for state, move in steps)
                    for prices, steps in zip(self._prices, stage, strict=True)
                )
                for stage in self._space.trace(program).stages
            ),
        )

    def cheapest(self) -> PricedIslandProgram:
        """The program of least predicted time in which no island takes more than `limit` steps."""
        return min(self.cheapest_of_each(), key=lambda priced: priced.seconds)

    def cheapest_of_each(self) -> list[PricedIslandProgram]:
        """For each way to cross, the cheapest program that crosses so; the cheapest first."""
        kinds = sorted(set(self._kinds))
        fronts = [self._walks(kind) for kind in kinds]
        cheapest: dict[tuple[IslandCrossing, ...], PricedIslandProgram] = {}
        for signature in shared(fronts):
            joined = _cheapest_joined([front[signature] for front in fronts])
            if joined is None:
                continue
            walks = [joined.walks[kinds.index(kind)] for kind in self._kinds]
            priced = self.predict(self._space.program(signature, walks))
            known = cheapest.get(signature.crossings)
            if known is None or priced.seconds < known.seconds:
                cheapest[signature.crossings] = priced
        if not cheapest:
            raise InputError(
                f"no program in which islands take at most {self._limit} steps reduces over "
                f"{self._space.cluster.name!r}",
                "allow more steps",
            )
        return sorted(cheapest.values(), key=lambda priced: (priced.seconds, len(priced.program)))

    def _walks(self, number: int) -> dict[Signature, dict[Learns, _Front]]:
        """The walks of an island that no other beats, by what others must agree on."""
        space, prices = self._space.spaces[number], self._prices[number]
        seen: dict[_Place, _Front] = defaultdict(list)
        layer = {_Place(space.laws.start, NO_CROSSING, ()): [_Label((0.0,), IslandWalk((), ()))]}
        for left in range(self._limit, -1, -1):
            following: dict[_Place, _Front] = defaultdict(list)
            for place, labels in layer.items():
                fresh = [candidate for candidate in labels if _add(seen[place], candidate)]
                if left and fresh:
                    for after, label in _followed(space, prices, place, fresh, left - 1):
                        _add(following[after], label)
            layer = following
        fronts: dict[Signature, dict[Learns, _Front]] = defaultdict(dict)
        for place, front in seen.items():
            if place.state == space.laws.goal:
                fronts[place.signature][place.learns] = front
        return dict(fronts)


def _cheapest_joined(islands: Sequence[dict[Learns, _Front]]) -> _Joined | None:
    """The least sum over maxima of one walk of each kind of island."""
    first, *others = islands
    joined = {
        learns: [_Joined(one.vector, (one.walk,)) for one in front]
        for learns, front in first.items()
    }
    for island in others:
        following: dict[Learns, list[_Joined]] = defaultdict(list)
        for (learns, before), (mine, front) in product(joined.items(), island.items()):
            both = tuple(a or b for a, b in zip(learns, mine, strict=True))
            for some, one in product(before, front):
                vector = tuple(map(max, some.vector, one.vector))
                _add(following[both], _Joined(vector, (*some.walks, one.walk)))
        joined = following
    whole = [entry for learns, entries in joined.items() if all(learns) for entry in entries]
    return min(whole, key=lambda entry: sum(entry.vector), default=None)


def _followed(
    space: IslandSpace, prices: IslandPrices, place: _Place, labels: _Front, left: int
) -> Iterator[tuple[_Place, _Label]]:
    """Walks that are longer by a move, from which the goal can be reached in so many."""
    for move, after, copies, useful in space.after(place.state):
        if not space.reaches(after, left):
            continue
        seconds = float(prices.step(place.state, move).seconds)
        signature, learns = place.signature, place.learns
        if isinstance(move, IslandCrossing):
            signature, learns = signature.then(move, copies), (*learns, useful)
        for label in labels:
            walk = IslandWalk((*label.walk.moves, move), learns)
            vector = _extended(label.vector, move, seconds)
            yield _Place(after, signature, learns), _Label(vector, walk)


def _extended(vector: Vector, move: Move, seconds: float) -> Vector:
    if isinstance(move, IslandCrossing):
        return (*vector, seconds, 0.0)
    return (*vector[:-1], vector[-1] + seconds)


def _add(front: list[_L], label: _L) -> bool:
    """Put a label into a front unless another is as good; drop those it beats."""
    for other in front:
        if all(a <= b for a, b in zip(other.vector, label.vector, strict=True)):
            return False
    front[:] = [
        other
        for other in front
        if not all(b <= a for a, b in zip(other.vector, label.vector, strict=True))
    ]
    front.append(label)
    return True
