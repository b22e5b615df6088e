"""Many rules are judged in order, in any number of processes; an interrupt keeps what is there."""

from __future__ import annotations

import pytest

from meshwright.graph.notation import parse_definitions
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.syntax import parse_rules
from meshwright.rewrite.library import certified
from meshwright.rewrite.verify.many import certificates, judge, with_proved_condition
from meshwright.rewrite.verify.proof_verdict import Verdict, verify, verify_published

RULES = parse_rules("""
slow: linear(x, w) => combine[-1, d](linear(replicate[d](x), partition[-2, d](w)))
back: neg(neg(x)) => x
wrong: reduce[copies, d](replicate[d](x)) => x
whole: reduce[0, 2](partition[0, 2](x)) => reduce[0, 2](x) if rank(x) = 2
""")


@pytest.mark.parametrize("processes", [1, 2])
def test_verdicts_are_those_of_one_after_the_other(processes: int) -> None:
    judged = judge(RULES, processes=processes)
    assert judged.stopped == "complete"
    assert judged.verdicts == tuple((rule, verify(rule)) for rule in RULES)
    published = judge(RULES, published=True, processes=processes)
    assert published.verdicts == tuple((rule, verify_published(rule)) for rule in RULES)
    assert (judged.conditional, published.conditional) == (0, 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupt_keeps_what_was_judged(processes: int) -> None:
    names: list[str] = []

    def stop(verdict: Verdict) -> None:
        names.append(verdict.name)
        if len(names) == 2:
            raise KeyboardInterrupt

    judged = judge(RULES, processes=processes, progress=stop)
    assert judged.stopped == "interrupted"
    assert sorted(verdict.name for _, verdict in judged.verdicts) == sorted(names)
    assert [rule.name for rule, _ in judged.verdicts] == [
        rule.name for rule in RULES if rule.name in names
    ]


def test_certificates_are_for_rules_as_they_were_proved() -> None:
    judged = judge(RULES, published=True)
    proofs = certificates(judged)
    assert [proof.rule for proof in proofs] == ["slow", "back", "whole"]
    proved = [
        with_proved_condition(*judgement)
        for judgement in judged.verdicts
        if judgement[1].verdict == "proved"
    ]
    assert certified(proved, proofs) == tuple(proved)
    with pytest.raises(ValueError, match="rule 'whole' has no certificate"):
        certified(RULES[-1:], proofs)


def test_operators_of_ones_own_reach_all_processes() -> None:
    definitions = parse_definitions("twice(x)[i..] = 2 * x[i..]")
    rules = parse_rules("a: add(x, x) => twice(x)\nb: twice(neg(x)) => neg(twice(x))")
    judged = judge(rules, {**DEFINITIONS, **definitions}, processes=2)
    assert judged.tally == {"proved": 2, "refuted": 0, "unproved": 0}
