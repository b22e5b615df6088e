"""Sequence of substitutions applied to a graph, with a record of each. Enters: a graph, rules with
the places where to apply them. Leaves: what each did, and the graph after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import counted
from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.instantiate import Parameters
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Condition, Rule, symbols


class RewriteStep(msgspec.Struct, frozen=True):
    """A match that was applied, and the graph after it; lines are operators in their text form."""

    match: Match
    graph: OperatorGraph
    gone: tuple[str, ...]
    came: tuple[str, ...]


def apply_chain(
    graph: OperatorGraph,
    steps: Sequence[tuple[Rule, int]],
    parameters: Parameters,
    known: Mapping[str, Definition] = DEFINITIONS,
) -> Iterator[RewriteStep]:
    """Each rule at one of its places, counted from 1, in the graph that the one before it left.

    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4]
    ... operator y: y: float32[n=4] = relu(x)
    ... output y''')
    >>> rule = parse_rule("cut: relu(x) => combine[0, d](relu(partition[0, d](x)))")
    >>> [step] = apply_chain(graph, [(rule, 1)], {"d": (2,)})
    >>> print(step.match, len(step.gone), len(step.came))
    cut at y: x = x, d = 2 1 3
    """
    for rule, place in steps:
        matcher = Matcher(graph, RuleSet((rule,), known), parameters)
        match = _at(rule, matcher.matches, place, parameters)
        after = matcher.rewrite(match).graph
        before, now = str(graph).splitlines(), str(after).splitlines()
        yield RewriteStep(
            match,
            after,
            gone=tuple(line for line in before if line not in set(now)),
            came=tuple(line for line in now if line not in set(before)),
        )
        graph = after


def _at(rule: Rule, matches: Sequence[Match], place: int, parameters: Parameters) -> Match:
    if 1 <= place <= len(matches):
        return matches[place - 1]
    if matches:
        raise InputError(
            f"rule {rule.name!r} fits at {counted(len(matches), 'place')}, not at place {place}",
            f"give 1 to {len(matches)}",
        )
    unset = [name for name in free_symbols(rule) if name not in parameters]
    remedy = f"set {', '.join(unset)}, as {unset[0]}=2" if unset else "apply another rule"
    raise InputError(f"rule {rule.name!r} fits nowhere", remedy)


def free_symbols(rule: Rule) -> tuple[str, ...]:
    """Symbols whose values the source does not bind and no condition tells: degrees, as a rule.

    >>> from meshwright.rewrite.language.syntax import parse_rule
    >>> free_symbols(parse_rule("r: relu(x) => combine[0, d](relu(partition[0, d](x)))"))
    ('d',)
    """
    source = Rule(name="", source=rule.source, target=())
    equated = {c.left for c in rule.conditions if isinstance(c, Condition) and c.relation == "="}
    bound = {*symbols(source), *equated}
    return tuple(dict.fromkeys(name for name in symbols(rule) if name not in bound))
