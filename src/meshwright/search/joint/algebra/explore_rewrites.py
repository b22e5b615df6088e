"""Cost-bounded rewrite exploration of a segment (as in TASO and Unity), with sleep sets.

Enters: a graph, rules, what a graph costs. Leaves: `Variant`s, each with the rules that lead to it.
With c(g)[i, o] the cost of graph g between layout i of what enters and layout o of what leaves,
    floor   = elementwise minimum of c over those kept
    best    = least entry of floor
    kept    : c(g)[i, o] < floor[i, o] for some i, o, by more than rounding       `_Search._judge`
    expanded: min c(g) <= alpha * best, the cheapest first                         `_Search.run`
as in TASO and Unity, but for a whole table of boundary layouts at once. A graph is looked at once,
whatever the rules that lead to it. Of rewrites that do not touch each other, which lead to the same
graph in any order, one order is followed, the better first: p is *asleep* in what q gives, as long
as it is there, if p alone gave something cheaper, or undid what was done last (after the sleep sets
of Godefroid, 1996). As different rewrites may lead to the same graph, some graphs can be missed;
who wants all of them is `thorough`.
Who weighs costs in several ways puts the tables side by side.
Layouts are decided elsewhere: `algebra` leaves out rules with parallel operators.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshwright.graph.canonical import Contents
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.language.terms import Setting, nodes
from meshwright.rewrite.language.types import PARALLEL
from meshwright.rewrite.library import UserRules, library

Costs = NDArray[np.float64]
"""[layouts of what enters, layouts of what leaves]; infinite where there is no way."""

Evaluate = Callable[[OperatorGraph], Costs]

Chain = tuple[Match, ...]

ALPHA = 1.05
"""How much dearer than the best a graph may be that others are made of."""

CANDIDATES = 200
"""Most graphs that are evaluated."""

ROUNDING = 1e-9
"""A share by which costs must differ to count as different."""

IN_CIRCLES = ("transpose-swapped", "linear-as-matmul", "matmul-as-linear")
"""Rules that change what an operator is called and, with transposes that cost nothing, lead on for
ever."""

Stopped = Literal["complete", "candidates", "enough"]


class Variant(NamedTuple):
    """A graph that computes the same."""

    graph: OperatorGraph
    costs: Costs
    chain: Chain
    """What was applied to the segment, in order; `replayed` applies it again."""


class Explored(NamedTuple):
    """What a search found, and how far it went."""

    variants: tuple[Variant, ...]
    """The graph as it was, then every other that is the cheapest for some boundary layouts."""
    candidates: int
    """Graphs that were evaluated."""
    stopped: Stopped


def algebra(excluded: Iterable[str] = (), added: UserRules | None = None) -> RuleSet:
    """The proved rules that make variants, without those whose names fit a pattern.

    >>> all(rule.name.startswith("linear") for rule in algebra(("[!l]*", "l[!i]*")).rules)
    True
    """
    patterns, user_rules = (*IN_CIRCLES, *excluded), added or UserRules()
    return RuleSet(
        tuple(
            rule
            for rule in (*library(), *user_rules.rules)
            if not any(node.operator in PARALLEL for node in nodes((*rule.source, *rule.target)))
            and not any(fnmatchcase(rule.name, pattern) for pattern in patterns)
        ),
        user_rules.known,
    )


def variants(
    graph: OperatorGraph,
    rules: RuleSet,
    evaluate: Evaluate,
    *,
    alpha: float = ALPHA,
    candidates: int = CANDIDATES,
    thorough: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> Explored:
    """Graphs that compute the same as one and cost less for some boundary layouts.

    `enough` is asked before every rewrite and ends the search; `thorough` tries all orders.

    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter w: float32[o=6, k=8]
    ... operator h: h: float32[n=4, o=6] = linear(x, w)
    ... operator y: y: float32[n=4, o=6] = relu(h)
    ... output y''')
    >>> explored = variants(graph, algebra(), lambda g: np.full((1, 1), len(g.operators)))
    >>> for variant in explored.variants:
    ...     print(variant.costs, *variant.chain)
    [[2.]]
    [[1.]] linear-relu-fuse at y: x = x, w = w
    """
    search = _Search(evaluate, alpha, candidates, enough)
    stopped = search.run(Matcher(graph, rules), thorough)
    return Explored(_cheapest(search.kept), search.evaluated, stopped)


def replayed(graph: OperatorGraph, rules: RuleSet, chain: Chain) -> OperatorGraph:
    """A graph with a chain applied to it."""
    matcher = Matcher(graph, rules)
    for match in chain:
        matcher = matcher.rewrite(match)
    return matcher.graph


class _Waiting(NamedTuple):
    """A graph that others may be made of, the cheapest and then the oldest first."""

    cost: float
    number: int
    content: int
    parent: int
    """The content of what it was made of."""
    matcher: Matcher
    chain: Chain
    asleep: frozenset[_Place]
    """Matches that a graph beside this one was made with, and what was asleep there."""


_Place = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...], tuple[tuple[str, Setting], ...]]
"""A match by its rule's name, its outputs and what was bound."""


class _Search:
    """What has been seen and kept so far."""

    def __init__(
        self, evaluate: Evaluate, alpha: float, candidates: int, enough: Callable[[], bool]
    ) -> None:
        self._evaluate, self._alpha = evaluate, alpha
        self._candidates, self._enough = candidates, enough
        self._contents, self._seen = Contents(), set[int]()
        self._queue: list[_Waiting] = []
        self._floor: Costs | None = None
        self.kept: list[Variant] = []
        self.evaluated = 0

    def run(self, matcher: Matcher, thorough: bool) -> Stopped:
        """Looks at graphs until there are none left, or there have been enough."""
        content = self._contents.number(matcher.graph)
        cost = self._look_at(content, matcher.graph, ())
        self._queue.append(_Waiting(cost, 0, content, content, matcher, (), frozenset()))
        while self._queue:
            first = heapq.heappop(self._queue)
            if first.cost > self._alpha * self._best:
                break
            if thorough:
                first = first._replace(asleep=frozenset())
            if stopped := self._expand(first):
                return stopped
        return "complete"

    def _expand(self, first: _Waiting) -> Stopped | None:
        """Looks at what one rewrite makes of a graph; why to stop, if there has been enough."""
        asleep, awake = _parted(first)
        children: list[tuple[_Place, _Waiting]] = []
        for place, match in awake:
            if self.evaluated >= self._candidates:
                return "candidates"
            if self._enough():
                return "enough"
            after, chain = first.matcher.rewrite(match), (*first.chain, match)
            content = self._contents.number(after.graph)
            if content in (first.content, first.parent):
                asleep.add(place)
            elif content not in self._seen:
                cost = self._look_at(content, after.graph, chain)
                number = self.evaluated
                child = _Waiting(cost, number, content, first.content, after, chain, frozenset())
                children.append((place, child))
        # The cheapest have the least asleep: from them all others are to be reached.
        for place, child in sorted(children, key=lambda pair: pair[1][:2]):
            if child.cost <= self._alpha * self._best:
                heapq.heappush(self._queue, child._replace(asleep=frozenset(asleep)))
            asleep.add(place)
        return None

    @property
    def _best(self) -> float:
        return np.inf if self._floor is None else float(self._floor.min(initial=np.inf))

    def _look_at(self, content: int, graph: OperatorGraph, chain: Chain) -> float:
        """The least cost of a graph that has not been seen."""
        self._seen.add(content)
        costs = np.asarray(self._evaluate(graph), dtype=np.float64)
        self.evaluated += 1
        self._judge(Variant(graph, costs, chain))
        return float(costs.min(initial=np.inf))

    def _judge(self, variant: Variant) -> None:
        if self._floor is None:
            self.kept.append(variant)
            self._floor = variant.costs
        elif np.any(variant.costs < self._floor * (1 - ROUNDING)):
            self.kept.append(variant)
            self._floor = np.minimum(self._floor, variant.costs)


def _parted(waiting: _Waiting) -> tuple[set[_Place], list[tuple[_Place, Match]]]:
    """Places that are asleep, and the matches at the others. What has gone does not sleep on."""
    matches = {
        (match.rule.name, match.outputs, match.tensors, match.settings): match
        for match in waiting.matcher.matches
    }
    asleep = {place for place in waiting.asleep if place in matches}
    return asleep, [(place, match) for place, match in matches.items() if place not in asleep]


def _cheapest(kept: list[Variant]) -> tuple[Variant, ...]:
    """The first, and those that nothing later or earlier beats everywhere."""
    tables = np.stack([variant.costs for variant in kept])
    least = tables.min(axis=0)
    # Where nothing can be paid, nobody is the cheapest.
    first = np.where(np.isfinite(least), (tables <= least / (1 - ROUNDING)).argmax(axis=0), 0)
    return tuple(variant for number, variant in enumerate(kept) if number in {0, *first.flat})
