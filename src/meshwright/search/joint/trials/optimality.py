"""Optimality gap: a plan's step against the lower bound of all graphs that were looked at. Enters:
graphs that were looked at, a plan. Leaves: a lower bound and the optimality gap.

The bound of a plan is the least over all graphs that were looked at, with one micro-batch or as
many as the plan has. That of a graph is found once: a search asks for it again and again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meshwright.base.quantities import Seconds
from meshwright.bounds.lower_bound import lower_bound
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.search.joint.coarse.graph_context import GraphContext
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.simulate.collective_table import CollectivePrices

TIGHT = 0.99
"""A bound with so much of the step is near enough: nothing is spent on a nearer one."""


class Optimality:
    """The bounds of one question's graphs, whatever is fixed."""

    def __init__(
        self, question: PlanRequest, prices: CollectivePrices, operators: OperatorPricer
    ) -> None:
        self._question, self._prices, self._operators = question, prices, operators
        self._known: dict[tuple[int, int], tuple[OperatorGraph, float, float]] = {}
        """By graph and micro-batches: the graph, seconds, and how many were asked for."""

    def bound(self, best: CandidateEntry, contexts: Sequence[GraphContext]) -> float:
        """Seconds that no plan of these graphs is faster than; those of the plan at most."""
        micro = sorted({1, best.candidate.plan.options.micro_batches}, reverse=True)
        least = float(best.step)
        # The best graph's bound is likely to be the lowest, and none above it counts.
        for context in sorted(contexts, key=lambda other: other is not best.context):
            for count in micro:
                least = min(least, self._of(context, count, min(least, TIGHT * best.step)))
        return least

    def gap(self, best: CandidateEntry | None, contexts: Sequence[GraphContext]) -> float:
        """By how much a plan is longer than its bound, as a share; infinite if it does not fit."""
        if best is None or not best.candidate.fits(self._question.memory):
            return math.inf
        bound = self.bound(best, contexts)
        return best.step / bound - 1 if bound else math.inf

    def reached(
        self, best: CandidateEntry | None, contexts: Sequence[GraphContext], goal: float
    ) -> bool:
        """Whether a plan is as near to its bound as is wanted; asks for bounds only where those
        known leave it open.
        """
        question = self._question
        if (
            best is None
            or question.minimize == "memory"
            or not best.candidate.fits(question.memory)
        ):
            return False
        least = min((seconds for _, seconds, _ in self._known.values()), default=math.inf)
        if best.step > (1 + goal) * least:
            return False
        return self.gap(best, contexts) <= goal

    def _of(self, context: GraphContext, micro: int, wanted: float) -> float:
        graph = context.graph
        _, known, asked = self._known.get((id(graph), micro), (graph, 0.0, 0.0))
        if max(known, asked) < wanted:
            bound = lower_bound(
                graph,
                self._question.cluster,
                operators=self._operators,
                backend=self._prices.pricer.backend,
                optimizer=self._question.training.optimizer,
                micro_batches=(micro,),
                wanted=Seconds(wanted),
            )
            known = bound.seconds
            self._known[id(graph), micro] = graph, known, wanted
        return known
