"""Gradients that are added up."""

from __future__ import annotations

import torch

from meshwright.run.exec.gradient_accumulator import GradientAccumulator


def test_a_sum_is_that_of_all_that_came() -> None:
    totals: GradientAccumulator[str] = GradientAccumulator()
    for value in (1.0, 2.0, 4.0):
        totals.add("w", torch.full((2,), value))
    totals.add("v", torch.ones(2))
    total = totals.taken("w")
    assert total is not None
    assert total.tolist() == [7.0, 7.0]
    assert totals.taken("w") is None


def test_nothing_that_came_is_written_to() -> None:
    totals: GradientAccumulator[str] = GradientAccumulator()
    came = [torch.full((2,), float(value)) for value in range(4)]
    for _ in range(2):
        for gradient in came:
            totals.add("w", gradient)
        assert totals.taken("w") is not None
    assert [tensor.tolist() for tensor in came] == [[float(value)] * 2 for value in range(4)]


def test_an_own_sum_is_a_copy_from_the_first_on() -> None:
    totals: GradientAccumulator[str] = GradientAccumulator()
    came = [torch.full((2,), float(value)) for value in (1, 2, 4)]
    sums = [totals.accumulate("w", gradient) for gradient in came]
    assert len({tensor.data_ptr() for tensor in (*sums, *came)}) == 4
    assert [tensor.tolist() for tensor in came] == [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]
    assert sums[0].tolist() == [7.0, 7.0]
