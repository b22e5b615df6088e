"""MCMC search of the SOAP space (FlexFlow): annealed Metropolis chains from several starts. Enters:
a problem and layouts to start from. Leaves: the best layouts.

Several chains of Metropolis walks (`metropolis`) take turns, one for each start. A chain's
temperature is a fixed share of the cost that it starts from. One that has not lowered its best for
half of its part of the budget is in a valley: it is heated and cools down turn by turn (simulated
annealing with restarts; Kirkpatrick et al. 1983), cold again as soon as its best falls, and rests
if that was in vain CYCLES times. Then the best layouts go down to a local optimum
(`local_search`). Everything follows from the seed; with a budget in proposals the result does too,
to the last bit. What a search knows is written to a checkpoint every few seconds, and a search that
is started again with the same question goes on from there. An interrupt ends it with the best so
far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from meshwright.base.errors import InputError
from meshwright.search.budget import Budget
from meshwright.search.mcmc.local_search import VAIN, descend, layouts_of, place
from meshwright.search.mcmc.metropolis import (
    BEST,
    COST,
    IMPROVED,
    LONGEST,
    PROPOSED,
    ChainBuffers,
    Engine,
    MetropolisChain,
    chain_buffers,
    run_metropolis,
)
from meshwright.search.mcmc.sample_layout import random_layout
from meshwright.search.mcmc.search_checkpoint import ChainState, Checkpoint, Keeper
from meshwright.sharding.reshard import Codes
from meshwright.simulate import full
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import LayoutSpace, group_outside_space, space
from meshwright.simulate.move import MoveUndo, move_buffers, undo
from meshwright.simulate.problem import StepModel
from meshwright.simulate.tasks import Ints

WARMTH = 1e-4
"""The temperature, as a share of the cost at the start."""

COOLING = (0.1, 0.03, 0.01, 3e-3, 1e-3, WARMTH)
"""Temperatures of the turns of a chain that is heated, as shares of its best."""

CYCLES = 2
"""How often a chain is heated in vain before it rests."""

TURN = 1000
"""Proposals that a chain makes before the next one has its turn."""

WALKING = 0.75
"""The share of the budget after which walking ends and the descent begins, at the latest."""

EARLIEST = 0.5
"""And at the earliest: where trying all changes of single units takes longer than that leaves."""

PASSES = 4
"""Times over all changes of single units for which the descent should have time."""

Stopped = Literal["budget", "settled", "interrupted"]


class ChainsResult(NamedTuple):
    """The best layouts, how they were found, and why the search stopped."""

    roles: Codes
    nanoseconds: int
    origin: str
    """The start of the chain that found them."""
    stopped: Stopped
    local_optimum: bool
    """Whether every change of a single unit was tried in vain (`local_search` says which)."""
    proposals: int
    seconds: float
    history: tuple[tuple[int, float, int], ...]
    """When the best fell: proposals, seconds, nanoseconds."""


class ChainsProgress(NamedTuple):
    """What a search can tell of itself while it runs."""

    used: float
    """The share of the budget."""
    nanoseconds: int
    proposals: int
    doing: str


def search(
    problem: StepModel,
    starts: Mapping[str, Codes],
    budget: Budget,
    *,
    seed: int = 0,
    engine: Engine = "delta",
    checkpoint: str | None = None,
    progress: Callable[[ChainsProgress], None] = lambda _: None,
) -> ChainsResult:
    """The best layouts that a budget buys."""
    keeper = Keeper(checkpoint, problem, starts, seed) if checkpoint else None
    before = keeper.load() if keeper else None
    run = _Run(problem, starts, budget, seed, engine, before)
    stopped: Stopped = "budget"
    try:
        # On one device there is nothing to walk along.
        while problem.factors and run.used < run.walking and run.walk():
            run.tell(progress, keeper, "walking")
        while run.used < 1 and not run.descend():
            run.tell(progress, keeper, "descending")
        stopped = "settled" if run.settled else "budget"
    except KeyboardInterrupt:
        stopped = "interrupted"
    if keeper:
        keeper.save(run.state())
    best = run.best
    return ChainsResult(
        roles=best.walk.best.copy(),
        nanoseconds=int(best.walk.number[BEST]),
        origin=best.name,
        stopped=stopped,
        local_optimum=run.settled,
        proposals=run.proposals,
        seconds=run.seconds,
        history=tuple(run.history),
    )


def random_roles(problem: StepModel, seed: int) -> Codes:
    """A role for every unit and factor, all legal layouts of a unit being alike likely."""
    room, random = space(problem), np.array([seed], np.uint64)
    roles = problem.roles.copy()
    for unit in range(len(problem.units)):
        roles[unit] = random_layout(problem, room, unit, random)
    return roles


class _Chain:
    """A walk, where it is, and whether it still gets anywhere."""

    def __init__(self, name: str, walk: MetropolisChain, roles: Codes, cold: float) -> None:
        self.name, self.walk, self.roles, self.cold = name, walk, roles, cold

    def vain(self, patience: float) -> int:
        """Turns since patience with a best that does not fall has ended."""
        number = self.walk.number
        late = number[PROPOSED] - number[IMPROVED] - patience
        return math.ceil(late / TURN) if late > 0 else 0

    def resting(self, patience: float) -> bool:
        """Whether the best has not fallen for long."""
        return self.vain(patience) > CYCLES * len(COOLING)

    def temper(self, patience: float) -> None:
        """Take the temperature of the next turn."""
        vain = self.vain(patience)
        heat = COOLING[(vain - 1) % len(COOLING)] * float(self.walk.number[BEST])
        self.walk.temperature[0] = heat if vain else self.cold


class _Run:
    """A search under way."""

    def __init__(
        self,
        problem: StepModel,
        starts: Mapping[str, Codes],
        budget: Budget,
        seed: int,
        engine: Engine,
        before: Checkpoint | None,
    ) -> None:
        self.problem, self.budget, self.engine = problem, budget, engine
        self.room: LayoutSpace = space(problem)
        for name, roles in starts.items():
            unit = group_outside_space(problem, self.room, roles)
            if unit is not None:
                raise InputError(
                    f"start {name!r} gives unit {unit.name!r} a layout that the search may not use",
                    "start from a plan that keeps to the constraints",
                )
        self.log: MoveUndo = undo(problem, LONGEST)
        self._changes = sum(layouts_of(self.room, unit) for unit in range(len(problem.units)))
        self.where: Ints = place()
        self.settled = False
        self._desk: ChainBuffers | None = None
        self._laid: object = None
        self._spent = before.seconds if before else 0.0
        self.history: list[tuple[int, float, int]] = list(before.history) if before else []
        if before:
            self.chains = [self._restored(chain) for chain in before.chains]
        else:
            self.chains = [
                self._started(name, roles, seed + number)
                for number, (name, roles) in enumerate(starts.items())
            ]
        self._turn = 0
        self._compile()
        self._began = time.monotonic()
        self._note()

    @property
    def seconds(self) -> float:
        """Spent, also before an interruption."""
        return self._spent + time.monotonic() - self._began

    @property
    def proposals(self) -> int:
        """Made by all chains."""
        return sum(int(chain.walk.number[PROPOSED]) for chain in self.chains)

    @property
    def used(self) -> float:
        """The share of the budget."""
        return self.budget.used(self.seconds, self.proposals)

    @property
    def best(self) -> _Chain:
        """The chain with the lowest cost so far."""
        return min(self.chains, key=lambda chain: int(chain.walk.number[BEST]))

    @property
    def walking(self) -> float:
        """The share of the budget that is for walking."""
        each = self.used / max(1, self.proposals)
        return min(WALKING, max(EARLIEST, 1 - PASSES * self._changes * each))

    def walk(self) -> bool:
        """Let the next chain have its turn; whether any still gets anywhere."""
        patience = max(2.0 * TURN, 0.5 * self.walking * self._proposals_each())
        awake = [chain for chain in self.chains if not chain.resting(patience)]
        if not awake:
            return False
        chain = awake[self._turn % len(awake)]
        self._turn += 1
        chain.temper(patience)
        self._take(chain, chain.roles)
        goal = int(chain.walk.number[PROPOSED]) + TURN
        while chain.walk.number[PROPOSED] < goal:
            left = goal - int(chain.walk.number[PROPOSED])
            now, table = move_buffers(self.problem), self._desk
            assert table is not None
            status = run_metropolis(now, self.log, self.room, chain.walk, table, left)
            if status != FOUND:
                self.problem.supply(status)
        chain.roles[:] = self.problem.roles
        self._note()
        return True

    def descend(self) -> bool:
        """Go some way down from the best layouts; whether they are locally optimal."""
        chain = self.best
        if self._laid is not self.where:
            self.problem.lay(chain.walk.best)
            self._desk = chain_buffers(self.problem, self.engine)
            self._laid = self.where
            chain.walk.number[COST] = chain.walk.number[BEST]
            self.where[:] = 0
        assert self._desk is not None
        status = descend(
            move_buffers(self.problem),
            self.log,
            self.room,
            chain.walk,
            self._desk,
            self.where,
            TURN,
        )
        if status != FOUND:
            self.problem.supply(status)
        self._note()
        self.settled = bool(self.where[VAIN] >= len(self.problem.units))
        return self.settled

    def tell(
        self, progress: Callable[[ChainsProgress], None], keeper: Keeper | None, doing: str
    ) -> None:
        """Report, and write a checkpoint if it is time."""
        lowest = int(self.best.walk.number[BEST])
        progress(ChainsProgress(min(1.0, self.used), lowest, self.proposals, doing))
        if keeper and keeper.due():
            keeper.save(self.state())

    def state(self) -> Checkpoint:
        """Everything needed to go on."""
        chains = tuple(
            ChainState(
                name=chain.name,
                random=int(chain.walk.random[0]),
                numbers=tuple(map(int, chain.walk.number)),
                temperature=chain.cold,
                roles=chain.roles.tobytes(),
                best=chain.walk.best.tobytes(),
            )
            for chain in self.chains
        )
        return Checkpoint(seconds=self.seconds, chains=chains, history=tuple(self.history))

    def _compile(self) -> None:
        """Compile what has not been yet, before the clock runs."""
        self._take(self.chains[0], self.chains[0].roles)
        walk, now, table = self.chains[0].walk, move_buffers(self.problem), self._desk
        assert table is not None
        run_metropolis(now, self.log, self.room, walk, table, 0)
        descend(now, self.log, self.room, walk, table, self.where, 0)

    def _proposals_each(self) -> float:
        """How many proposals a chain can hope for."""
        used, proposals = self.used, self.proposals
        total = proposals / used if used > 0 and proposals else 0.0
        return total / len(self.chains)

    def _take(self, chain: _Chain, roles: Codes) -> None:
        """Write a chain's layouts into the problem, unless they are there."""
        if self._laid is not chain:
            self.problem.lay(roles)
            self._desk = chain_buffers(self.problem, self.engine)
            self._laid = chain

    def _note(self) -> None:
        lowest = int(self.best.walk.number[BEST])
        if not self.history or lowest < self.history[-1][2]:
            self.history.append((self.proposals, self.seconds, lowest))

    def _started(self, name: str, roles: Codes, seed: int) -> _Chain:
        self.problem.lay(roles)
        cost = full.simulate(self.problem.tasks).makespan
        walk = _walk(seed, cost, roles)
        return _Chain(name, walk, roles.copy(), WARMTH * cost)

    def _restored(self, state: ChainState) -> _Chain:
        shape = self.problem.roles.shape
        roles = np.frombuffer(state.roles, np.int8).reshape(shape).copy()
        walk = MetropolisChain(
            random=np.array([state.random], np.uint64),
            number=np.array(state.numbers, np.int64),
            temperature=np.array([state.temperature]),
            best=np.frombuffer(state.best, np.int8).reshape(shape).copy(),
        )
        return _Chain(state.name, walk, roles, state.temperature)


def _walk(seed: int, cost: int, roles: Codes) -> MetropolisChain:
    number = np.zeros(6, np.int64)
    number[COST] = number[BEST] = cost
    # Seeds next to each other must not give streams next to each other.
    random = np.array([seed * 0x5851F42D4C957F2D % (1 << 64)], np.uint64)
    return MetropolisChain(random, number, np.array([WARMTH * cost]), roles.copy())
