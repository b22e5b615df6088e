"""The generator as a whole: known rules, pruning, processes, resuming."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.base.errors import InputError
from meshwright.graph.notation import parse_definitions
from meshwright.rewrite.generate.operator_templates import (
    UNITY,
    Templates,
    defined,
    joins,
    parallel,
    splits,
)
from meshwright.rewrite.generate.run import GeneratedRules, generate
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.published import parse_published
from meshwright.rewrite.language.syntax import lines, parse_rule, parse_rules
from meshwright.rewrite.language.terms import Rule, nodes
from meshwright.rewrite.verify.proof_verdict import verify
from rule_trial import agrees

PUBLISHED = Path(__file__).parent / "data" / "unity_rules_320.json"

FEW: Templates = tuple(map(defined, ("relu", "add", "linear")))
"""Few, but two chunks of graphs of three operators."""

SMALL: Templates = (*map(defined, ("relu", "add")), *parallel((0,)), *joins((1,)), *splits((1,)))


@pytest.fixture(scope="module")
def small() -> GeneratedRules:
    return generate(SMALL, 3, agrees)


@pytest.fixture(scope="module")
def algebra() -> GeneratedRules:
    return generate(FEW, 3, agrees)


def test_associativity_is_the_only_rule_of_sums() -> None:
    generated = generate((defined("add"),), 2, agrees)
    assert lines(generated.rules) == (
        "g0001: add(b, add(a, c)) => add(c, add(a, b))"
        " if rank(a) = 2 and rank(c) = 2 and rank(b) = 2\n"
    )


def test_all_rules_of_pieces_of_one_dim() -> None:
    generated = generate((defined("relu"), *parallel((0,))), 2, agrees)
    assert [str(rule).partition(": ")[2].partition(" if")[0] for rule in generated.rules] == [
        "combine[0, 2](partition[0, 2](a)) => a",
        "reduce[0, 2](partition[0, 2](a)) => reduce[0, 2](a)",
        "relu(partition[0, 2](a)) => partition[0, 2](relu(a))",
        "relu(replicate[0, 2](a)) => replicate[0, 2](relu(a))",
        "partition[0, 2](replicate[0, 2](a)) => replicate[0, 2](partition[0, 2](a))",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "r: relu(partition[0, 2](x)) => partition[0, 2](relu(x))",
        "r: add(partition[0, 2](x), partition[0, 2](y)) => partition[0, 2](add(x, y))",
        "r: partition[0, 2](add(x, y)) => add(partition[0, 2](y), partition[0, 2](x))",
        "r: reduce[0, 2](replicate[0, 2](x)) => add(x, x)",
        "r: relu(combine[0, 2](partition[0, 2](x))) => relu(x)",
        "r: (relu(x), relu(y)) => (split[1, n](relu(concat[1](x, y))), "
        "split[1, n](relu(concat[1](x, y))).1) if n = x.1",
        "r: concat[1](relu(x), relu(y)) => relu(concat[1](x, y))",
        "r: add(z, add(y, x)) => add(y, add(z, x))",
    ],
)
def test_known_rules_are_found(small: GeneratedRules, text: str) -> None:
    assert small.gives(parse_rule(text))
    assert small.gives(parse_rule(text).reverse)


@pytest.mark.parametrize(
    "text",
    [
        "r: reduce[0, 2](replicate[0, 2](x)) => relu(x)",
        "r: relu(add(x, y)) => add(relu(x), relu(y))",
        "r: partition[0, 2](x) => x",
        "r: concat[1](x, y) => concat[1](y, x)",
        "r: relu(x) => gelu(x)",
    ],
)
def test_false_and_foreign_rules_are_not_found(small: GeneratedRules, text: str) -> None:
    assert not small.gives(parse_rule(text))


def test_published_rules_of_two_operators_are_found() -> None:
    """Every one that is true; the whole table is printed by benchmarks/generate.py."""
    generated = generate(UNITY, 2, agrees)
    rules = [
        rule
        for rule in parse_published(PUBLISHED.read_text())
        if max(len(nodes(rule.source)), len(nodes(rule.target))) <= 2 and agrees(rule)
    ]
    assert len(rules) == 14
    assert all(map(generated.gives, rules))


def test_distributivity_is_found(algebra: GeneratedRules) -> None:
    assert algebra.gives(parse_rule("r: linear(add(x, y), w) => add(linear(x, w), linear(y, w))"))
    assert algebra.gives(
        parse_rule("r: linear(linear(x, linear(v, u)), w) => linear(x, linear(w, linear(u, v)))")
    )


def test_every_rule_agrees_and_reads_back(small: GeneratedRules, algebra: GeneratedRules) -> None:
    for generated in (small, algebra):
        assert all(map(agrees, generated.rules))
        assert all(map(generated.gives, generated.rules))
        assert parse_rules(lines(generated.rules)) == generated.rules


def test_no_rule_is_given_by_those_before_it(algebra: GeneratedRules) -> None:
    """Without the last rule its two sides stay apart."""
    last = algebra.rules[-1]
    without = generate(FEW, 3, lambda rule: sides(rule) != sides(last) and agrees(rule))
    assert not without.gives(last)
    assert len(without.rules) == len(algebra.rules) - 1


def sides(rule: Rule) -> frozenset[object]:
    return frozenset((rule.source, rule.target))


def test_what_is_not_proved_joins_nothing() -> None:
    generated = generate((defined("relu"), *parallel((0,))), 2, lambda rule: False)
    assert generated.rules == ()
    assert generated.tallies[-1].unproved == 5
    assert not generated.gives(
        parse_rule("r: relu(partition[0, 2](x)) => partition[0, 2](relu(x))")
    )


def test_tallies_add_up(small: GeneratedRules) -> None:
    rules = 0
    for row in small.tallies:
        rules += row.rules
        assert row.candidates == row.pruned + rules + row.unproved
    assert rules == len(small.rules)


def test_the_number_of_processes_changes_nothing(algebra: GeneratedRules) -> None:
    generated = generate(FEW, 3, agrees, processes=2)
    assert (generated.rules, generated.tallies) == (algebra.rules, algebra.tallies)


class KilledError(Exception):
    """Stands for a kill."""


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, algebra: GeneratedRules) -> None:
    def kill(what: str, done: int, total: int) -> None:
        if (what, done) == ("graphs of 3", 1):
            raise KilledError

    with pytest.raises(KilledError):
        generate(FEW, 3, agrees, folder=tmp_path, progress=kill)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.chunk")}
    assert len(kept) == 3  # one chunk of each size
    reports: list[tuple[str, int, int]] = []
    generated = generate(
        FEW, 3, agrees, folder=tmp_path, progress=lambda *report: reports.append(report)
    )
    assert lines(generated.rules) == lines(algebra.rules)
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    assert [report for report in reports if report[0].startswith("graphs")] == [
        ("graphs of 1", 1, 1),
        ("graphs of 2", 1, 1),
        ("graphs of 3", 1, 2),
        ("graphs of 3", 2, 2),
    ]


SCRIPT = """
import pathlib, sys
from meshwright.rewrite.generate.operator_templates import defined
from meshwright.rewrite.generate.run import generate
from rule_trial import agrees
templates = tuple(map(defined, ("relu", "add", "linear")))
generate(templates, 3, agrees, folder=pathlib.Path(sys.argv[1]))
"""


def test_a_process_that_is_killed_leaves_whole_files(
    tmp_path: Path, algebra: GeneratedRules
) -> None:
    # What stands in for a proof is beside the benchmarks.
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(words, env=os.environ | path) as process:
        while process.poll() is None and len(list(tmp_path.glob("*.chunk"))) < 3:
            time.sleep(0.01)
        process.kill()
    assert len(list(tmp_path.glob("*.chunk"))) >= 3
    generated = generate(FEW, 3, agrees, folder=tmp_path)
    assert lines(generated.rules) == lines(algebra.rules)


def test_an_interrupt_leaves_the_rules_so_far(algebra: GeneratedRules) -> None:
    asked: list[Rule] = []

    def impatient(rule: Rule) -> bool:
        asked.append(rule)
        if len(asked) > 3:
            raise KeyboardInterrupt
        return agrees(rule)

    generated = generate(FEW, 3, impatient)
    assert generated.stopped == "interrupted"
    assert 0 < len(generated.rules) < len(algebra.rules)
    assert generated.rules == algebra.rules[: len(generated.rules)]


def test_nothing_is_proved_twice(tmp_path: Path, algebra: GeneratedRules) -> None:
    asked: list[Rule] = []

    def prove(rule: Rule) -> bool:
        asked.append(rule)
        return agrees(rule)

    first = generate(FEW, 2, prove, folder=tmp_path)
    once = len(asked)
    again = generate(FEW, 2, prove, folder=tmp_path)
    assert first.rules == again.rules == algebra.rules[: len(again.rules)]
    assert len(asked) == once >= len(first.rules) > 0


def test_spoilt_verdicts_are_named(tmp_path: Path) -> None:
    (tmp_path / "verdicts.json").write_text('{"rule": 3}')
    with pytest.raises(InputError, match="does not hold verdicts; remove it"):
        generate((defined("add"),), 1, agrees, folder=tmp_path)


def test_rules_for_inputs_in_one_piece_say_so() -> None:
    """Reduce by 2 of what is cut by 2 is whole, of what is cut by 4 is not."""
    generated = generate((defined("relu"), *parallel((0,))), 2, proved)
    assert lines(generated.rules) == (
        "g0001: combine[0, 2](partition[0, 2](a)) => a if rank(a) = 2\n"
        "g0002: reduce[0, 2](partition[0, 2](a)) => reduce[0, 2](a) if rank(a) = 2 and plain(a)\n"
        "g0003: relu(partition[0, 2](a)) => partition[0, 2](relu(a)) if rank(a) = 2\n"
        "g0004: relu(replicate[0, 2](a)) => replicate[0, 2](relu(a)) if rank(a) = 2\n"
        "g0005: partition[0, 2](replicate[0, 2](a)) => replicate[0, 2](partition[0, 2](a))"
        " if rank(a) = 2\n"
    )


def proved(rule: Rule) -> bool:
    return verify(rule).verdict == "proved"


def test_an_operator_of_ones_own() -> None:
    """Rules for what a user defines by a line."""
    known = {**DEFINITIONS, **parse_definitions("twice(x)[i..] = x[i..] + x[i..]")}
    templates = (defined("add", known), defined("twice", known), *parallel((0,))[:1])
    generated = generate(templates, 2, lambda rule: agrees(rule, known), known=known)
    texts = {str(rule).partition(": ")[2].partition(" if")[0] for rule in generated.rules}
    assert texts == {
        "twice(a) => add(a, a)",
        "add(b, add(a, c)) => add(c, add(a, b))",
        "add(partition[0, 2](a), partition[0, 2](a)) => partition[0, 2](add(a, a))",
    }
    assert generated.gives(parse_rule("r: partition[0, 2](twice(x)) => twice(partition[0, 2](x))"))


def test_a_spoilt_chunk_is_named(tmp_path: Path) -> None:
    generate((defined("add"),), 1, agrees, folder=tmp_path)
    [path] = tmp_path.glob("*.chunk")
    path.write_bytes(b"spoilt")
    with pytest.raises(InputError, match="is not a chunk of a generator; remove it"):
        generate((defined("add"),), 1, agrees, folder=tmp_path)


def test_nothing_to_generate_is_refused() -> None:
    with pytest.raises(
        InputError, match="graphs of 0 of 1 operators; give a size of 1 or more and at"
    ):
        generate((defined("add"),), 0, agrees)


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such folder"):
        generate((defined("add"),), 1, agrees, folder=tmp_path / "nowhere")
