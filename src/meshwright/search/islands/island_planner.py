"""The joint search over islands (P²'s open case; AMP, Metis and Sailor search here). Enters: an
`IslandQuestion`, a budget. Leaves: an `IslandPlanned`.

    alone     each island by itself, the others idle: the regular sub-machines
    regular   several islands as one regular machine, the odd devices dropped, all as slow as the
              slowest (`merged`)
    shares    every subset of islands shares the batch: equally for each device, as people do, then
              so that the slowest is the fastest possible (`shares`)
    stages    islands are pipeline stages, in every order, with layers by speed (`cuts`), whose cuts
              are moved while that helps; then parts of them (an island's nodes as several stages)
Each part is planned by the joint search of regular machines, once for each kind of island, run of
operators and number of samples (`inner`): its cost grows with kinds of islands, not with devices.
Every phase only adds candidates, so no answer is slower than dropping an island or equal shares.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, permutations

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Seconds
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.island_cluster import Island, IslandCluster
from meshwright.cost.backend import NCCL, Backend
from meshwright.cost.operator import PEAKS, UNKNOWN_PEAK
from meshwright.cost.tables import pricer_of
from meshwright.graph.batch import samples_of
from meshwright.graph.workload import workload
from meshwright.plan.island_plan import IslandPart, IslandPlan
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.candidate import Candidate
from meshwright.search.islands.cuts import cuts_of, partition
from meshwright.search.islands.inner import InnerPlans, Run
from meshwright.search.islands.island_question import IslandCandidate, IslandPlanned, IslandQuestion
from meshwright.search.islands.merged import merged
from meshwright.search.islands.shares import balanced_shares, proportional_shares, unit_of
from meshwright.search.joint.trials.clock import Clock
from meshwright.sharding.loss_law import loss_law
from meshwright.simulate.island_paces import simulate_stage_pace, with_micro_batches
from meshwright.simulate.island_step import PartFigures, compose_prediction

SUBSETS = 4
"""Islands of which all subsets share a batch; of more all, all but one, and the fastest few."""

ORDERS = 3
"""Islands that are stages in every order; more follow each other by memory."""

PIECES = 4
"""Parts of islands that are stages in every order; of more, islands are not split."""

SMALL = 8
"""Ways to cut a graph that are all tried."""

FEW = 16
"""A batch of at most so many samples is searched for by itself for every share."""

_log = logging.getLogger(__name__)


def best_island_plan(
    question: IslandQuestion,
    budget: Budget,
    *,
    backend: Backend = NCCL,
    seed: int = 0,
    cores: int = 1,
    thorough: bool | None = None,
    known: Sequence[Plan] = (),
    progress: Callable[[float, str], None] = lambda _share, _doing: None,
) -> IslandPlanned:
    """The best plan over islands that a budget buys. With `thorough` every share is searched for by
    itself; by default where the batch is small and the budget is none of time. Plans that are
    known already are candidates wherever an island is as theirs.
    """
    search = _Search(question, budget, backend, seed, cores, thorough, progress)
    for plan in known:
        search.inner.learn(plan)
    return search.planned()


class _Search:
    def __init__(
        self,
        question: IslandQuestion,
        budget: Budget,
        backend: Backend,
        seed: int,
        cores: int,
        thorough: bool | None,
        progress: Callable[[float, str], None],
    ) -> None:
        batch = samples_of(question.graph)
        if batch is None:
            raise InputError(
                f"no operator of graph {question.graph.name!r} cuts samples of an input",
                "islands share samples: give a model whose first dim is the batch",
            )
        self.question, self.machine, self.batch = question, question.cluster, batch
        self.clock = Clock(budget)
        kinds = len({island.cluster for island in self.machine.islands})
        # Alone, as one machine, for its share, and as a stage or two.
        each = None if budget.seconds is None else Seconds(budget.seconds / (5 * kinds + 1))
        if thorough is None:
            thorough = batch <= FEW and budget.seconds is None
        self.inner = InnerPlans(
            question.graph,
            question.training,
            msgspec.structs.replace(budget, seconds=each),
            backend,
            seed,
            cores,
            thorough=thorough,
        )
        self.inner.told = lambda doing: progress(self.clock.used, doing)
        self.found: list[IslandCandidate] = []
        self.refused: list[tuple[str, str]] = []

    def planned(self) -> IslandPlanned:
        """All phases, one after the other."""
        self.alone()
        self.regular()
        self.shares()
        self.stages()
        if not self.found:
            raise InputError(
                "no island can run any part of the model", "give another batch or cluster"
            )
        best = min(self.found, key=lambda entry: entry.rank)
        kinds: dict[str, IslandCandidate] = {}
        for candidate in sorted(self.found, key=lambda entry: entry.rank):
            kinds.setdefault(candidate.plan.origin, candidate)
        return IslandPlanned(
            question=self.question,
            best=best,
            alternatives=tuple(kinds.values()),
            refused=tuple(self.refused),
            bound=self.bound(),
            searched=self.inner.searched,
            simulated=self.inner.simulated,
            seconds=self.clock.seconds,
        )

    def bound(self) -> Seconds:
        """Work over speed: products of the model, once, at the peaks of all devices together."""
        work, rate = workload(self.question.graph), 0.0
        for island in self.machine.islands:
            device = island.cluster.device
            peaks = dict(device.peak)
            names = (PEAKS.get(work.dtype, ""), device.running.products)
            # What the device has no rate for is priced at its largest.
            fallback = max(peaks.values(), default=UNKNOWN_PEAK)
            best = max((peaks[name] for name in names if name in peaks), default=fallback)
            rate += island.cluster.devices * best
        return Seconds(work.model_flops / rate)

    def alone(self) -> None:
        """Each island by itself."""
        for island in self.machine.islands:
            candidate = self.inner.best(island.cluster, self.inner.whole, self.batch)
            if candidate is None:
                self.refused.append((f"{island.name} alone", "no plan for the whole batch"))
                continue
            self._add(
                f"{island.name} alone", [_part((island.name,), candidate, self.batch)], [candidate]
            )

    def regular(self) -> None:
        """Several islands as one regular machine."""
        for names, cluster in merged(self.machine):
            candidate = self.inner.best(cluster, self.inner.whole, self.batch)
            if candidate is not None:
                self._add("one regular machine", [_part(names, candidate, self.batch)], [candidate])

    def shares(self) -> None:
        """Subsets of islands share the batch."""
        try:
            loss_law(self.question.graph)
        except InputError as error:
            self.refused.append(("shares of the batch", str(error)))
            return
        for number, islands in enumerate(self._subsets()):
            # All together always: no answer is slower than equal shares.
            if number and self.clock.enough() and self.found:
                return
            self._equal(islands)
            self._uneven(islands)

    def _subsets(self) -> Iterator[tuple[Island, ...]]:
        """All islands first, then fewer."""
        every = self.machine.islands
        if len(every) <= SUBSETS:
            for size in range(len(every), 1, -1):
                yield from combinations(every, size)
            return
        ranked = sorted(every, key=self._speed, reverse=True)
        yield every
        for size in range(len(every) - 1, 1, -1):
            yield tuple(ranked[:size])

    def _speed(self, island: Island) -> float:
        """Samples in a second of an island alone; a guess where it has no plan."""
        candidate = self.inner.best(island.cluster, self.inner.whole, self.batch)
        return (
            self.batch / candidate.prediction.step if candidate else island.cluster.devices * 1e-9
        )

    def _equal(self, islands: Sequence[Island]) -> None:
        """As many samples for each device, about."""
        unit = unit_of(self.batch)
        shares = proportional_shares(
            [island.cluster.devices for island in islands], self.batch, unit
        )
        self._share("equal shares", islands, shares)

    def _uneven(self, islands: Sequence[Island]) -> None:
        """Shares whose slowest island is the fastest possible."""

        def timing(number: int, share: int) -> float:
            candidate = self.inner.best(islands[number].cluster, self.inner.whole, share)
            if candidate is None or candidate.prediction.missing:
                return math.inf
            return candidate.prediction.step

        speeds = [self._speed(island) for island in islands]
        late = self.clock.hurry(0.5)
        seconds, shares = balanced_shares(timing, speeds, self.batch, late)
        if shares and math.isfinite(seconds):
            self._share("shares", islands, shares)

    def _share(self, origin: str, islands: Sequence[Island], shares: Sequence[int]) -> None:
        if min(shares) < 1:
            return
        candidates = [
            self.inner.best(island.cluster, self.inner.whole, share)
            for island, share in zip(islands, shares, strict=True)
        ]
        known = [candidate for candidate in candidates if candidate is not None]
        if len(known) < len(islands):
            return
        parts = [
            _part((island.name,), plan, share)
            for island, plan, share in zip(islands, known, shares, strict=True)
        ]
        self._add(origin, parts, known)

    def _add(
        self, origin: str, parts: Sequence[IslandPart], candidates: Sequence[Candidate]
    ) -> None:
        figures = [PartFigures(prediction=o.prediction, pace=o.prediction.step) for o in candidates]
        plan = IslandPlan(origin=origin, cluster=self.machine, batch=self.batch, parts=tuple(parts))
        candidate = IslandCandidate(plan, compose_prediction(plan, figures))
        _log.debug("%s: %.6g s a step", origin, candidate.prediction.step)
        self.found.append(candidate)

    def stages(self) -> None:
        """Islands follow each other as stages of a pipeline."""
        cuts = [cut.position for cut in cuts_of(self.question.graph)]
        for islands in self._orders():
            for micro in self._micro_batches(len(islands)):
                if self.clock.enough() and self.found:
                    return
                self._staged(islands, micro, cuts)

    def _orders(self) -> Iterator[tuple[Island, ...]]:
        """Islands in the order of stages, then parts of them; alike orders not twice."""
        every, split = self.machine.islands, split_islands(self.machine)
        seen = set[tuple[Cluster, ...]]()
        if len(every) > ORDERS:
            yield tuple(sorted(every, key=lambda island: -island.cluster.device.memory))
        else:
            yield from _unlike_orders(every, seen)
        if len(every) < len(split) <= PIECES:
            yield from _unlike_orders(split, seen)

    def _micro_batches(self, stages: int) -> list[int]:
        """Numbers of micro-batches that are worth a try, the most promising first."""
        every = [n for n in divisors(self.batch) if n >= stages] or [self.batch]
        if len(every) <= 4:
            return every
        wanted = [4 * stages, 2 * stages, 8 * stages]
        return list(dict.fromkeys(min(every, key=lambda n: abs(n - count)) for count in wanted))

    def _staged(self, islands: Sequence[Island], micro: int, cuts: Sequence[int]) -> None:
        graph, samples = self.question.graph, self.batch // micro
        if math.comb(len(cuts), len(islands) - 1) <= SMALL:
            for ends in combinations(cuts, len(islands) - 1):
                self._pipeline(islands, micro, samples, ends)
            return
        loads = [self._loads(island) for island in islands]
        chosen = partition(loads, cuts, len(graph.operators))
        if chosen is None:
            return
        best = self._pipeline(islands, micro, samples, chosen)
        moved = best is not None
        while moved and not self.clock.enough():
            moved = False
            for other in _neighbours(chosen, cuts):
                tried = self._pipeline(islands, micro, samples, other)
                if tried is not None and best is not None and tried.rank < best.rank:
                    best, chosen, moved = tried, other, True
                    break

    def _loads(self, island: Island) -> list[float]:
        """Seconds of each operator on an island, both passes, as if cut among all its devices."""
        pricer, graph = pricer_of(island.cluster.device), self.question.graph
        prices = [pricer.price(graph.call(operator)) for operator in graph.operators]
        return [
            (price.forward.seconds + price.backward.seconds) / island.cluster.devices
            for price in prices
        ]

    def _pipeline(
        self, islands: Sequence[Island], micro: int, samples: int, cuts: Sequence[int]
    ) -> IslandCandidate | None:
        """The plan whose stages end at some cuts."""
        ends = (0, *cuts, len(self.question.graph.operators))
        runs: list[Run] = list(pairwise(ends))
        parts, figures = [], []
        for number, (island, run) in enumerate(zip(islands, runs, strict=True)):
            best = self.inner.best(island.cluster, run, samples)
            if best is None:
                return None
            try:
                whole = with_micro_batches(best.plan, micro, micro)
                figures.append(simulate_stage_pace(whole, micro))
            except InputError:
                return None
            parts.append(
                IslandPart(islands=(island.name,), plan=whole, share=self.batch, stage=number)
            )
        plan = IslandPlan(
            origin="stages",
            cluster=self.machine,
            batch=self.batch,
            parts=tuple(parts),
            micro_batches=micro,
            inputs=tuple(tensor.name for tensor in self.question.graph.inputs),
        )
        candidate = IslandCandidate(plan, compose_prediction(plan, figures))
        self.found.append(candidate)
        return candidate


def split_islands(machine: IslandCluster) -> tuple[Island, ...]:
    """The islands, each cut along its outermost level (nodes), so that it can be several stages."""
    pieces: list[Island] = []
    for island in machine.islands:
        outer, *inner = island.cluster.levels
        if inner and outer.cardinality > 1:
            one = island.cluster.resized({outer.name: 1})
            pieces += [Island(name=island.name, cluster=one)] * outer.cardinality
        else:
            pieces.append(island)
    return tuple(pieces)


def _unlike_orders(
    islands: Sequence[Island], seen: set[tuple[Cluster, ...]]
) -> Iterator[tuple[Island, ...]]:
    """All orders of two or more, of those that are alike by kind the first."""
    for size in range(len(islands), 1, -1):
        for order in permutations(islands, size):
            kinds = tuple(island.cluster for island in order)
            if kinds not in seen:
                seen.add(kinds)
                yield order


def _neighbours(chosen: tuple[int, ...], cuts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """One cut moved to the next place, either way."""
    for number, cut in enumerate(chosen):
        place = cuts.index(cut)
        for other in (place - 1, place + 1):
            if 0 <= other < len(cuts):
                moved = (*chosen[:number], cuts[other], *chosen[number + 1 :])
                if list(moved) == sorted(set(moved)):
                    yield moved


def _part(names: tuple[str, ...], candidate: Candidate, share: int) -> IslandPart:
    return IslandPart(islands=names, plan=candidate.plan, share=share)
