"""User-supplied operators and rules, proved before a search uses them. Enters: paths. Leaves: a
`UserRules` for a search, or what is wrong with it in a sentence.

A rule counts only if it is proved: by its certificate or, where none is given, here and now.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.graph.families import BUILT_IN
from meshwright.graph.family import DEFINITION
from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Rule, nodes
from meshwright.rewrite.language.types import PARALLEL
from meshwright.rewrite.library import UserRules, library
from meshwright.rewrite.library.rule_files import read_certified, read_operators, read_rules
from meshwright.rewrite.verify.many import judge, with_proved_condition

SECONDS = 60.0
"""For each proof."""


def user_rules(
    graph: OperatorGraph,
    operators: str | Path | None = None,
    rules: str | Path | None = None,
    certificates: str | Path | None = None,
) -> UserRules:
    """The operators and rules of files, for a search over this graph."""
    definitions = {} if operators is None else read_operators(operators)
    if rules is None and certificates is not None:
        raise InputError("certificates are given without rules", "give the file of the rules too")
    known = {**DEFINITIONS, **definitions}
    proved = () if rules is None else proved_rules(rules, certificates, known)
    placed = with_kernels(definitions, graph)
    for rule in proved:
        _require_algebra(rule)
        _require_kernels(rule, placed)
    return UserRules(operators=tuple(placed.values()), rules=proved)


def proved_rules(
    file: str | Path, certificates: str | Path | None, known: Mapping[str, Definition]
) -> tuple[Rule, ...]:
    """The rules of a file, all of which are proved and have names that the library does not."""
    if certificates is not None:
        proved = read_certified(file, certificates, known)
    else:
        proved = _judged(file, known)
    taken = {rule.name for rule in library()}
    for rule in proved:
        if rule.name in taken:
            raise InputError(f"{file}: the library has a rule {rule.name!r} too", "rename yours")
    return proved


def _judged(file: str | Path, known: Mapping[str, Definition]) -> tuple[Rule, ...]:
    rule_file = read_rules(file, known)
    judged = judge(rule_file.rules, known, published=rule_file.published, seconds=SECONDS)
    if judged.stopped == "interrupted":
        raise KeyboardInterrupt
    for rule, verdict in judged.verdicts:
        if verdict.verdict != "proved":
            why = verdict.counterexample or verdict.reason
            raise InputError(
                f"{file}: rule {rule.name!r} is {verdict.verdict}: {why}",
                "correct it or leave it out; 'meshwright rules verify' tells of all",
            )
    return tuple(with_proved_condition(rule, verdict) for rule, verdict in judged.verdicts)


def with_kernels(
    definitions: Mapping[str, Definition], graph: OperatorGraph
) -> dict[str, Definition]:
    """Definitions that name no kernel with the one that the graph has for them, if it has."""
    met = {
        str(line): operator.kind
        for operator in graph.operators
        if (line := dict(operator.attributes).get(DEFINITION)) is not None and "." in operator.kind
    }
    return {
        name: msgspec.structs.replace(one, kernel=met[one.line].replace(".", "::"))
        if not one.kernel and one.line in met
        else one
        for name, one in definitions.items()
    }


def _require_algebra(rule: Rule) -> None:
    """Refuse a rule that lays out: a search decides layouts itself, by definitions."""
    for node in nodes((*rule.source, *rule.target)):
        if node.operator in PARALLEL:
            raise InputError(
                f"rule {rule.name!r} has the parallel operator {node.operator}, and a search cuts "
                "operators by their definitions",
                "leave the rule out; 'meshwright rules apply' applies it",
            )


def _require_kernels(rule: Rule, operators: Mapping[str, Definition]) -> None:
    """Refuse a rule that writes what nothing runs."""
    for node in nodes(rule.target):
        definition = operators.get(node.operator)
        if definition is not None and not definition.kernel and definition.name not in BUILT_IN:
            raise InputError(
                f"rule {rule.name!r} writes {definition.name!r}, of which nobody says what runs it",
                f"put a line 'kernel = package.module:function' below {definition.line!r}",
            )
