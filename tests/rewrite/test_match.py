"""Where rules fit, and that what is kept up to date is what would be found anew."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.returned import Returned
from meshwright.graph.text import parse_graph
from meshwright.graph.traced import Traced
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.places import Match
from meshwright.rewrite.graphs.types_of import types_of
from meshwright.rewrite.language.syntax import parse_rules
from support.rewrite_graphs import square_graphs
from support.rewrite_rules import PARAMETERS, RULES
from support.slow_match import Found, slow_matches

ALL = RuleSet(RULES)

TOWER = parse_graph("""graph tower
input x: float32[n=8, k=8]
parameter w: float32[o=8, k=8]
parameter v: float32[o=8, k=8]
operator a: a: float32[n=8, o=8] = linear(x, w)
operator b: b: float32[n=8, o=8] = linear(x, v)
operator c: c: float32[n=8, o=8] = relu(a)
operator s: s: float32[n=8, o=8] = add(c, b)
operator t: t: float32[o=8, n=8] = transpose(s) {dim0=0, dim1=1}
output t""")


def found(graph: OperatorGraph, rules: str, **parameters: tuple[int, ...]) -> list[str]:
    return list(map(str, Matcher(graph, RuleSet(parse_rules(rules)), parameters).matches))


def test_a_chain() -> None:
    assert found(TOWER, "fuse: relu(linear(x, w)) => linear_relu(x, w)") == [
        "fuse at c: x = x, w = w"
    ]


def test_what_the_model_returns_stays() -> None:
    """Whoever calls a plan's module without targets asks for it."""
    logits = Returned(kind="tensor", tensor="a")
    graph = msgspec.structs.replace(TOWER, traced=Traced(modules=(), returned=logits))
    assert found(graph, "fuse: relu(linear(x, w)) => linear_relu(x, w)") == []
    split = "split: linear(x, w) => transpose[0, 1](transpose[0, 1](linear(x, w)))"
    matcher = Matcher(graph, RuleSet(parse_rules(split)))
    at_logits = next(own for own in matcher.matches if own.outputs == ("a",))
    assert "a" in matcher.rewrite(at_logits).graph.producers


def test_operands_of_a_sum_in_either_order() -> None:
    rule = "swap: add(linear(x, w), relu(y)) => add(relu(y), linear(x, w))"
    assert found(TOWER, rule) == ["swap at s: x = x, w = v, y = a"]


def test_both_orders_where_both_fit() -> None:
    assert found(TOWER, "swap: add(x, y) => add(y, x)") == [
        "swap at s: x = b, y = c",
        "swap at s: x = c, y = b",
    ]


def test_a_variable_is_one_tensor() -> None:
    assert found(TOWER, "square: add(relu(x), x) => add(x, relu(x))") == []
    twice = parse_graph(str(TOWER).replace("add(c, b)", "add(c, a)"))
    assert found(twice, "square: add(relu(x), x) => add(x, relu(x))") == ["square at s: x = a"]


def test_a_shared_operator_is_found_once() -> None:
    twice = parse_graph(str(TOWER).replace("add(c, b)", "add(c, a)"))
    rule = "both: add(relu(linear(x, w)), linear(x, w)) => add(linear_relu(x, w), linear(x, w))"
    [match] = Matcher(twice, RuleSet(parse_rules(rule))).matches
    assert match.operators == ("a", "c", "s")


def test_several_outputs_joined_by_a_tensor() -> None:
    rule = "merge: (linear(x, w), linear(x, v)) => (linear(x, w), linear(x, v))"
    assert found(TOWER, rule) == [], "nothing would change"
    rule = (
        "merge: (linear(x, w), linear(x, v)) => (split[1, n](linear(x, concat[0](w, v))), "
        "split[1, n](linear(x, concat[0](w, v))).1) if n = w.0"
    )
    assert found(TOWER, rule) == [
        "merge at a, b: x = x, w = w, v = v, n = 8",
        "merge at b, a: x = x, w = v, v = w, n = 8",
    ]


def test_outputs_that_share_nothing_are_sought_beside_each_other() -> None:
    rule = (
        "beside: (relu(x), linear(y, v)) => (split[0, n](concat[0](relu(x), linear(y, v))), "
        "split[0, n](concat[0](relu(x), linear(y, v))).1) if n = x.0"
    )
    assert found(TOWER, rule) == ["beside at c, b: x = a, y = x, v = v, n = 8"]


def test_no_circle_is_made() -> None:
    """The second product reads the first, so both cannot become one."""
    chained = parse_graph(str(TOWER).replace("linear(x, v)", "linear(x, a)"))
    rule = next(candidate for candidate in RULES if candidate.name == "merge")
    assert Matcher(chained, RuleSet((rule,))).matches == ()


def normed(first: str, second: str) -> Matcher:
    """Two products of one weight beside two calls that follow the same statistics."""
    graph = parse_graph(f"""graph normed
    input x: float32[n=8, k=8]
    input z: float32[n=8, k=8]
    parameter w: float32[o=8, k=8]
    buffer m: float32[c=8]
    buffer v: float32[c=8]
    operator p: p: float32[n=8, o=8] = linear(x, w)
    operator q: q: float32[n=8, c=8] = batch_norm({first}, -, -, m, v) {{training=true}}
    operator r: r: float32[n=8, c=8] = batch_norm({second}, -, -, m, v) {{training=true}}
    operator t: t: float32[n=8, o=8] = linear(r, w)
    output p
    output q
    output t""")
    rule = (
        "share: (linear(x, w), linear(y, w)) => (split[0, n](linear(concat[0](x, y), w)), "
        "split[0, n](linear(concat[0](x, y), w)).1) if n = x.0"
    )
    return Matcher(graph, RuleSet(parse_rules(rule)))


def test_running_statistics_are_followed_in_the_order_of_the_graph() -> None:
    """No tensor tells that q runs before r."""
    apart = normed("z", "x")
    assert len(apart.matches) == 2
    for match in apart.matches:
        operators = apart.rewrite(match).graph.operators
        assert [operator.name for operator in operators if operator.kind == "batch_norm"] == [
            "q",
            "r",
        ]
    assert normed("p", "x").matches == ()


def test_dims_count_from_the_end_too() -> None:
    rule = "turn: transpose[-1, 0](add(x, y)) => add(transpose[1, -2](x), transpose[0, 1](y))"
    assert len(found(TOWER, rule)) == 2
    rule = "turn: transpose[-1, 1](add(x, y)) => add(x, y)"
    assert found(TOWER, rule) == []


def test_symbols_of_the_target_take_the_values_given() -> None:
    rule = "cut: relu(x) => combine[0, d](relu(partition[0, d](x)))"
    assert found(TOWER, rule, d=(2, 3, 4)) == ["cut at c: x = a, d = 2", "cut at c: x = a, d = 4"]
    assert found(TOWER, rule) == []


def test_a_dim_that_only_the_target_has_may_be_any() -> None:
    rule = "cut: relu(x) => combine[k, d](relu(partition[k, d](x)))"
    assert found(TOWER, rule, d=(2,)) == ["cut at c: x = a, d = 2, k = 0",
                                          "cut at c: x = a, d = 2, k = 1"]  # fmt: skip


def test_a_symbol_is_no_axis_in_front() -> None:
    copies = parse_graph("""graph copies
    input x: float32[n=4]
    operator a: a: float32[n=4] = replicate(x) {axis="copies", degree=2}
    operator b: b: float32[n=4] = reduce(a) {axis="copies", degree=2}
    output b""")
    assert found(copies, "every: reduce[k, d](replicate[k, d](x)) => x") == []
    named = "named: reduce[copies, d](replicate[d](x)) => add(x, x)"
    assert found(copies, named) == ["named at b: x = x, d = 2"]


def test_conditions() -> None:
    rule = "big: linear(x, w) => linear(x, w) if 9 <= x.0"
    assert found(TOWER, rule) == []
    rule = "big: relu(x) => relu(relu(x)) if x.-1 divides 16 and degree(x, 0) < 2 and rank(x) != 3"
    assert found(TOWER, rule) == ["big at c: x = a"]


@pytest.mark.parametrize(
    "rule",
    [
        "every: x => relu(x)",
        "lost: relu(x) => split[0, n](concat[0](relu(x), y)) if n = x.0 for any y",
        "wider: relu(x) => concat[0](x, x)",
        "unknown: linear(x, w) => linear(w, x) if rank(x) = 3",
    ],
)
def test_what_never_fits(rule: str) -> None:
    assert found(TOWER, rule) == []


def test_rules_are_named_once() -> None:
    with pytest.raises(InputError, match="two rules are called 'merge'"):
        RuleSet((*RULES, RULES[4]))


def test_a_match_of_another_graph() -> None:
    matcher = Matcher(TOWER, ALL, PARAMETERS)
    [fuse] = [match for match in matcher.matches if match.rule.name == "fuse"]
    with pytest.raises(InputError, match="fuse at c: x = x, w = w is no match of graph 'tower'"):
        matcher.rewrite(fuse).rewrite(fuse)


def keys(matches: tuple[Match, ...]) -> list[Found]:
    return [
        (m.rule.name, m.outputs, tuple(name for _, name in m.tensors), m.settings) for m in matches
    ]


def agrees(matcher: Matcher, *, slow: bool) -> None:
    """What was kept up to date is what is found from scratch and by trying everything."""
    fast = keys(matcher.matches)
    assert len(set(fast)) == len(fast)
    assert fast == keys(Matcher(matcher.graph, ALL, PARAMETERS).matches)
    assert matcher.types == types_of(matcher.graph)
    if slow:
        assert set(fast) == slow_matches(matcher.graph, RULES, PARAMETERS)


@given(square_graphs(), st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=6))
def test_kept_up_to_date_on_random_graphs(graph: OperatorGraph, choices: list[float]) -> None:
    matcher = Matcher(graph, ALL, PARAMETERS)
    agrees(matcher, slow=True)
    for choice in choices:
        if matcher.matches:
            matcher = matcher.rewrite(matcher.matches[int(choice * len(matcher.matches))])
            agrees(matcher, slow=True)


@pytest.mark.parametrize("name", ["mlp", "inception-v3", "bert-large", "mixtral-8x7b", "dlrm"])
def test_kept_up_to_date_on_the_zoo(name: str) -> None:
    matcher = Matcher(load_model(f"zoo:{name}/tiny").graph, ALL, PARAMETERS)
    for step in range(12):
        matcher = matcher.rewrite(matcher.matches[(step * 7919) % len(matcher.matches)])
        agrees(matcher, slow=False)
