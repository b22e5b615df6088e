"""The law of random numbers: by place on any plan, and others for others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.pieces import Box
from meshwright.run.exec.random_bits import kept, key_of, mixed, uniform

CPU = torch.device("cpu")
SHAPE = (6, 4, 40)
WHOLE: Box = tuple((0, size) for size in SHAPE)


def test_it_is_splitmix64() -> None:
    # The first three numbers of the reference implementation from seed 0.
    published = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
    assert [mixed(n) % (1 << 64) for n in (1, 2, 3)] == list(published)


class Draw(NamedTuple):
    """Whose mask it is."""

    seed: int
    step: int
    name: str

    @property
    def mask(self) -> torch.Tensor:
        return kept(key_of(*self), WHOLE, SHAPE, 0.5, CPU)


draws_ = st.builds(
    Draw,
    st.integers(0, 2**63 - 1),
    st.integers(0, 10**6),
    st.sampled_from(["dropout", "dropout_1", "layers.0/dropout", "x"]),
)


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    pairs = [draw(st.tuples(st.integers(0, n - 1), st.integers(1, n))) for n in SHAPE]
    return tuple((min(a, b - 1), max(a + 1, b)) for a, b in pairs)


@given(draws_, boxes())
def test_a_piece_draws_what_the_whole_draws_there(draw: Draw, box: Box) -> None:
    inside = tuple(slice(*range_) for range_ in box)
    key = key_of(*draw)
    assert torch.equal(kept(key, box, SHAPE, 0.5, CPU), draw.mask[inside])
    assert torch.equal(uniform(key, box, SHAPE, CPU), uniform(key, WHOLE, SHAPE, CPU)[inside])


def alike(one: torch.Tensor, other: torch.Tensor) -> float:
    """The share of elements that agree; of independent masks about a half."""
    return float((one == other).double().mean())


@given(draws_, draws_)
def test_masks_of_other_operators_steps_and_seeds_are_others(one: Draw, other: Draw) -> None:
    if one == other:
        return
    first, second = one.mask.flatten(), other.mask.flatten()
    # 960 fair coins: further off than 7 standard deviations once in 10^12 times.
    assert abs(alike(first, second) - 0.5) < 0.12
    for shift in (1, 4, 40, 160):
        assert abs(alike(first[shift:], second[:-shift]) - 0.5) < 0.14, shift


@given(draws_)
def test_masks_of_samples_are_others(draw: Draw) -> None:
    samples = draw.mask.flatten(1)
    for one in range(1, len(samples)):
        # 160 fair coins, 7 standard deviations.
        assert abs(alike(samples[0], samples[one]) - 0.5) < 0.28
        assert abs(alike(samples[0][1:], samples[one][:-1]) - 0.5) < 0.28


def test_as_many_are_kept_as_are_to_be() -> None:
    box: Box = ((0, 1000), (0, 1000))
    for probability in (0.0, 0.1, 0.5, 0.9, 1.0):
        share = kept(mixed(5), box, (1000, 1000), probability, CPU).double()
        deviation = (probability * (1 - probability) / 1e6) ** 0.5
        assert abs(float(share.mean()) - probability) <= 6 * deviation
        by_row, by_column = share.mean(0), share.mean(1)
        for means in (by_row, by_column):
            assert float((means - probability).abs().max()) <= 6 * deviation * 1000**0.5
