"""Candidate pool of a search, with its Pareto front of time and memory. Enters: candidates, each
with the context that it comes from. Leaves: the best of them, all in order, the front of time and
memory.

What has been simulated is known by its context, options and roles, so that nobody does it twice.
Nothing is known here of how candidates are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from meshwright.base.quantities import Seconds
from meshwright.plan.options import Options
from meshwright.search.candidate import Candidate, pareto_front
from meshwright.search.joint.coarse.graph_context import CoarseSolution, GraphContext
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.request.violations import violations
from meshwright.sharding.reshard import Codes


class CandidateEntry(NamedTuple):
    """A candidate, and where it comes from."""

    candidate: Candidate
    context: GraphContext
    roles: Codes
    solution: CoarseSolution | None

    @property
    def step(self) -> Seconds:
        """That is predicted."""
        return self.candidate.prediction.step


class CandidatePool:
    """What has been simulated so far, and keeps to the constraints."""

    def __init__(self, question: PlanRequest) -> None:
        self._question = question
        self._entries: list[CandidateEntry] = []
        self._seen: dict[object, CandidateEntry | None] = {}
        self.best: CandidateEntry | None = None
        """The best candidate, the first of equal ones; None if there is none yet."""

    @property
    def simulated(self) -> int:
        """How many plans there have been."""
        return len(self._seen)

    def seen(self, context: GraphContext, options: Options, roles: Codes) -> bool:
        """Whether a plan has been simulated."""
        return (id(context), options, roles.tobytes()) in self._seen

    def known(self, context: GraphContext, options: Options, roles: Codes) -> CandidateEntry | None:
        """The candidate of a plan; None if it has not been simulated, or breaks a constraint."""
        return self._seen.get((id(context), options, roles.tobytes()))

    def add(
        self, candidate: Candidate, context: GraphContext, solution: CoarseSolution | None
    ) -> CandidateEntry | None:
        """Keep a candidate; None if it breaks a constraint."""
        plan = candidate.plan
        roles = context.codes([plan.layout[unit.name] for unit in context.units])
        key = id(context), plan.options, roles.tobytes()
        if violations(plan, self._question.constraints):
            self._seen[key] = None
            return None
        entry = self._seen[key] = CandidateEntry(candidate, context, roles, solution)
        self._entries.append(entry)
        if self.best is None or self.score(entry) < self.score(self.best):
            self.best = entry
        return entry

    def score(self, entry: CandidateEntry) -> tuple[bool, float, float]:
        """What is smaller is better."""
        step, held = entry.step, entry.candidate.prediction.memory.total
        if self._question.minimize == "memory":
            return False, held, step
        if entry.candidate.fits(self._question.memory):
            return False, step, held
        return True, held, step

    def ranked(self) -> list[CandidateEntry]:
        """All, the best first."""
        return sorted(self._entries, key=self.score)

    def leaders(
        self, among: Callable[[CandidateEntry], bool] = lambda _: True
    ) -> list[CandidateEntry]:
        """The best plan, of all or among some; if it does not fit, the best that has a coarse
        solution and the best without.
        """
        ranked = list(filter(among, self.ranked()))
        if not ranked or ranked[0].candidate.fits(self._question.memory):
            return ranked[:1]
        both = (
            [entry for entry in ranked if (entry.solution is None) == bare]
            for bare in (True, False)
        )
        return [entry for ranking in both for entry in ranking[:1]]

    def front(self) -> tuple[Candidate, ...]:
        """Those that no other beats in both time and memory, the fastest first."""
        return pareto_front(entry.candidate for entry in self._entries)
