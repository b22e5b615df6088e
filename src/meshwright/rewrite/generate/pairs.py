"""Rule extraction from equivalence classes: proved rules that connect their components. Enters: a
catalogue and a prover. Leaves: rules.

A class whose elements smaller rules have joined into m components needs m - 1 rules more. A rule is
kept only if it is proved, and joins what it connects; what is not proved joins nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import msgspec

from meshwright.graph.notation import Definition
from meshwright.rewrite.generate.catalogue import Catalogue
from meshwright.rewrite.generate.graph_terms import rule_of
from meshwright.rewrite.generate.graphs import Names, renamed
from meshwright.rewrite.generate.parts import Lesser, merged
from meshwright.rewrite.generate.size_conditions import with_sizes
from meshwright.rewrite.generate.values import Store
from meshwright.rewrite.generate.verdicts import Prove
from meshwright.rewrite.language.terms import Plain, Rule, variables


def alike(count: int) -> Iterator[Names]:
    """Every way to call some of this many variables the same, numbered by first use.

    >>> list(alike(2))
    [(0, 0)]
    """
    ways: list[Names] = [()]
    for _ in range(count):
        ways = [(*way, name) for way in ways for name in range(len(set(way)) + 1)]
    return (way for way in ways if len(set(way)) < count)


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How many pairs of equal graphs of a size there were, and what became of them."""

    operators: int
    graphs: int
    elements: int
    """Graphs with names of variables told apart."""
    candidates: int
    """Pairs that connect all equal graphs: one less than there are graphs in each class."""
    pruned: int
    """Pairs that renaming, symmetry or smaller rules give."""
    rules: int
    unproved: int


def lesser(catalogue: Catalogue, store: Store) -> Iterator[Lesser]:
    """What rules have made of graphs: the first of their component, or themselves renamed."""
    for number in range(len(catalogue)):
        elements = catalogue.own_names(number)
        first = catalogue.root(elements[0])
        others = (
            [first]
            if first not in elements
            else [element for element in elements[1:] if catalogue.root(element) == first]
        )
        for other in others:
            yield _lesser(elements[0], other, catalogue, store)


def _lesser(one: int, other: int, catalogue: Catalogue, store: Store) -> Lesser:
    _, names = catalogue.graph(other)
    return Lesser(
        graph=catalogue.packed(one),
        outputs=_outputs(one, catalogue, store),
        other=catalogue.packed(other),
        names=names,
        other_outputs=_outputs(other, catalogue, store),
        guarded=catalogue.is_guarded(one),
    )


def _outputs(element: int, catalogue: Catalogue, store: Store) -> tuple[int, ...]:
    """The outputs of an element in the order of their digests, so that equal ones match."""
    return tuple(operand for _, operand in store.outputs(renamed(*catalogue.graph(element))))


class Connector:
    """Connects components by rules; knows which pairs were tried in vain."""

    def __init__(
        self, catalogue: Catalogue, store: Store, prove: Prove, known: Mapping[str, Definition]
    ) -> None:
        self.rules: list[Rule] = []
        self._catalogue = catalogue
        self._store = store
        self._prove = prove
        self._known = known
        self._failed: set[tuple[int, int]] = set()

    def connect(self, operators: int, progress: Callable[[int, int], None]) -> Tally:
        """Proves rules until every class is one component or has nothing left to try.

        `progress` is told how many classes are done, and of how many.
        """
        before = len(self.rules)
        candidates = unproved = 0
        classes = sorted(self._catalogue.classes(), key=self._order)
        for done, members in enumerate(classes, 1):
            heads = sorted({self._catalogue.root(member) for member in members})
            candidates += len(members) - 1
            if len(heads) > 1:
                unproved += self._class(heads)
                progress(done, len(classes))
        return Tally(
            operators=operators,
            graphs=len(self._catalogue),
            elements=self._catalogue.elements,
            candidates=candidates,
            pruned=candidates - len(self.rules) - unproved,
            rules=len(self.rules) - before,
            unproved=unproved,
        )

    def _class(self, heads: list[int]) -> int:
        """Joins the components of a class, smallest first; how many stay apart."""
        bases: list[int] = []
        for head in heads:
            if self._catalogue.root(head) != head:
                continue  # joined meanwhile, by a rule under another renaming
            if not any(self._connects(head, base) for base in bases):
                bases.append(head)
        return len(bases) - 1

    def _order(self, members: list[int]) -> tuple[int, int]:
        """Classes of more variables come first, since their rules give others."""
        return -len(self._catalogue.graph(members[0])[1]), members[0]

    def _specialise(self, one: int, other: int, *, guarded: bool) -> None:
        """Joins what two joined elements become when some of their variables are the same."""
        templates = self._catalogue.templates
        sides = [renamed(*self._catalogue.graph(element)) for element in (one, other)]
        for names in alike(len(self._catalogue.graph(one)[1])):
            ends = [self._catalogue.element(merged(side, names, templates)) for side in sides]
            if ends[0] is not None and ends[1] is not None:
                self._catalogue.join_equal(ends[0], ends[1], guarded=guarded)

    def _connects(self, later: int, earlier: int) -> bool:
        """Whether a rule between two elements is proved, by which they are then joined."""
        if (later, earlier) in self._failed:
            return False
        for rule in self._ways(later, earlier):
            if self._prove(rule):
                guarded = any(isinstance(condition, Plain) for condition in rule.conditions)
                self.rules.append(rule)
                self._catalogue.join(earlier, later, guarded=guarded)
                self._specialise(earlier, later, guarded=guarded)
                return True
        self._failed.add((later, earlier))
        return False

    def _ways(self, later: int, earlier: int) -> Iterator[Rule]:
        """Rules between two elements, what is wanted most first.

        From the later to the earlier one rather than back; for all sizes rather than for some; for
        all inputs rather than for those in one piece.
        """
        tried: set[Rule] = set()
        rules = self._rule(later, earlier), self._rule(earlier, later)
        for rule in chain(rules, (with_sizes(unsized, self._known) for unsized in rules)):
            plain = tuple(Plain(variable.name) for variable in variables(rule.source))
            whole = msgspec.structs.replace(rule, conditions=(*rule.conditions, *plain))
            for candidate in (rule, whole):
                if candidate not in tried:
                    tried.add(candidate)
                    yield candidate

    def _rule(self, source: int, target: int) -> Rule:
        """The rule between two elements, outputs in the order of the source."""
        catalogue = self._catalogue
        left, right = (renamed(*catalogue.graph(element)) for element in (source, target))
        matched = zip(
            _outputs(source, catalogue, self._store),
            _outputs(target, catalogue, self._store),
            strict=True,
        )
        ends = sorted(matched)
        return rule_of(
            f"g{len(self.rules) + 1:04d}",
            (left, [output for output, _ in ends]),
            (right, [output for _, output in ends]),
            catalogue.templates,
        )
