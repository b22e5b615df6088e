"""Counterfactual analysis: every decision of a plan, and the cost of its runner-up. Enters: a plan
and prices. Leaves: for every decision what the best other choice would have cost.

A runner-up is the plan with this one decision changed and everything else kept, simulated:
    options, stages, placement   `alternatives`
    the algebra                  the plan of the original graph, if it is given
    collectives                  the prices without the way that was taken: the next cheapest
    layouts                      `counterfactuals`, by classes of units, the most expensive first
Of several the fastest that fits into memory counts. The largest difference comes first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, Seconds, format_bytes, format_seconds
from meshwright.collectives import dsl
from meshwright.cost.collective import Collective
from meshwright.cost.operator import OperatorPricer
from meshwright.explain.alternatives import alternatives
from meshwright.explain.counterfactuals import CounterfactualTrials, OpGroupClass, classes
from meshwright.plan.plan import Plan, Prediction
from meshwright.sharding.reshard import ALL_REDUCE, NAMES
from meshwright.simulate.collective_implementations import CollectiveWay
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.simulate.listed_collectives import EdgeCollective, moves, ways_by_level
from meshwright.simulate.simulation import simulate

WORK = 50_000_000
"""Tasks that are simulated for the layouts of all classes together; each at least FEWEST times."""

FEWEST = 20

COLLECTIVES = 8
"""Different collectives that are looked into, the largest first."""

COLLECTIVE = frozenset(collective.value for collective in Collective)

TURN = 100_000
"""Tasks that may be simulated before the clock is looked at."""


class Decision(NamedTuple):
    """What was chosen, and what else could have been."""

    subject: str
    chosen: str
    runner_up: str | None
    """None if there is no other choice."""
    step: Seconds | None
    """Of the plan with the runner-up."""
    note: str
    fits: bool = True
    """Whether the plan with the runner-up fits into memory."""
    fix: str = ""
    """How a search is told the runner-up, as `plan` takes it: "--fix zero=1"; empty if it cannot
    be."""
    searched: Seconds | None = None
    """Of the best plan that a search found with the runner-up fixed (`confirm`); None if nobody
    searched."""
    found: str = ""
    """What that search says besides: that its plan does not fit, or that there is none."""

    @property
    def best(self) -> Seconds | None:
        """The step with the runner-up: as searched, or with everything else kept."""
        return self.step if self.searched is None else self.searched


def explain(
    plan: Plan,
    *,
    prices: CollectivePrices,
    operators: OperatorPricer,
    memory: Bytes,
    deadline: float | None = None,
    original: Plan | None = None,
    progress: Callable[[], None] = lambda: None,
) -> tuple[Decision, ...]:
    """Every decision of a plan, until a moment of `time.monotonic`.

    `original` is a plan of the graph before it was rewritten. What the deadline leaves out is
    counted in a last entry. `progress` is called whenever the clock is looked at.
    """
    explanation = _Explanation(plan, prices, operators, memory, deadline, progress)
    decisions = [
        *explanation.alternatives(),
        *explanation.algebra(original),
        *explanation.collectives(),
        *explanation.layouts(),
    ]
    decisions.sort(
        key=lambda decision: math.inf if decision.step is None else explanation.step - decision.step
    )
    if explanation.left_out:
        note = "not looked into: the time was up, or they are the cheapest of many"
        decisions.append(
            Decision("left out", f"{explanation.left_out} decisions", None, None, note)
        )
    return tuple(decisions)


def _pins(names: Sequence[str], layout: str, every: Sequence[str]) -> str:
    """How a search is told a layout of some units, by a pattern that means them and no others;
    empty if none does, or if the layout names coordinates.

    >>> _pins(["h.0.fc", "h.1.fc"], "sample channel", ["h.0.fc", "h.0.out", "h.1.fc"])
    "--pin 'h.*.fc=sample channel'"
    """
    parts = [name.split(".") for name in names]
    if "@" in layout or len({len(words) for words in parts}) > 1:
        return ""
    same = (words[0] if len(set(words)) == 1 else "*" for words in zip(*parts, strict=True))
    pattern = ".".join(same)
    if [name for name in every if fnmatchcase(name, pattern)] != list(names):
        return ""
    return f"--pin '{pattern}={layout}'"


class _Explanation:
    """A plan, simulated, and how much time is left to change it."""

    def __init__(
        self,
        plan: Plan,
        prices: CollectivePrices,
        operators: OperatorPricer,
        memory: Bytes,
        deadline: float | None,
        progress: Callable[[], None],
    ) -> None:
        self.plan, self.prices, self.operators, self.memory = plan, prices, operators, memory
        self.deadline, self.progress = deadline, progress
        self.base = simulate(plan, prices, operators)
        self.step = self.base.prediction.step
        self.left_out = 0

    def late(self) -> bool:
        """Whether the time is up."""
        self.progress()
        return self.deadline is not None and time.monotonic() > self.deadline

    def alternatives(self) -> Iterator[Decision]:
        """Decisions about the whole graph."""
        for choice in alternatives(self.plan):
            if self.late():
                self.left_out += 1
                continue
            tried = []
            for text, make in choice.others:
                try:
                    tried.append((text, self._predicted(make())))
                except InputError:  # A layout that so many micro-batches are too small for.
                    continue
            if tried:
                text, prediction = min(tried, key=lambda it: (self._misses(it[1]) > 0, it[1].step))
                decision = self._decision(choice.subject, choice.chosen, text, prediction)
                yield decision._replace(
                    fix=f"--fix {choice.subject}={text}" if choice.fixable else ""
                )
            else:
                yield Decision(
                    choice.subject, choice.chosen, None, None, "nothing else is possible"
                )

    def algebra(self, original: Plan | None) -> Iterator[Decision]:
        """The graph before it was rewritten."""
        if original is not None:
            prediction = self._predicted(original)
            other = f"the graph as given ({original.origin})"
            yield self._decision("algebra", "the graph as rewritten", other, prediction)

    def collectives(self) -> Iterator[Decision]:
        """How every different reduction, scatter and gather is carried out."""
        groups: dict[tuple[str, tuple[int, ...], tuple[int, ...], CollectiveWay], set[float]] = {}
        every = [move for task_moves in moves(self.base.problem).values() for move in task_moves]
        for collective in sorted(every, key=lambda move: -move.held):
            if collective.operation in COLLECTIVE:
                key = collective.operation, collective.over, collective.beside, collective.way
                groups.setdefault(key, set()).add(collective.held)
        self.left_out += max(0, len(groups) - COLLECTIVES)
        for (operation, over, beside, way), sizes in list(groups.items())[:COLLECTIVES]:
            if self.late():
                self.left_out += 1
                continue
            yield self._collective(
                EdgeCollective(operation, over, beside, max(sizes), way), len(sizes)
            )

    def _collective(self, collective: EdgeCollective, alike: int) -> Decision:
        number, held = NAMES.index(collective.operation), collective.held
        over, beside = (sum(1 << f for f in it) for it in (collective.over, collective.beside))
        what = "reduction" if number == ALL_REDUCE else collective.operation
        subject = f"{what} over {ways_by_level(self.plan.cluster, collective.over)}"
        subject += f" of {format_bytes(held)}"
        subject += f" (+{alike - 1} alike)" if alike > 1 else ""
        chosen = self._named(collective)
        if len(set(self.prices.ways(number, over, beside))) == 1:
            return Decision(subject, chosen, None, None, "nothing else is known")
        others = self.prices.without(number, over, beside, collective.way)
        second = collective._replace(way=others.way(number, over, beside, held))
        prediction = simulate(self.plan, others, self.operators).prediction
        other = self._named(second)
        other = other if other != chosen else f"{other} by another algorithm"
        decision = self._decision(subject, chosen, other, prediction)
        times = [format_seconds(it.seconds) for it in (collective, second)]
        return decision._replace(
            note=f"{decision.note}; by itself {times[1]} instead of {times[0]}"
        )

    def _named(self, collective: EdgeCollective) -> str:
        """How a collective is carried out."""
        if collective.operation == NAMES[ALL_REDUCE]:
            return str(collective.way.program or dsl.ALL_REDUCE)
        if len(collective.steps) == 1:
            return f"one {collective.operation}"
        along = ", ".join(ways_by_level(self.plan.cluster, step) for step in collective.steps)
        return f"{collective.operation} along {along}"

    def layouts(self) -> Iterator[Decision]:
        """The layout of every class of units."""
        problem = self.base.problem
        unit_classes, tasks = classes(problem), max(1, int(problem.tasks.live.sum()))
        longest = max((len(kind.units) for kind in unit_classes), default=0)
        if self.late() or not unit_classes:
            self.left_out += len(unit_classes)
            return
        trials = CounterfactualTrials(problem, round(self.step * NANO), longest)
        many = max(1, WORK // tasks // FEWEST)
        self.left_out += max(0, len(unit_classes) - many)
        most = max(FEWEST, WORK // tasks // len(unit_classes))
        for unit_class in unit_classes[:many]:
            if self.late():
                self.left_out += 1
                continue
            yield self._layout(trials, unit_class, most, max(1, TURN // tasks))

    def _layout(
        self, trials: CounterfactualTrials, unit_class: OpGroupClass, most: int, turn: int
    ) -> Decision:
        names = [self.plan.units[unit].name for unit in unit_class.units]
        subject = names[0] if len(names) == 1 else f"{names[0]} (+{len(names) - 1} alike)"
        chosen = str(self.plan.layout[names[0]])
        runner_up = trials.best(unit_class, most, turn, self.late)
        if runner_up is None:
            return Decision(subject, chosen, None, None, "nothing else is possible")
        other = trials.problem.plan("runner-up", runner_up.roles)
        text, prediction = str(other.layout[names[0]]), self._predicted(other)
        decision = self._decision(subject, chosen, text, prediction)
        return decision._replace(
            note=f"{decision.note}; best of {runner_up.tried} changes",
            fix=_pins(names, text, [unit.name for unit in self.plan.units]),
        )

    def _predicted(self, plan: Plan) -> Prediction:
        return simulate(plan, self.prices, self.operators).prediction

    def _misses(self, prediction: Prediction) -> int:
        return max(0, prediction.memory.total - self.memory)

    def _decision(self, subject: str, chosen: str, other: str, prediction: Prediction) -> Decision:
        more = prediction.step - self.step
        note = "no difference"
        if more:
            note = f"{format_seconds(Seconds(abs(more)))} {'longer' if more > 0 else 'shorter'}"
        if self._misses(prediction):
            note += f"; does not fit, by {format_bytes(self._misses(prediction))}"
        return Decision(subject, chosen, other, prediction.step, note, not self._misses(prediction))
