"""A rule put in its place: texts before and after, and the function that stays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.zoo import ENTRIES
from meshwright.capture.zoo.entry import Entry
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.operator_graph import Operator, OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.rewrite.graphs.match import Matcher, apply
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.types_of import erase
from meshwright.rewrite.language.syntax import parse_rules
from support.rewrite_graphs import on_shards, square_graphs, values_for
from support.rewrite_rules import ALGEBRA, PARALLEL, PARAMETERS, RULES

HEAD = """graph g
input x: float64[n=4, k=8]
parameter w: float64[o=6, k=8]
parameter v: float64[o=2, k=8]
"""


def after(body: str, rule: str, **parameters: tuple[int, ...]) -> str:
    """The operators and outputs of a graph to which a rule was applied where it first fits."""
    graph = parse_graph(HEAD + body)
    matcher = Matcher(graph, RuleSet(parse_rules(rule)), parameters)
    rewritten = apply(graph, matcher.matches[0])
    assert rewritten == matcher.rewrite(matcher.matches[0]).graph
    assert check(rewritten) == ()
    return str(rewritten).removeprefix(HEAD)


def test_an_output_keeps_its_name_and_its_dims() -> None:
    body = """operator h: h: float64[n=4, o=6] = linear(x, w) @ net
operator y: y: float64[rows=4, wide=6] = relu(h) @ net
output y
"""
    assert (
        after(body, "fuse: relu(linear(x, w)) => linear_relu(x, w)")
        == """\
operator y: y: float64[rows=4, wide=6] = linear_relu(x, w) @ net
output y
"""
    )


def test_an_operator_that_is_still_read_stays_and_is_not_doubled() -> None:
    body = """operator h: h: float64[n=4, o=6] = linear(x, w)
operator y: y: float64[n=4, o=6] = relu(h)
operator z: z: float64[n=4, o=6] = neg(h)
output y
output z
"""
    assert (
        after(body, "fuse: relu(linear(x, w)) => linear_relu(x, w)")
        == """\
operator h: h: float64[n=4, o=6] = linear(x, w)
operator y: y: float64[n=4, o=6] = linear_relu(x, w)
operator z: z: float64[n=4, o=6] = neg(h)
output y
output z
"""
    )
    assert (
        after(body, "deep: relu(linear(x, w)) => relu(relu(linear(x, w)))")
        == """\
operator h: h: float64[n=4, o=6] = linear(x, w)
operator y~1: y~1: float64[n=4, o=6] = relu(h)
operator y: y: float64[n=4, o=6] = relu(y~1)
operator z: z: float64[n=4, o=6] = neg(h)
output y
output z
"""
    )


def test_column_parallel() -> None:
    body = "operator y: y: float64[n=4, o=6] = linear(x, w)\noutput y\n"
    rule = "column: linear(x, w) => combine[-1, d](linear(replicate[d](x), partition[0, d](w)))"
    assert (
        after(body, rule, d=(2,))
        == """\
operator y~1: y~1: float64[n=4, k=8] = replicate(x) {axis="copies", degree=2}
operator y~2: y~2: float64[o=6, k=8] = partition(w) {axis=0, degree=2}
operator y~3: y~3: float64[n=4, o=6] = linear(y~1, y~2)
operator y: y: float64[n=4, o=6] = combine(y~3) {axis=1, degree=2}
output y
"""
    )


MERGE = (
    "merge: (linear(x, w), linear(x, v)) => (split[-1, n](linear(x, concat[0](w, v))), "
    "split[-1, n](linear(x, concat[0](w, v))).1) if n = w.0"
)


def test_what_two_outputs_need_comes_first() -> None:
    """The second weight is made after the first output is read."""
    body = """operator a: a: float64[n=4, o=6] = linear(x, w)
operator p: p: float64[n=4, o=6] = relu(a)
operator u: u: float64[o=2, k=8] = neg(v)
operator b: b: float64[n=4, o=2] = linear(x, u)
output p
output b
"""
    assert (
        after(body, MERGE)
        == """\
operator u: u: float64[o=2, k=8] = neg(v)
operator a~1: a~1: float64[o=8, k=8] = cat(w, u)
operator a~2: a~2: float64[n=4, o=8] = linear(x, a~1)
operator a: a: float64[n=4, o=6], b: float64[n=4, o=2] = split_with_sizes(a~2) \
{dim=1, split_sizes=[6, 2]}
operator p: p: float64[n=4, o=6] = relu(a)
output p
output b
"""
    )


CANCEL = "cancel: combine[k, d](partition[k, d](x)) => x"
CUT = """operator c: c: float64[n=4, k=8] = partition({x}) {{axis=0, degree=2}}
operator d: d: float64[n=4, k=8] = combine(c) {{axis=0, degree=2}}
"""


def test_readers_turn_to_a_tensor_that_was_there() -> None:
    body = CUT.format(x="x") + "operator y: y: float64[n=4, k=8] = relu(d)\noutput y\n"
    assert after(body, CANCEL) == "operator y: y: float64[n=4, k=8] = relu(x)\noutput y\n"


def test_a_tensor_takes_the_name_of_an_output() -> None:
    body = "operator h: h: float64[n=4, k=8] = relu(x)\noperator g: g: float64[n=4, k=8] = neg(h)\n"
    body += CUT.format(x="h") + "output d\noutput g\n"
    assert (
        after(body, CANCEL)
        == """\
operator h: d: float64[n=4, k=8] = relu(x)
operator g: g: float64[n=4, k=8] = neg(d)
output d
output g
"""
    )


@pytest.mark.parametrize("outputs", ["output d\n", "output d\noutput h\n"])
def test_an_output_is_never_lost(outputs: str) -> None:
    """Neither the graph's own input nor another output can take its name."""
    h = "h" if "output h" in outputs else "x"
    body = "operator h: h: float64[n=4, k=8] = relu(x)\n" + CUT.format(x=h) + outputs
    assert Matcher(parse_graph(HEAD + body), RuleSet(parse_rules(CANCEL))).matches == ()


def test_an_operator_with_another_output_stays() -> None:
    body = """operator s: a: float64[n=4, k=4], b: float64[n=4, k=4] = chunk(x) {chunks=2, dim=1}
operator y: y: float64[n=4, k=4] = add(a, b)
output y
"""
    rule = "first: split[k, n](x) => neg(neg(split[k, n](x)))"
    assert (
        after(body, rule)
        == """\
operator a~2: a~2: float64[n=4, k=4], a~3: float64[n=4, k=4] = split_with_sizes(x) \
{dim=1, split_sizes=[4, 4]}
operator a~4: a~4: float64[n=4, k=4] = neg(a~2)
operator a: a: float64[n=4, k=4] = neg(a~4)
operator s: a~1: float64[n=4, k=4], b: float64[n=4, k=4] = chunk(x) {chunks=2, dim=1}
operator y: y: float64[n=4, k=4] = add(a, b)
output y
"""
    )


@given(square_graphs(), st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=12))
def test_chains_keep_the_function_on_shards(graph: OperatorGraph, choices: list[float]) -> None:
    values = values_for(graph)
    expected = on_shards(graph, values)
    matcher = Matcher(graph, RuleSet(RULES), PARAMETERS)
    for choice in choices:
        if matcher.matches:
            matcher = matcher.rewrite(matcher.matches[int(choice * len(matcher.matches))])
    assert check(matcher.graph) == ()
    assert matcher.graph.outputs == graph.outputs
    for rewritten in (matcher.graph, erase(matcher.graph)):
        for output, other in zip(on_shards(rewritten, values), expected, strict=True):
            np.testing.assert_allclose(output, other, rtol=1e-9, atol=1e-9)


@given(square_graphs(), st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=12))
def test_layouts_can_be_erased(graph: OperatorGraph, choices: list[float]) -> None:
    """But for one rule: a transpose that is still read elsewhere stays beside the one in pieces."""
    layouts = [rule for rule in PARALLEL if rule.name != "turn-cut"]
    matcher = Matcher(graph, RuleSet(layouts), PARAMETERS)
    for choice in choices:
        if matcher.matches:
            matcher = matcher.rewrite(matcher.matches[int(choice * len(matcher.matches))])
    erased = erase(matcher.graph)
    assert check(erased) == ()
    assert canonical_hash(erased) == canonical_hash(graph)


@pytest.fixture
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def without_dropout(graph: OperatorGraph) -> OperatorGraph:
    """Random draws would come in another order."""

    def calm(operator: Operator) -> Operator:
        kept = {key: value for key, value in operator.attributes if key != "dropout_p"}
        kept |= {"p": 0.0} if operator.kind == "dropout" else {}
        return msgspec.structs.replace(operator, attributes=tuple(sorted(kept.items())))

    return msgspec.structs.replace(graph, operators=tuple(map(calm, graph.operators)))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", ENTRIES, ids=lambda model: model.name)
def test_algebra_keeps_outputs_and_gradients(model: Entry[Any]) -> None:
    torch.manual_seed(0)
    example = model.example(model.tiny, 3)
    graph = without_dropout(capture(example))
    matcher = Matcher(graph, RuleSet(ALGEBRA))
    for step in range(50):
        if matcher.matches:
            matcher = matcher.rewrite(matcher.matches[(step * 7919) % len(matcher.matches)])
    assert check(matcher.graph) == ()
    parameters = [p for p in example.model.parameters() if p.requires_grad]
    results = []
    for variant in (graph, matcher.graph):
        outputs = tuple(execute(variant, values_of(example, variant)).values())
        draws = torch.Generator().manual_seed(1)
        weights = [torch.randn(o.shape, generator=draws) for o in outputs]
        gradients = torch.autograd.grad(outputs, parameters, weights, materialize_grads=True)
        results.append((outputs, gradients))
    (outputs, gradients), (expected, wanted) = results[::-1]
    torch.testing.assert_close(outputs, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(gradients, wanted, rtol=1e-7, atol=1e-10)
