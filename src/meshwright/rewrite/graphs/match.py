"""Incremental pattern matching: all matches of a rule set, kept up to date under rewrites.

Enters: an `OperatorGraph`, a `RuleSet`, values for what only targets have. Leaves: `Match`es, and
after `rewrite` those of the graph that it gives. A match that lasts contains no operator that has
changed; a new one contains one, so it is found from the operators above those that changed. Which
matches would make a circle is asked last, since a change far away may decide it.

Finite by decree: a rule that replaces a bare tensor, or reads one that its source does not bind,
is not matched; outputs that share no tensor are sought among operators that a common operator
reads; a symbol never stands for steps, copies or sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.apply import Change, replace
from meshwright.rewrite.graphs.instantiate import Parameters
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.places import ApplicableMatch, BlueprintCache, Key, Match
from meshwright.rewrite.graphs.site import Ancestry, Site, site_of
from meshwright.rewrite.graphs.tensor_names import naming
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.types import Type

_Group = Mapping[Key, ApplicableMatch]


class _State(NamedTuple):
    """Matches by the operator that makes their first output."""

    site: Site
    groups: Mapping[str, _Group]
    touching: Mapping[str, frozenset[str]]
    """For each operator those under which a match stands, or stood, that contains it."""


class Matcher:
    """A graph with all matches of a rule set. A value: rewriting gives another.

    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.rewrite.language.syntax import parse_rules
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, k=8]
    ... parameter w: float32[o=6, k=8]
    ... operator h: h: float32[n=4, o=6] = linear(x, w)
    ... operator y: y: float32[n=4, o=6] = relu(h)
    ... output y''')
    >>> rules = RuleSet(parse_rules("fuse: relu(linear(x, w)) => linear_relu(x, w)"))
    >>> matcher = Matcher(graph, rules)
    >>> print(matcher.matches[0])
    fuse at y: x = x, w = w
    >>> print(matcher.rewrite(matcher.matches[0]).graph.operators[0].kind)
    linear_relu
    """

    def __init__(
        self, graph: OperatorGraph, rules: RuleSet, parameters: Parameters | None = None
    ) -> None:
        """All matches from scratch; `parameters` are values for symbols that only targets have."""
        self._memory = BlueprintCache(rules, parameters or {})
        site = site_of(graph, rules.known)
        matches = [
            entry
            for name, node in site.nodes.items()
            for plan in rules.plans(node.term, site.reads(node))
            if plan.anchor == 0
            for entry in self._memory.found(site, plan, name)
        ]
        self._state = _merged(_State(site, {}, {}), matches)

    @classmethod
    def _at(cls, memory: BlueprintCache, state: _State) -> Matcher:
        matcher = cls.__new__(cls)
        matcher._memory, matcher._state = memory, state
        return matcher

    @property
    def types(self) -> Mapping[str, Type]:
        """How every tensor lies in pieces."""
        return self._state.site.types

    @cached_property
    def graph(self) -> OperatorGraph:
        """The graph as it stands."""
        return self._state.site.graph

    @cached_property
    def matches(self) -> tuple[Match, ...]:
        """All places where a rule fits, in the order of the operators and of the rules."""
        return tuple(applicable.match for applicable in self._applicable.values())

    @cached_property
    def _applicable(self) -> dict[Key, ApplicableMatch]:
        ancestry = Ancestry(self._state.site)
        return {
            key: match
            for name in self._state.site.nodes
            for key, match in self._state.groups.get(name, {}).items()
            if len(key[1]) == 1 or not ancestry.depends(match.given, self._makers(key[1]))
        }

    def _makers(self, tensors: Iterable[str]) -> list[str]:
        return [self._state.site.makers[name][0] for name in tensors]

    def rewrite(self, match: Match) -> Matcher:
        """The graph with one match applied, and its matches."""
        number = self._memory.rules.numbers.get(match.rule.name, -1)
        tensors = tuple(name for _, name in match.tensors)
        key = (number, match.outputs, tensors, match.settings)
        if key not in self._applicable:
            raise InputError(f"{match} is no match of graph {self._state.site.frame.name!r}",
                             "take one of its matches")  # fmt: skip
        applicable, site = self._applicable[key], self._state.site
        named = naming(site, applicable.blueprint, applicable.given, match.outputs)
        assert named is not None, "a match was refused when it was found"
        known = self._memory.rules.known
        after, change = replace(site, applicable.blueprint, named, match.outputs, known)
        return self._at(self._memory, _updated(self._memory, self._state, after, change))


def apply(
    graph: OperatorGraph, match: Match, known: Mapping[str, Definition] = DEFINITIONS
) -> OperatorGraph:
    """A graph with one match applied, for those who keep no matcher."""
    values = {name: (value,) for name, value in match.settings if isinstance(value, int)}
    return Matcher(graph, RuleSet((match.rule,), known), values).rewrite(match).graph


def _merged(state: _State, matches: Iterable[tuple[Key, ApplicableMatch]]) -> _State:
    """A state with further matches, each group in order."""
    new: dict[str, dict[Key, ApplicableMatch]] = {}
    touching = dict(state.touching)
    for key, applicable in matches:
        anchor = state.site.makers[applicable.match.outputs[0]][0]
        new.setdefault(anchor, {})[key] = applicable
        for name in applicable.match.operators:
            touching[name] = touching.get(name, frozenset()) | {anchor}
    groups = dict(state.groups)
    for anchor, more in new.items():
        both = {**groups.get(anchor, {}), **more}
        groups[anchor] = {key: both[key] for key in sorted(both, key=_rank)}
    return _State(state.site, groups, touching)


def _rank(key: Key) -> tuple[int, tuple[str, ...], tuple[str, ...], str]:
    return *key[:3], str(key[3])


def _updated(memory: BlueprintCache, before: _State, site: Site, change: Change) -> _State:
    """The state after a rewrite: matches of what has changed are dropped and sought anew."""
    rules = memory.rules
    disturbed = change.came | change.gone
    if rules.beside:
        disturbed |= _beneath(before.site, disturbed) | _beneath(site, disturbed)
    groups, touching = dict(before.groups), dict(before.touching)
    for anchor in frozenset().union(*(touching.get(name, ()) for name in disturbed)):
        left = {key: applicable for key, applicable in groups.get(anchor, {}).items()
                if disturbed.isdisjoint(applicable.match.operators)}  # fmt: skip
        groups[anchor] = left
    for name in change.gone:
        groups.pop(name, None)
        touching.pop(name, None)
    matches = (
        (key, candidate)
        for name, level in _above(site, disturbed, rules.depth).items()
        for plan in rules.plans(site.nodes[name].term, site.reads(site.nodes[name]))
        if plan.depth > level
        for key, candidate in memory.found(site, plan, name)
        if not disturbed.isdisjoint(candidate.match.operators)
    )
    return _merged(_State(site, groups, touching), matches)


def _beneath(site: Site, names: Iterable[str]) -> frozenset[str]:
    """Operators that made what these read: their outputs have come, or are no longer, beside."""
    read = (
        operand for name in names if name in site.nodes for operand in site.nodes[name].operands
    )
    return frozenset(site.makers[tensor][0] for tensor in read if tensor in site.makers)


def _above(site: Site, names: Iterable[str], depth: int) -> dict[str, int]:
    """Operators that depend on these directly, through one other and so on, with how far."""
    levels = {name: 0 for name in names if name in site.nodes}
    last = list(levels)
    for level in range(1, depth):
        tensors = (tensor.name for name in last for tensor in site.nodes[name].operator.outputs)
        readers = {reader for tensor in tensors for reader in site.readers.get(tensor, ())}
        last = [name for name in readers if name not in levels]
        levels |= dict.fromkeys(last, level)
    return levels
