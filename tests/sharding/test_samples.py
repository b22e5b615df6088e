"""Where the samples of a step lie, wherever transpositions have put them."""

from __future__ import annotations

import pytest

from meshwright.base.errors import InputError
from meshwright.graph.text import parse_graph
from meshwright.sharding.micro_batches import micro_batch_states, supports_micro_batches
from meshwright.sharding.states import WHOLE
from meshwright.sharding.units import units


def followed(text: str) -> dict[str, str | None]:
    """For each unit the split that cuts its samples."""
    return {
        unit.name: None if unit.samples is None else unit.splits[unit.samples].name
        for unit in units(parse_graph(text))
    }


TURNED = """graph turned
input x: float32[n=4, t=6, d=8]
parameter w: float32[o=8, d=8]
operator turn: a: float32[t=6, n=4, d=8] = transpose(x) {dim0=0, dim1=1}
operator mix: b: float32[t=6, n=4, o=8] = linear(a, w)
operator back: c: float32[n=4, t=6, o=8] = transpose(b) {dim0=0, dim1=1}
operator last: d: float32[n=4, t=6, o=8] = linear(c, w)
output d
"""


def test_samples_are_followed_through_transpositions() -> None:
    assert followed(TURNED) == {"turn": "dim1", "mix": "row1", "last": "sample"}


def test_what_depends_on_no_input_has_no_samples() -> None:
    text = """graph biased
input x: float32[n=4, d=8]
parameter p: float32[n=4, d=8]
parameter w: float32[o=8, d=8]
operator bias: b: float32[n=4, d=8] = exp(p)
operator mix: y: float32[n=4, o=8] = linear(x, w)
output b
output y
"""
    assert followed(text) == {"bias": None, "mix": "sample"}


def test_a_unit_that_mixes_samples_is_cut_along_what_comes_first() -> None:
    text = """graph mixed
input x: float32[n=4, d=8]
parameter w: float32[o=8, n=4]
operator y: a: float32[n=4, d=8] = relu(x)
operator turn: t: float32[d=8, n=4] = transpose(a) {dim0=0, dim1=1}
operator mix: b: float32[d=8, o=8] = linear(t, w)
output b
"""
    by_name = {unit.name: unit for unit in units(parse_graph(text))}
    mix = by_name["mix"]
    assert mix.samples is not None
    assert mix.splits[mix.samples].name == "sample"


def test_micro_batches_cut_one_split_of_a_unit() -> None:
    for unit in units(parse_graph(TURNED)):
        ways = [unit.micro_ways(number, 2) for number in range(len(unit.splits))]
        assert sorted(ways) == [*[1] * (len(ways) - 1), 2]


POSITIONS = """graph positions
input t: int64[n=4, t=6]
parameter words: float32[v=9, d=8]
parameter table: float32[m=7, d=8]
operator look: x: float32[n=4, t=6, d=8] = embedding(words, t)
operator first: p: float32[t=6, d=8] = {how}
operator sum: y: float32[n=4, t=6, d=8] = add(x, p)
output y
"""


@pytest.mark.parametrize(
    "text",
    [
        POSITIONS.format(how="slice(table) {dim=0, end=6, start=0}"),
        POSITIONS.format(how="embedding(table, r)").replace(
            "operator first", "operator range: r: int64[t=6] = arange() {end=6}\noperator first"
        ),
    ],
    ids=["slice", "arange"],
)
def test_a_sum_with_positions_has_the_samples_of_words(text: str) -> None:
    """Whatever comes first: the sum is no part of a unit without samples."""
    graph = parse_graph(text)
    samples = followed(text)
    assert samples["sum"] == "sample"
    assert samples["first"] is None
    states = micro_batch_states(graph, 2)
    assert (states["x"], states["p"], states["y"]) == (0, WHOLE, 0)
    lines = text.splitlines()
    moved = [line for line in lines if line.startswith(("operator range", "operator first"))]
    others = [line for line in lines if line not in moved]
    turned = parse_graph("\n".join([*others[:4], *moved, *others[4:]]))
    assert dict(micro_batch_states(turned, 2)) == states


TOKEN = """graph token
input x: float32[n=4, t=6, d=8]
parameter c: float32[one=1, two=1, d=8]
operator norm: k: float32[one=1, two=1, d=8] = exp(c)
operator every: e: float32[n=4, two=1, d=8] = expand(k) {size=[4, -1, -1]}
operator all: y: float32[n=4, u=7, d=8] = cat(e, x) {dim=1}
output y
"""


def test_a_class_token_for_every_sample_is_cut_as_they_are() -> None:
    assert followed(TOKEN) == {"norm": None, "every": "sample", "all": "sample"}
    assert dict(micro_batch_states(parse_graph(TOKEN), 4)) == {"k": WHOLE, "e": 0, "y": 0}


def test_who_needs_all_samples_is_named() -> None:
    graph = parse_graph("""graph sorted
input x: float32[n=4]
parameter w: float32[n=4]
operator a: a: float32[n=4] = mul(x, w)
operator b: b: float32[n=4] = cumsum(a) {dim=0}
output b""")
    with pytest.raises(InputError, match="unit 'b' needs all samples of 'a' at once, but there"):
        micro_batch_states(graph, 2)
    assert supports_micro_batches(graph, 1)
    assert not supports_micro_batches(graph, 2)
