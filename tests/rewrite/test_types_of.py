"""Types of a graph, and graphs without their layouts."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.graph.text import parse_graph
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.graphs.types_of import erase, types_of
from meshwright.rewrite.language.types import TypedAxis, plain
from support.rewrite_rules import PARALLEL

COLUMN = parse_graph("""graph column
input x: float32[n=4, k=8]
parameter w: float32[o=6, k=8]
operator a: xs: float32[n=4, k=8] = replicate(x) {axis="copies", degree=2}
operator b: ws: float32[o=6, k=8] = partition(w) {axis=0, degree=2}
operator c: ys: float32[n=4, o=6] = linear(xs, ws)
operator d: y: float32[n=4, o=6] = combine(ys) {axis=1, degree=2}
operator e: z: float32[n=4, o=6] = cumsum(y) {dim=0}
output z""")


def test_types_of_a_column_parallel_product() -> None:
    types = types_of(COLUMN)
    whole = TypedAxis(1)
    assert types["xs"] == (whole, TypedAxis(2, 2), whole, TypedAxis(4), TypedAxis(8))
    assert types["ys"] == (whole, whole, whole, TypedAxis(4), TypedAxis(6, 2))
    assert types["y"] == types["z"] == plain((4, 6))


def test_an_operator_that_no_rule_knows_needs_whole_tensors() -> None:
    broken = parse_graph(str(COLUMN).replace("cumsum(y)", "cumsum(ys)"))
    with pytest.raises(InputError, match="operator e is of kind cumsum, of which no rule speaks"):
        types_of(broken)


def test_operands_that_do_not_meet() -> None:
    broken = parse_graph(str(COLUMN).replace("linear(xs, ws)", "linear(x, ws)"))
    with pytest.raises(InputError, match=r"operator c \(linear\) does not fit .* 2 are needed"):
        types_of(broken)


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_captured_graphs_lie_in_one_piece_and_erase_to_themselves(name: str) -> None:
    graph = load_model(f"zoo:{name}/tiny").graph
    types = types_of(graph)
    assert types == {tensor.name: plain(tensor.shape) for tensor in graph.definitions()}
    assert erase(graph) == graph


def test_an_erased_output_keeps_its_name() -> None:
    assert (
        str(erase(COLUMN))
        == """graph column
input x: float32[n=4, k=8]
parameter w: float32[o=6, k=8]
operator c: ys: float32[n=4, o=6] = linear(x, w)
operator e: z: float32[n=4, o=6] = cumsum(ys) {dim=0}
output z
"""
    )


def test_sizes_of_micro_batches_are_whole_again() -> None:
    graph = parse_graph("""graph steps
    input x: float32[n=4, k=8]
    parameter w: float32[o=6, k=8]
    operator y: y: float32[n=4, o=6] = linear(x, w)
    output y""")
    [steps] = Matcher(graph, RuleSet(PARALLEL), {"m": (2,)}).matches
    assert steps.rule.name == "linear-steps"
    rewritten = Matcher(graph, RuleSet(PARALLEL), {"m": (2,)}).rewrite(steps).graph
    assert rewritten.tensors["y~3"].shape == (2, 6)
    assert erase(rewritten).tensors["y"].shape == (4, 6)
    assert types_of(rewritten)["y~3"][0] == TypedAxis(2)


def test_what_is_no_layout_cannot_be_erased() -> None:
    doubled = parse_graph("""graph doubled
    input x: float32[n=4]
    operator a: a: float32[n=4] = replicate(x) {axis="copies", degree=2}
    operator b: b: float32[n=4] = reduce(a) {axis="copies", degree=2}
    output b""")
    with pytest.raises(InputError, match="operator b is a reduce over copies, which is no layout"):
        erase(doubled)
