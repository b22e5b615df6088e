"""JSON documents of the verb `rules`. Enters: sections, verdicts. Leaves: documents for
`--json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from meshwright.graph.notation import Definition
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.report.documents import Document
from meshwright.report.text.rules import describe_conditions, meanings
from meshwright.rewrite.generate.run import GeneratedRules
from meshwright.rewrite.graphs.chain import RewriteStep
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.library import Certificate, RuleSection
from meshwright.rewrite.verify.many import JudgedRules
from meshwright.rewrite.verify.proof_verdict import Counterexample


def library_document(
    sections: Sequence[tuple[RuleSection, Sequence[Rule]]], certificates: Mapping[str, Certificate]
) -> Document:
    """`rules list --json`."""
    rules = [
        {
            "name": rule.name,
            "file": section.file,
            "section": section.title,
            "text": str(rule),
            "cases": certificates[rule.name].cases,
            "digest": certificates[rule.name].digest,
        }
        for section, section_rules in sections
        for rule in section_rules
    ]
    return {"count": len(rules), "rules": rules}


def rule_document(
    rule: Rule, certificate: Certificate | None, known: Mapping[str, Definition]
) -> Document:
    """`rules show --json`."""
    return {
        "name": rule.name,
        "text": str(rule),
        "source": [str(term) for term in rule.source],
        "target": [str(term) for term in rule.target],
        "conditions": list(describe_conditions(rule)),
        "certificate": None if certificate is None else msgspec.to_builtins(certificate),
        "operators": meanings(rule, known),
    }


def verdicts_document(judged: JudgedRules) -> Document:
    """`rules verify --json`."""
    return {
        "stopped": judged.stopped,
        "tally": judged.tally,
        "rules": [
            {
                "name": verdict.name,
                "text": str(rule),
                "verdict": verdict.verdict,
                "reason": verdict.reason,
                "condition": verdict.condition or None,
                "cases": verdict.worlds,
                "counterexample": _counterexample(verdict.counterexample),
            }
            for rule, verdict in judged.verdicts
        ],
    }


def _counterexample(counterexample: Counterexample | None) -> Document | None:
    if counterexample is None:
        return None
    return {
        "tensors": {name: msgspec.to_builtins(shape) for name, shape in counterexample.tensors},
        "attributes": dict(counterexample.attributes),
        "seed": counterexample.seed,
        "difference": counterexample.difference,
    }


def forms_document(rules: Sequence[Rule]) -> Document:
    """`rules generate --forms --json`."""
    return {"rules": [{"name": rule.name, "text": str(rule)} for rule in rules]}


def generated_document(
    rules: Sequence[Rule], generated: GeneratedRules, seconds: float
) -> Document:
    """`rules generate --json`; the time is measured."""
    return {
        **forms_document(rules),
        "stopped": generated.stopped,
        "sizes": [msgspec.to_builtins(tally) for tally in generated.tallies],
        "measured_s": seconds,
    }


def matches_document(graph: OperatorGraph, matches: Sequence[Match]) -> Document:
    """`rules apply --list --json`."""
    return {
        "graph": graph.name,
        "operators": len(graph.operators),
        "matches": [_match(match) for match in matches],
    }


def applied_document(applied: Sequence[RewriteStep]) -> Document:
    """`rules apply --json`."""
    graph = applied[-1].graph
    return {
        "graph": graph.name,
        "operators": len(graph.operators),
        "applied": [
            {**_match(step.match), "gone": list(step.gone), "came": list(step.came)}
            for step in applied
        ],
    }


def _match(match: Match) -> Document:
    return {
        "rule": match.rule.name,
        "outputs": list(match.outputs),
        "tensors": dict(match.tensors),
        "settings": dict(match.settings),
    }
