"""Where the samples of a step lie, wherever transpositions have put them."""

from __future__ import annotations

from meshwright.graph.text import parse_graph
from meshwright.parallel.units import units


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
    own = {unit.name: unit for unit in units(parse_graph(text))}
    mix = own["mix"]
    assert mix.samples is not None
    assert mix.splits[mix.samples].name == "sample"


def test_micro_batches_cut_one_split_of_a_unit() -> None:
    for unit in units(parse_graph(TURNED)):
        ways = [unit.micro_ways(number, 2) for number in range(len(unit.splits))]
        assert sorted(ways) == [*[1] * (len(ways) - 1), 2]
