"""Rules as text: the round trip, and the whole sentences of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.graph.notation import parse_definition, parse_definitions
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.published import parse_published
from meshwright.rewrite.language.syntax import lines, parse_rule, parse_rules, parse_term
from meshwright.rewrite.language.terms import (
    Condition,
    Degree,
    Rank,
    Rule,
    Size,
    Term,
    Variable,
    nodes,
    symbols,
    variables,
)
from support.rule_strategies import rules, terms

PUBLISHED = Path(__file__).parent / "data" / "unity_rules_320.json"

ARITY = {"relu": (1,), "linear": (2,), "concat": (2, 3)}


@given(rules())
def test_a_rule_reads_as_it_is_printed(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@given(terms(("x", "y")))
def test_a_graph_reads_as_it_is_printed(term: Term | Variable) -> None:
    assert parse_term(str(term)) == term


@given(st.lists(rules(), max_size=3, unique_by=lambda rule: rule.name))
def test_a_file_reads_as_it_is_printed(some: list[Rule]) -> None:
    assert parse_rules(lines(some)) == tuple(some)


@given(rules())
def test_a_rule_turned_twice_is_itself_but_for_its_name(rule: Rule) -> None:
    twice = rule.reverse.reverse
    assert (twice.source, twice.target) == (rule.source, rule.target)
    assert parse_rule(str(rule.reverse)) == rule.reverse


def test_published_rules_read_as_they_are_printed() -> None:
    published = parse_published(PUBLISHED.read_text())
    assert len(published) == 320
    assert parse_rules(lines(published)) == published


def test_every_part_of_the_language() -> None:
    line = (
        "all-of-it: (add(x, split[k, -1, n](y).1), x) => (relu(f[copies, 2](y, z)), x) "
        "if k != 0 and n <= x.k and y.-1 = 4 and 2 divides degree(x, sums) and rank(y) < m "
        "for any z"
    )
    x, y, z = Variable("x"), Variable("y"), Variable("z")
    assert parse_rule(line) == Rule(
        name="all-of-it",
        source=(Term("add", (x, Term("split", (y,), ("k", -1, "n"), 1))), x),
        target=(Term("relu", (Term("f", (y, z), ("copies", 2)),)), x),
        conditions=(
            Condition("k", "!=", 0),
            Condition("n", "<=", Size("x", "k")),
            Condition(Size("y", -1), "=", 4),
            Condition(2, "divides", Degree("x", "sums")),
            Condition(Rank("y"), "<", "m"),
        ),
        free=("z",),
    )
    assert str(parse_rule(line)) == line


def test_equal_terms_are_one_operator() -> None:
    rule = parse_rule("r: (f[k](g(x)).1, f[k](g(x))) => (h[copies, m](x, y), x) if m = n for any y")
    assert list(map(str, nodes(rule.source))) == ["g(x)", "f[k](g(x))"]
    assert [v.name for v in variables((*rule.source, *rule.target))] == ["x", "y"]
    assert list(symbols(rule)) == ["k", "m", "m", "n"]


def test_comments_and_empty_lines_are_left_out() -> None:
    text = "# fusions\n\none: f(x) => x  # away with it\n  two: x => f(x)\n"
    assert lines(parse_rules(text)) == "one: f(x) => x\ntwo: x => f(x)\n"


MISTAKES = {
    "": "'' has the end of the line at column 1; expected the name of the rule.",
    "r f(x) => x": "'r f(x) => x' has 'f' at column 3; expected ':'.",
    "r: f(x) x": "'r: f(x) x' has 'x' at column 9; expected '=>'.",
    "r: f(x) => ": "'r: f(x) => ' has the end of the line at column 12; "
    "expected a tensor or an operator.",
    "r: f() => x": "'r: f() => x' has ')' at column 6; expected a tensor or an operator.",
    "r: f(x => x": "'r: f(x => x' has '=>' at column 8; expected ',' or ')'.",
    "r: (f(x), x => x": "'r: (f(x), x => x' has '=>' at column 13; expected ',' or ')'.",
    "r: f[2 (x) => x": "'r: f[2 (x) => x' has '(' at column 8; expected ',' or ']'.",
    "r: f[](x) => x": "'r: f[](x) => x' has ']' at column 6; expected a number or a name.",
    "r: f[2] => x": "'r: f[2] => x' has '=>' at column 9; expected '('.",
    "r: f(x).y => x": "'r: f(x).y => x' has 'y' at column 9; expected the number of an output.",
    "r: if(x) => x": "'r: if(x) => x' has 'if' at column 4; expected a tensor or an operator.",
    "r: f(x) => x if x.0": "'r: f(x) => x if x.0' has the end of the line at column 20; "
    "expected '=' or '!=' or '<' or '<=' or 'divides'.",
    "r: f(x) => x if = 2": "'r: f(x) => x if = 2' has '=' at column 17; "
    "expected a number, a name, a size, 'degree' or 'rank'.",
    "r: f(x) => x if degree(x) = 2": "'r: f(x) => x if degree(x) = 2' has ')' at column 25; "
    "expected ','.",
    "r: f(x) => y for every y": "'r: f(x) => y for every y' has 'every' at column 18; "
    "expected 'any'.",
    "r: f(x) => x and more": "'r: f(x) => x and more' has 'and' at column 14; "
    "expected the end of the line.",
    "r: f(x) => g(x, y, z)": "the target of rule 'r' reads y, z, which its source does not bind; "
    "use x, or end the rule with 'for any y, z'.",
    "r: (f(x), x) => x": "rule 'r' replaces 2 tensors by 1; give both sides equally many.",
    "r: f(x, y) => x if z.0 = 2": "the condition 'z.0 = 2' of rule 'r' speaks of 'z'; "
    "speak of x, y.",
    "r: f(x) => x if 2 = rank(z)": "the condition '2 = rank(z)' of rule 'r' speaks of 'z'; "
    "speak of x.",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_sentences(line: str) -> None:
    with pytest.raises(InputError) as error:
        parse_rule(line)
    assert str(error.value) == MISTAKES[line]


UNFIT = {
    "r: reluu(x) => x": "there is no operator 'reluu'; "
    "did you mean 'relu'? Known: 'concat', 'linear', 'relu'.",
    "r: relu(x) => linear(x)": "linear has 1 inputs; give it 2.",
    "r: relu(x) => concat(x)": "concat has 1 inputs; give it 2 or 3.",
}


@pytest.mark.parametrize("line", UNFIT)
def test_operators_are_known_and_get_their_inputs(line: str) -> None:
    with pytest.raises(InputError) as error:
        parse_rule(line, ARITY)
    assert str(error.value) == UNFIT[line]


def test_mistakes_in_a_file_name_the_line() -> None:
    with pytest.raises(InputError) as error:
        parse_rules("one: f(x) => x\n\ntwo: f(x) = x\n")
    assert str(error.value) == "line 3: 'two: f(x) = x' has '=' at column 11; expected '=>'."
    with pytest.raises(InputError) as error:
        parse_rules("one: f(x) => x\n# again\none: x => f(x)\n")
    assert str(error.value) == "line 3 names a second rule 'one'; rename one."


def test_definitions_read_as_they_are_written() -> None:
    for name, definition in DEFINITIONS.items():
        assert parse_definition(definition.line) == definition
        assert definition.name == name


def test_mistakes_in_definitions_are_sentences() -> None:
    with pytest.raises(InputError) as error:
        parse_definition("f(x, y)[i] = x[i]")
    assert str(error.value) == "'f(x, y)[i] = x[i]' does not read y; read it or drop it."
    with pytest.raises(InputError) as error:
        parse_definitions("f(x)[i] = x[i]\nf(x)[i] = x[i]\n")
    assert str(error.value) == "line 2: 'f' is defined again; rename one."
    with pytest.raises(InputError) as error:
        parse_definitions("f(x)[i] = x[i\n")
    assert (
        str(error.value) == "line 1: 'f(x)[i] = x[i' has the end of the line at column 14; "
        "expected ']'."
    )
