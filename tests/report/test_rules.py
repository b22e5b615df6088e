"""Rules shown: trees of both sides, and words for what a rule needs."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from meshwright.report.text.rules import MEANINGS, describe_condition, describe_rule, draw_rule
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.syntax import parse_rule
from meshwright.rewrite.language.terms import (
    Condition,
    Plain,
    Rank,
    Rule,
    Size,
    Tensor,
    Variable,
)
from meshwright.rewrite.language.types import PARALLEL, STRUCTURAL
from meshwright.rewrite.library import library

LIBRARY = {rule.name: rule for rule in library()}


def drawn(rule: Rule) -> str:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(draw_rule(rule))
    return "\n".join(line.rstrip() for line in shown.get().splitlines())


def test_both_sides_are_trees() -> None:
    assert (
        drawn(LIBRARY["mul-of-sum"])
        == """\
mul
├── x
└── add
    ├── y
    └── z
=>
add
├── mul
│   ├── x
│   └── y
└── mul
    ├── x
    └── z"""
    )


def test_every_output_has_a_tree_and_parts_of_a_split_their_number() -> None:
    rule = parse_rule("r: (relu(x), neg(split[0, 2](x).1)) => (relu(x), neg(split[0, 2](x).1))")
    side = "relu\n└── x\nneg\n└── split[0, 2].1\n    └── x"
    assert drawn(rule) == f"{side}\n=>\n{side}"


@pytest.mark.parametrize("rule", LIBRARY.values(), ids=LIBRARY)
def test_every_rule_of_the_library_can_be_followed(rule: Rule) -> None:
    """Operators and operands stand in the order in which the rule's text names them."""
    names = "".join(map(flattened, (*rule.source, *rule.target)))
    assert re.sub(r"[├└│─=>\s]", "", drawn(rule)) == names.replace(" ", "")


def flattened(term: Tensor) -> str:
    """A term's names from the outermost in, the number of an output behind its operator."""
    if isinstance(term, Variable):
        return term.name
    attributes = f"[{', '.join(map(str, term.attributes))}]" if term.attributes else ""
    output = f".{term.output}" if term.output else ""
    return f"{term.operator}{attributes}{output}{''.join(map(flattened, term.inputs))}"


def test_parallel_operators_are_coloured() -> None:
    console = Console(width=200, force_terminal=True, color_system="standard")
    with console.capture() as shown:
        console.print(draw_rule(LIBRARY["linear-cut-k"]))
    coloured = re.findall(r"\x1b\[1;36m([^\x1b]*)", shown.get())
    assert [text.strip() for text in coloured] == [
        "reduce[d]", "partition[-1, d]", "partition[-1, d]",
    ]  # fmt: skip


def test_every_operator_without_a_line_has_a_meaning() -> None:
    assert set(MEANINGS) == {*PARALLEL, *STRUCTURAL}


def test_conditions_in_words() -> None:
    assert describe_condition(Plain("x")) == (
        "x is in one piece: not cut, no copies, no sums, no steps"
    )
    assert describe_condition(Condition("k", "<", Rank("x", 1))) == (
        "k is less than the number of dims of x less 1"
    )
    assert describe_condition(Condition(Size("x", "steps"), "=", 1)) == (
        "the number of steps of x is 1"
    )
    assert describe_condition(Condition(2, "divides", Size("x", 0))) == (
        "2 divides the size of dim 0 of x"
    )


def test_a_rule_says_what_is_chosen_and_what_is_not_certified() -> None:
    rule = parse_rule("r: relu(x) => combine[0, d](relu(partition[0, d](x))) if x.0 != 3")
    assert describe_rule(rule, None, DEFINITIONS).splitlines()[2:5] == [
        "if the size of dim 0 of x is not 3",
        "d is chosen where the rule is applied",
        "not certified: prove it with 'meshwright rules verify FILE --certify OUT'",
    ]
