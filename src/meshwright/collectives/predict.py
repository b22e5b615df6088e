"""Predicted time of a reduction program, and the cheapest program by A* (Hart et al. 1968).

Enters: a hierarchy, a program or none, a pricer, the bytes on each device. Leaves: seconds for
each step with the link that sets the pace. A program's time is the sum of its steps; before a
step a device holds  payload / ∏ sizes of the levels along which its data is scattered.

The cheapest program is a shortest path from the start state to the goal of at most `limit` moves.
It is found by A* with the lower bound of `outlook`, which never exceeds what is left to pay, so
that of the many states only a few more than those on the path are ever computed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.collectives.dsl import Program, ReductionInstruction
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.laws import Levels, State, apply, scattered
from meshwright.collectives.synthesize import SIZE_LIMIT, CollectiveMove, MoveSpace, Rules
from meshwright.cost.alpha_beta import CostLine, Pricer, cheapest_line


class NoProgramError(InputError):
    """A hierarchy that cannot tell apart the devices that reduce together."""


class ProgramStepPrice(NamedTuple):
    """One step of a program, predicted."""

    instruction: ReductionInstruction
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


class PricedProgram(NamedTuple):
    """A program with its predicted time."""

    program: Program
    steps: tuple[ProgramStepPrice, ...]

    @property
    def seconds(self) -> Seconds:
        """The sum over its steps."""
        return Seconds(sum(step.seconds for step in self.steps))


def predict(
    hierarchy: Hierarchy, program: Program, pricer: Pricer, payload: float
) -> PricedProgram:
    """The predicted time of a program, step by step.

    >>> from meshwright import Cluster, Pricer, placements, reduction_hierarchy
    >>> cluster = Cluster.named("gcp-a100", node=4)
    >>> (placement,) = placements(cluster, {"data": 64})
    >>> hierarchy = reduction_hierarchy(cluster, placement, ["data"])
    >>> ring = Pricer(cluster)
    >>> predict(hierarchy, Program.parse("root.InsideGroup.AllReduce"), ring, 9e9).seconds
    1.969224
    """
    prices = _Prices(MoveSpace(hierarchy), pricer, payload)
    graph, steps = prices.space.graph, []
    state = graph.start
    for number, instruction in enumerate(program.instructions, start=1):
        move = prices.space.move(instruction)
        if not move.groups.varied or apply(state, *move) is None:
            raise InputError(
                f"step {number} of {str(program)!r}, {instruction}, mixes different chunks, adds a "
                "contribution twice, or brings nothing new",
                "give a program that 'meshwright reduce' lists",
            )
        step, state = prices.step(state, move)
        steps.append(step._replace(instruction=instruction))
    if state != graph.goal:
        raise InputError(
            f"{str(program)!r} does not finish the reduction",
            "add the missing steps, or give a program that 'meshwright reduce' lists",
        )
    return PricedProgram(program, tuple(steps))


def predict_all(
    hierarchy: Hierarchy,
    pricer: Pricer,
    payload: float,
    *,
    limit: int = SIZE_LIMIT,
    rules: Rules = "literal",
) -> Iterator[PricedProgram]:
    """Every program that `synthesize` gives, with its predicted time."""
    prices = _Prices(MoveSpace(hierarchy, rules), pricer, payload)
    for moves in prices.space.walks(limit):
        state, steps = prices.space.graph.start, []
        for move in moves:
            step, state = prices.step(state, move)
            steps.append(step)
        yield PricedProgram(prices.space.program(moves), tuple(steps))


class _Candidate(NamedTuple):
    """A walk from the start; its last move is applied only when it comes to the front."""

    bound: float
    number: int
    spent: float
    state: State
    moves: tuple[CollectiveMove, ...]
    view: int
    pending: bool
    """Whether `spent` and `state` are those before the last move."""


def cheapest(
    hierarchy: Hierarchy,
    pricer: Pricer,
    payload: float,
    *,
    limit: int = SIZE_LIMIT,
    rules: Rules = "literal",
) -> PricedProgram:
    """The program of least predicted time with at most `limit` steps.

    >>> from meshwright import Cluster, Pricer, cheapest, placements, reduction_hierarchy
    >>> cluster = Cluster.named("gcp-a100", node=4)
    >>> (placement,) = placements(cluster, {"data": 64})
    >>> best = cheapest(reduction_hierarchy(cluster, placement, ["data"]), Pricer(cluster), 2**30)
    >>> print(best.program)
    node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; node.InsideGroup.AllGather
    """
    space = MoveSpace(hierarchy, rules)
    prices, graph, numbers = _Prices(space, pricer, payload), space.graph, count(1)
    outlook = graph.outlook(limit)
    known, bounds = outlook.bounds(lambda move, opened: prices.seconds(graph.moves[move], opened))
    queue = [_Candidate(0.0, 0, 0.0, graph.start, (), 0, False)] if space.complete else []
    visits: dict[State, list[tuple[float, int]]] = {}
    while queue:
        _, _, spent, state, moves, view, pending = heapq.heappop(queue)
        left = limit - len(moves)
        if pending:
            after = apply(state, *moves[-1])
            if after is not None:
                spent += prices.price(state, moves[-1])
                bound = spent + bounds[left][view]
                heapq.heappush(
                    queue, _Candidate(bound, next(numbers), spent, after, moves, view, False)
                )
            continue
        if state == graph.goal:
            return predict(hierarchy, space.program(moves), pricer, payload)
        earlier = visits.setdefault(state, [])
        if left == 0 or any(cost <= spent and more >= left for cost, more in earlier):
            continue
        earlier.append((spent, left))
        for edge in outlook.edges[view]:
            bound = spent + known[edge.price] + bounds[left - 1][edge.target]
            if bound < math.inf:
                walk = (*moves, graph.moves[edge.move])
                heapq.heappush(
                    queue, _Candidate(bound, next(numbers), spent, state, walk, edge.target, True)
                )
    raise NoProgramError(
        f"no program of at most {limit} steps reduces over the {hierarchy.kind} hierarchy of "
        f"{hierarchy.placement}",
        "use the hardware hierarchy, the default, or allow more steps",
    )


class _Prices:
    """Prices of moves for one payload."""

    def __init__(self, space: MoveSpace, pricer: Pricer, payload: float) -> None:
        if not 0 < payload < math.inf:
            raise InputError(f"a payload of {payload} bytes", "give a number above 0")
        space.hierarchy.placement.on(pricer.cluster)
        self.space, self._pricer, self._payload = space, pricer, payload
        self._lines: dict[CollectiveMove, tuple[CostLine, ...]] = {}
        self._steps: dict[tuple[State, CollectiveMove], tuple[ProgramStepPrice, State]] = {}

    def step(self, state: State, move: CollectiveMove) -> tuple[ProgramStepPrice, State]:
        """A move that the laws allow, priced, and the state after it."""
        key = (state, move)
        if key not in self._steps:
            after = apply(state, *move)
            assert after is not None, "only moves that the laws allow are priced"
            opened = self.opened(state, move)
            step = ProgramStepPrice(
                self.space.instruction(move), self.held(opened), self.at(move, opened)
            )
            self._steps[key] = step, after
        return self._steps[key]

    def opened(self, state: State, move: CollectiveMove) -> Levels:
        """The levels along which the largest piece that the move takes is scattered."""
        return min(scattered(state, move.groups), key=self._parts)

    def held(self, opened: Levels) -> float:
        """The bytes on a device whose data is scattered along some levels."""
        return self._payload / self._parts(opened)

    def price(self, state: State, move: CollectiveMove) -> Seconds:
        """Seconds of a move from a state."""
        return self.seconds(move, self.opened(state, move))

    def seconds(self, move: CollectiveMove, opened: Levels) -> Seconds:
        """Seconds of a move on data scattered along some levels."""
        return self.at(move, opened).at(self.held(opened))

    def at(self, move: CollectiveMove, opened: Levels) -> CostLine:
        """The price of a move on data scattered along some levels."""
        lines = self._lines.get(move)
        if lines is None:
            pattern = self.space.pattern(move.groups)
            lines = self._lines[move] = self._pricer.lines(move.collective, pattern)
        return cheapest_line(lines, self.held(opened))

    def _parts(self, opened: Levels) -> int:
        sizes = self.space.sizes
        return math.prod(size for u, size in enumerate(sizes) if opened >> u & 1)
