"""Batch verification of rules in several processes. Enters: rules. Leaves: what was judged, in
order.

A verdict is a function of its rule, so the number of processes changes nothing. An interrupt ends
the work with what has been judged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Literal

import msgspec

from meshwright.base.processes import spread
from meshwright.graph.notation import Definition, parse_definition
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.published import for_plain_inputs
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.library import Certificate, digest
from meshwright.rewrite.verify.proof_verdict import (
    Verdict,
    verify,
    verify_published,
)

Progress = Callable[[Verdict], None]
"""Told of each verdict as it is found."""


class JudgedRules(msgspec.Struct, frozen=True):
    """Rules with their verdicts, in the order in which they were given; all of them if complete."""

    verdicts: tuple[tuple[Rule, Verdict], ...]
    stopped: Literal["complete", "interrupted"] = "complete"

    @property
    def tally(self) -> dict[str, int]:
        """How many rules got which verdict."""
        verdicts = [verdict.verdict for _, verdict in self.verdicts]
        return {name: verdicts.count(name) for name in ("proved", "refuted", "unproved")}

    @property
    def conditional(self) -> int:
        """How many of the proved rules need a condition that they do not state."""
        return sum(bool(verdict.condition) for _, verdict in self.verdicts)


def judge(
    rules: Sequence[Rule],
    known: Mapping[str, Definition] = DEFINITIONS,
    *,
    published: bool = False,
    seconds: float = 30.0,
    processes: int = 1,
    progress: Progress | None = None,
) -> JudgedRules:
    """The verdicts on rules; a KeyboardInterrupt ends the work with those there are.

    >>> from meshwright.rewrite.language.syntax import parse_rules
    >>> judge(parse_rules("r: neg(neg(x)) => x")).tally
    {'proved': 1, 'refuted': 0, 'unproved': 0}
    """
    report = progress or (lambda verdict: None)
    lines = tuple(
        definition.line for name, definition in known.items() if DEFINITIONS.get(name) != definition
    )
    work = partial(_judged, lines=lines, published=published, seconds=seconds)
    judged: dict[int, Verdict] = {}
    stopped: Literal["complete", "interrupted"] = "complete"
    try:
        with closing(_verdicts(work, rules, processes)) as verdicts:
            for number, verdict in verdicts:
                judged[number] = verdict
                report(verdict)
    except KeyboardInterrupt:
        stopped = "interrupted"
    return JudgedRules(tuple((rules[n], judged[n]) for n in sorted(judged)), stopped)


def certificates(
    judged: JudgedRules, known: Mapping[str, Definition] = DEFINITIONS
) -> tuple[Certificate, ...]:
    """A certificate for every rule that was proved, as it was proved."""
    return tuple(
        Certificate(rule.name, digest(with_proved_condition(rule, verdict), known), verdict.worlds)
        for rule, verdict in judged.verdicts
        if verdict.verdict == "proved"
    )


def with_proved_condition(rule: Rule, verdict: Verdict) -> Rule:
    """A rule with the condition under which it was proved."""
    return for_plain_inputs(rule) if verdict.condition else rule


def _verdicts(
    work: Callable[[tuple[int, Rule]], tuple[int, Verdict]], rules: Sequence[Rule], processes: int
) -> Generator[tuple[int, Verdict]]:
    """Numbers of rules with their verdicts, in one process or in several."""
    if min(processes, len(rules)) <= 1:
        yield from map(work, enumerate(rules))
    else:
        yield from spread(work, enumerate(rules), processes)


def _judged(
    numbered: tuple[int, Rule], *, lines: tuple[str, ...], published: bool, seconds: float
) -> tuple[int, Verdict]:
    number, rule = numbered
    definitions = {line: parse_definition(line) for line in lines}
    known = {**DEFINITIONS, **{one.name: one for one in definitions.values()}}
    judge_one = verify_published if published else verify
    return number, judge_one(rule, known, seconds)
