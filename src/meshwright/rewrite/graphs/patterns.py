"""Pattern compilation: rules as match plans, indexed by what an operator reads. Enters: rules.
Leaves: plans, found by what an operator reads.

A plan says how to find a rule from one operator, the anchor, which computes one of its outputs:
straight down from there, then for each further output up from a tensor that is bound already and
down again. A commutative operator gives one plan for each order of its operands. Outputs that
share no tensor are sought among operators beside each other: those that a common operator reads.
Tensors get slots in the order in which they are met; nothing is known here of a graph.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshwright.base.errors import InputError
from meshwright.graph.notation import Definition
from meshwright.rewrite.graphs.readings import Settings, normal
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Rule, Tensor, Term, Variable, nodes, variables
from meshwright.rewrite.language.types import DIMS

COMMUTATIVE = ("add", "mul")


class PatternOperator(NamedTuple):
    """An operator of a pattern: what has to have made the tensor in a slot."""

    slot: int
    operator: str
    output: int
    arity: int
    settings: Settings
    dims: tuple[int, ...]
    """Which settings are dims, for which a negative number counts from the end."""
    node: int
    """Number among the operators of the source."""


class Rung(NamedTuple):
    """One way up: an operator that reads the tensor at a position, and which output to follow."""

    operator: str
    position: int
    output: int


_Way = tuple[int, tuple[Rung, ...]]


class PatternOutput(NamedTuple):
    """One output of the source: where to begin, the way up to it, and what lies below it."""

    start: int | None
    """A slot; None for the anchor and for an output beside the others."""
    climb: tuple[Rung, ...]
    steps: tuple[PatternOperator, ...]
    equal: tuple[tuple[int, int], ...]
    """Slots that have to hold the same tensor."""


class MatchPlan(NamedTuple):
    """How to find a rule from one of its outputs."""

    rule: int
    anchor: int
    parts: tuple[PatternOutput, ...]
    terms: tuple[Tensor, ...]
    """Every tensor of the source: its variables first, then outputs of operators."""
    slots: tuple[int, ...]
    """Where each of these is bound."""
    outputs: tuple[int, ...]
    """Where each output of the rule is bound."""
    depth: int
    """Operators on the longest way down from the anchor."""


class RuleSet:
    """Rules with their plans; each is named once.

    Rules whose target reads tensors that the source does not bind, and rules that replace a bare
    tensor, fit everywhere: they have no plan.

    >>> from meshwright.rewrite.language.syntax import parse_rules
    >>> rules = RuleSet(parse_rules("fuse: relu(linear(x, w)) => linear_relu(x, w)"))
    >>> len(rules.plans("relu", ("linear",))), len(rules.plans("relu", ("relu",)))
    (1, 0)
    """

    def __init__(
        self, rules: Sequence[Rule], known: Mapping[str, Definition] = DEFINITIONS
    ) -> None:
        self.rules, self.known = tuple(rules), known
        self.numbers: dict[str, int] = {}
        """The place of each rule by its name."""
        self._by_root: dict[str, list[MatchPlan]] = {}
        self._by_reads: dict[tuple[str, tuple[str, ...]], tuple[MatchPlan, ...]] = {}
        for number, rule in enumerate(self.rules):
            if self.numbers.setdefault(rule.name, number) != number:
                raise InputError(f"two rules are called {rule.name!r}", "rename one")
            for plan in _plans(number, rule):
                self._by_root.setdefault(plan.parts[0].steps[0].operator, []).append(plan)
        every = [plan for plans in self._by_root.values() for plan in plans]
        self.depth = max((plan.depth for plan in every), default=0)
        """Operators on the longest way down in any rule."""
        self.beside = any(part.start is None for plan in every for part in plan.parts[1:])
        """Whether a rule has outputs that share no tensor."""

    def plans(self, operator: str, reads: tuple[str, ...]) -> tuple[MatchPlan, ...]:
        """Plans for an anchor that reads what these operators made ("" for any other tensor)."""
        key = (operator, reads)
        if key not in self._by_reads:
            plans = self._by_root.get(operator, [])
            self._by_reads[key] = tuple(plan for plan in plans if _may_fit(plan, reads))
        return self._by_reads[key]


def _may_fit(plan: MatchPlan, reads: tuple[str, ...]) -> bool:
    first, *below = plan.parts[0].steps
    wanted = {step.slot - 1: step.operator for step in below if step.slot <= first.arity}
    return first.arity == len(reads) and all(
        reads[at] == operator for at, operator in wanted.items()
    )


def _plans(number: int, rule: Rule) -> Iterator[MatchPlan]:
    if rule.free or not all(isinstance(term, Term) for term in rule.source):
        return
    terms = nodes(rule.source)
    turned = [node for node in terms if node.operator in COMMUTATIVE or _swaps(node)]
    for choice in itertools.product((False, True), repeat=len(turned)):
        swapped = frozenset(itertools.compress(turned, choice))
        for anchor in range(len(rule.source)):
            yield _Compiler(rule, terms, swapped).plan(number, anchor)


def _swaps(node: Term) -> bool:
    """Whether two dims that are swapped may be named in either order."""
    return node.operator == "transpose" and len(node.attributes) == 2


class _Compiler:
    """Gives slots to the tensors of one source, from one anchor, with these operators turned."""

    def __init__(self, rule: Rule, terms: tuple[Term, ...], swapped: frozenset[Term]) -> None:
        self._rule, self._swapped = rule, swapped
        self._number = {node: n for n, node in enumerate(terms)}
        self._slots: dict[Tensor, int] = {}
        self._visited: set[Term] = set()
        self._used = 0

    def plan(self, number: int, anchor: int) -> MatchPlan:
        """The plan from an anchor: outputs that share tensors with those before come first."""
        left = list(range(len(self._rule.source)))
        parts: list[PatternOutput] = []
        following: int | None = anchor
        while following is not None:
            left.remove(following)
            parts.append(self._part(following, first=not parts))
            joined = (other for other in left if self._way(self._rule.source[other]) is not None)
            following = next(joined, left[0] if left else None)
        terms = tensors_of(self._rule.source)
        return MatchPlan(
            rule=number,
            anchor=anchor,
            parts=tuple(parts),
            terms=terms,
            slots=tuple(self._slots[term] for term in terms),
            outputs=tuple(self._slots[term] for term in self._rule.source),
            depth=_depth(self._rule.source[anchor]),
        )

    def _part(self, output: int, *, first: bool) -> PatternOutput:
        term = self._rule.source[output]
        start, climb = (None, ()) if first else self._way(term) or (None, ())
        steps: list[PatternOperator] = []
        equal: list[tuple[int, int]] = []
        waiting = [(term, self._new_slots(1)[0])]
        while waiting:
            tensor, slot = waiting.pop(0)
            if tensor in self._slots:
                equal.append((self._slots[tensor], slot))
                continue
            self._slots[tensor] = slot
            if isinstance(tensor, Variable):
                continue
            steps.append(self._step(tensor, slot))
            if tensor.node not in self._visited:
                self._visited.add(tensor.node)
                operands = self._operands(tensor)
                waiting += zip(operands, self._new_slots(len(operands)), strict=True)
        return PatternOutput(start, climb, tuple(steps), tuple(equal))

    def _new_slots(self, count: int) -> range:
        self._used += count
        return range(self._used - count, self._used)

    def _step(self, term: Term, slot: int) -> PatternOperator:
        settings: Settings = term.attributes
        if term.node in self._swapped and _swaps(term):
            settings = settings[::-1]
        elif not _swaps(term):
            settings = normal(term.operator, settings, 0)
        return PatternOperator(
            slot=slot,
            operator=term.operator,
            output=term.output,
            arity=len(term.inputs),
            settings=settings,
            dims=DIMS.get(term.operator, ()),
            node=self._number[term.node],
        )

    def _operands(self, term: Term) -> tuple[Tensor, ...]:
        turned = term.node in self._swapped and term.operator in COMMUTATIVE
        return term.inputs[::-1] if turned else term.inputs

    def _way(self, term: Tensor) -> _Way | None:
        """The shortest way up to an output from a tensor that has a slot."""
        ways: list[_Way] = [(self._slots[term], ())] if term in self._slots else []
        ways += self._ways(term, ())
        return min(ways, key=lambda way: len(way[1]), default=None)

    def _ways(
        self, term: Tensor, above: tuple[Rung, ...]
    ) -> Iterator[tuple[int, tuple[Rung, ...]]]:
        if isinstance(term, Variable):
            return
        for position, operand in enumerate(self._operands(term)):
            climb = (Rung(term.operator, position, term.output), *above)
            if operand in self._slots:
                yield self._slots[operand], climb
            yield from self._ways(operand, climb)


def tensors_of(terms: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Every tensor once: variables, then what operators make."""
    outputs: dict[Tensor, None] = {}
    waiting = list(terms)
    while waiting:
        term = waiting.pop()
        if isinstance(term, Term) and term not in outputs:
            outputs[term] = None
            waiting += term.inputs
    return (*variables(terms), *outputs)


def _depth(term: Tensor) -> int:
    return 1 + max(map(_depth, term.inputs)) if isinstance(term, Term) else 0
