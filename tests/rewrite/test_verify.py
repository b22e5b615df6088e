"""Nothing false is proved, everything proved runs, and the published rules are all judged."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from meshwright.rewrite.language.published import parse_published
from meshwright.rewrite.language.syntax import parse_rule
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.library import library, shipped_certificates, shipped_rules
from meshwright.rewrite.verify.many import certificates, judge
from meshwright.rewrite.verify.proof_verdict import (
    Counterexample,
    Verdict,
    try_instance,
    verify,
    verify_published,
)
from meshwright.rewrite.verify.prove import Open, prove
from meshwright.rewrite.verify.sample import instances
from support.mutations import mutants

PUBLISHED = Path(__file__).parent / "data" / "unity_rules_320.json"
LONG = 600.0
"""Seconds that no proof here needs, so that a busy machine changes nothing."""

MUTANTS = int(os.environ.get("RULE_MUTANTS", "150"))
RUNS = int(os.environ.get("RULE_RUNS", "600"))


@cache
def published() -> list[tuple[Rule, Verdict]]:
    """The rules of Unity, each with its verdict, which takes a minute."""
    rules = parse_published(PUBLISHED.read_text())
    return [(rule, verify_published(rule, seconds=LONG)) for rule in rules]


def test_the_published_rules_are_proved_or_refuted() -> None:
    verdicts = [verdict for _, verdict in published()]
    tally = Counter((verdict.verdict, bool(verdict.condition)) for verdict in verdicts)
    assert tally == {("proved", False): 220, ("proved", True): 32, ("refuted", False): 68}
    assert all(verdict.counterexample for verdict in verdicts if verdict.verdict == "refuted")


def test_no_mutant_that_fails_is_proved() -> None:
    """Mutants whose sides were seen to differ; those that happen to be true do not count."""
    wrong = filter(_fails, mutants(shipped_rules(), seed=5))
    for rule in itertools.islice(wrong, MUTANTS):
        proof = prove(rule, seconds=3.0)
        assert isinstance(proof, Open), rule


def test_no_published_mutant_that_fails_is_proved() -> None:
    true = [
        rule
        for rule, verdict in published()
        if verdict.verdict == "proved" and not verdict.condition
    ]
    for rule in itertools.islice(filter(_fails, mutants(true, seed=6)), MUTANTS):
        assert isinstance(prove(rule, seconds=3.0), Open), rule


def _fails(rule: Rule) -> bool:
    return any(
        isinstance(try_instance(rule, instance), Counterexample)
        for instance in itertools.islice(instances(rule, 1, 400), 8)
    )


def test_no_proved_rule_is_refuted_by_running_it() -> None:
    rules = library()
    share = -(-RUNS // len(rules))
    done = 0
    for number, rule in enumerate(rules):
        for instance in itertools.islice(instances(rule, 1000 + number, 4000), share):
            outcome = try_instance(rule, instance)
            assert not isinstance(outcome, Counterexample), f"{rule}: {outcome}"
            done += 1
    assert done >= RUNS // 2


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        (
            "r: reduce[copies, d](replicate[d](x)) => x",
            "x [4, 6, 2, 12], d = 2: output 0[0, 0, 0, 0] is 2 on the left, 1 on the right",
        ),
        (
            "r: linear(x, w) => linear(w, x)",
            "x [12, 12], w [12, 12]: output 0[0, 1] is 6 on the left, -13 on the right",
        ),
        (
            "r: relu(reduce[d](x)) => reduce[d](relu(x))",
            "x [2/2, 2, 2/2 sums=2], d = 2: output 0[0, 0, 0] is 1 on the left, 3 on the right",
        ),
        (
            "r: linear(x, w) => linear(partition[-1, d](x), partition[-1, d](w))",
            "x [12, 12, 12], w [12, 12], d = 2: output 0 is [12, 12, 12] on the left, "
            "[12, 12, 12 sums=2] on the right",
        ),
        (
            "r: relu(x) => partition[0, d](relu(x))",
            "x [12, 12, 12], d = 3: output 0 is [12, 12, 12] on the left, [12/3, 12, 12] on the "
            "right",
        ),
    ],
)
def test_a_wrong_rule_is_refuted(text: str, difference: str) -> None:
    verdict = verify(parse_rule(text))
    assert verdict.verdict == "refuted"
    assert str(verdict.counterexample) == difference


def test_every_rule_of_the_library_is_proved_anew() -> None:
    judged = judge(shipped_rules(), seconds=LONG, processes=2)
    assert certificates(judged) == shipped_certificates()


@pytest.mark.parametrize(
    "text",
    [
        "r: softmax(x) => combine[-1, d](softmax(partition[-1, d](x)))",
        "r: embedding(t, w) => combine[-1, d](embedding(partition[-2, d](t), partition[-2, d](w)))",
    ],
)
def test_a_rule_for_degree_one_only_is_no_rule(text: str) -> None:
    """Both sides would agree wherever both can be taken: where nothing is cut."""
    assert isinstance(prove(parse_rule(text)), Open)
    assert verify(parse_rule(text)).verdict == "refuted"


def test_time_out_is_never_a_proof() -> None:
    rule = next(rule for rule in shipped_rules() if rule.name == "layer-norm-cut-i")
    verdict = verify(rule, seconds=0.0)
    assert (verdict.verdict, verdict.reason) == ("unproved", "no proof within 0 s")


def test_a_rule_that_holds_for_plain_inputs_only_says_so() -> None:
    text = "r: reduce[0, 2](partition[0, 2](x)) => reduce[0, 2](x)"
    assert verify(parse_rule(text)).verdict == "refuted"
    assert verify(parse_rule(f"{text} if plain(x)")).verdict == "proved"
    assert verify_published(parse_rule(text)).condition == "plain(x)"
