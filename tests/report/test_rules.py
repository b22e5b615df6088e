"""Rules drawn: every box, every wire, and words for what a rule needs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.report.layers import Box, layout, ports, spread
from meshwright.report.rules import MEANINGS, boxes, condition_in_words, describe_rule, draw_rule
from meshwright.report.wires import draw
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Condition, Plain, Rank, Rule, Size, nodes
from meshwright.rewrite.language.text import parse_rule
from meshwright.rewrite.language.types import PARALLEL, STRUCTURAL
from meshwright.rewrite.library import library

LIBRARY = {rule.name: rule for rule in library()}


def drawn(rule: Rule, width: int) -> str:
    return draw_rule(rule, width).plain


def test_two_sides_beside_each_other() -> None:
    assert (
        drawn(LIBRARY["mul-of-sum"], 80)
        == """\
     y   z             x   y      z
     │   │          ╭──┴───│──╮   │
    ┌┴───┴┐         │   ╭──╯  │   │
    │ add │        ┌┴───┴┐   ┌┴───┴┐
x   └──┬──┘        │ mul │   │ mul │
╰╮   ╭─╯           └──┬──┘   └──┬──┘
┌┴───┴┐       =>      ╰──╮   ╭──╯
│ mul │                 ┌┴───┴┐
└──┬──┘                 │ add │
   │                    └──┬──┘
output                     │
                        output"""
    )


def test_one_above_the_other_where_there_is_no_room() -> None:
    assert (
        drawn(parse_rule("r: partition[0, d](relu(x)) => relu(partition[0, d](x))"), 20)
        == """\
         x
         │
     ┌───┴──┐
     │ relu │
     └───┬──┘
         │
╔════════╧════════╗
║ partition[0, d] ║
╚════════╤════════╝
         │
      output

  becomes

         x
         │
╔════════╧════════╗
║ partition[0, d] ║
╚════════╤════════╝
         │
     ┌───┴──┐
     │ relu │
     └───┬──┘
         │
      output"""
    )


def test_shared_operators_are_drawn_once_and_a_tensor_read_far_below_has_a_lane() -> None:
    rule = parse_rule("r: add(relu(relu(x)), mul(x, relu(x))) => add(x, x)")
    text = "\n".join(line.plain for line in draw(layout(boxes(rule.source))))
    assert text.count("relu") == 2
    assert text.count(" x") == 1


@pytest.mark.parametrize("rule", LIBRARY.values(), ids=LIBRARY)
def test_every_rule_of_the_library_can_be_followed(rule: Rule) -> None:
    """Operators are all there, and every wire begins at one box and ends at another."""
    for side in (rule.source, rule.target):
        found = layout(boxes(side))
        lines = [line.plain for line in draw(found)]
        for node in nodes(side):
            assert any(node.operator in line for line in lines)
        reads = sum(len(box.reads) for box in found.boxes)
        ends = sum(len(wire.ends) for wires in found.wires for wire in wires)
        lanes = sum(place.lane is not None for layer in found.layers for place in layer)
        assert ends == reads + lanes
        for layer in found.layers:
            for one, other in pairwise(layer):
                assert one.left + one.width < other.left


def test_parallel_operators_are_marked() -> None:
    found = draw_rule(LIBRARY["linear-cut-k"], 120)
    marked = {
        found.plain[span.start : span.end] for span in found.spans if "cyan" in str(span.style)
    }
    assert "║ partition[-1, d] ║" in marked
    assert not any("┌" in own for own in marked)


@given(st.lists(st.tuples(st.floats(-50, 50), st.integers(1, 9)), min_size=1, max_size=6))
def test_boxes_that_are_spread_keep_their_order_and_do_not_touch(
    given: list[tuple[float, int]],
) -> None:
    wanted, widths = [own[0] for own in given], [own[1] for own in given]
    lefts = spread(wanted, widths)
    for n in range(len(lefts) - 1):
        assert lefts[n] + widths[n] < lefts[n + 1]


@given(st.integers(1, 40), st.integers(1, 5))
def test_ports_are_apart_and_inside(width: int, count: int) -> None:
    found = ports(width + 2 * count, count)
    assert len(set(found)) == count
    assert 0 <= min(found) <= max(found) < width + 2 * count


def test_a_box_that_nobody_reads_has_no_wire() -> None:
    lines = [line.plain for line in draw(layout([Box("x", bare=True), Box("f", ((0, 0),), 2)]))]
    assert lines == ["  x", "  │", "┌─┴─┐", "│ f │", "└───┘"]


def test_every_operator_without_a_line_has_a_meaning() -> None:
    assert set(MEANINGS) == {*PARALLEL, *STRUCTURAL}


def test_conditions_in_words() -> None:
    assert condition_in_words(Plain("x")) == (
        "x is in one piece: not cut, no copies, no sums, no steps"
    )
    assert condition_in_words(Condition("k", "<", Rank("x", 1))) == (
        "k is less than the number of dims of x less 1"
    )
    assert condition_in_words(Condition(Size("x", "steps"), "=", 1)) == (
        "the number of steps of x is 1"
    )
    assert condition_in_words(Condition(2, "divides", Size("x", 0))) == (
        "2 divides the size of dim 0 of x"
    )


def test_a_rule_says_what_is_chosen_and_what_is_not_certified() -> None:
    rule = parse_rule("r: relu(x) => combine[0, d](relu(partition[0, d](x))) if x.0 != 3")
    assert describe_rule(rule, None, DEFINITIONS).splitlines()[2:5] == [
        "if the size of dim 0 of x is not 3",
        "d is chosen where the rule is applied",
        "not certified: prove it with 'meshwright rules verify FILE --certify OUT'",
    ]
