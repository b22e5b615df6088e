"""Splits whose parts talk to each other inside the operator: as threads they make the whole."""

from __future__ import annotations

from math import prod

import pytest
import torch

from meshwright.graph.family import Split
from meshwright.graph.pieces import named_split_of, pieces, splits_of
from support.operator_cases import CASES, Case
from support.torch_pieces import run
from support.torch_together import run_together

APART = {"batch_norm"}
"""Kinds that have to know their place in a training run: see test_splits and tests/run."""

JOINT = [
    (case, split)
    for case in CASES
    for split in splits_of(case.call)
    if split.statistics and case.kind not in APART
]


def ways(split: Split) -> list[int]:
    """Of 2, 3 and 4 parts those of which only the last is shorter."""
    return [n for n in (2, 3, 4) if -(-split.extent // n) * (n - 1) < split.extent]


@pytest.mark.parametrize(
    ("case", "split"), JOINT, ids=[f"{case} along {split.name}" for case, split in JOINT]
)
def test_parts_that_talk_make_the_whole(case: Case, split: Split) -> None:
    call, tensors = case.call, case.tensors()
    generator = torch.Generator().manual_seed(7)
    expected = run(call, tensors)
    seeds = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in expected]
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    gradients = iter(torch.autograd.grad(expected, wanted, seeds, allow_unused=True))
    whole = [next(gradients) if t is not None and t.requires_grad else None for t in tensors]
    for parts in ways(split):
        together = run_together(call, split, parts, tensors, seeds)
        torch.testing.assert_close(together.outputs, expected, rtol=1e-9, atol=1e-11)
        for one, other in zip(together.gradients, whole, strict=True):
            if one is not None:
                other = torch.zeros_like(one) if other is None else other
                torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
        forward, backward = split.rounds
        assert (len(together.forward), len(together.backward)) == (forward, backward)
        assert set(together.forward + together.backward) == {split.statistics}


def hidden(case: Case) -> list[torch.Tensor | None]:
    """The case's tensors with -inf where a model would mask: scores of classes that are no target,
    and all keys of the first query.
    """
    tensors = case.tensors()
    place = 3 if "attention" in case.kind else 0
    scores, other = tensors[place], tensors[1]
    assert scores is not None
    assert other is not None
    with torch.no_grad():
        if place:
            scores[..., 0, :] = -torch.inf
        else:
            classes = torch.arange(scores.shape[1]).view(1, -1, *[1] * (scores.dim() - 2))
            scores.masked_fill_(classes != other.unsqueeze(1), -torch.inf)
            scores[:, 0] = 0.5
    return tensors


MASKED = [
    (case, split)
    for case, split in JOINT
    if (split.name == "key" and case.call.inputs[3:4] not in ((), (None,)))
    or (
        split.name == "class"
        and not case.call.get("label_smoothing")
        and "int" in case.call.inputs[1].dtype  # type: ignore[union-attr]
    )
]


@pytest.mark.parametrize(
    ("case", "split"), MASKED, ids=[f"{case} along {split.name}" for case, split in MASKED]
)
def test_masked_scores_are_those_of_the_whole(case: Case, split: Split) -> None:
    tensors = hidden(case)
    expected = run(case.call, tensors)
    seeds = [torch.ones_like(own) for own in expected]
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    gradients = iter(torch.autograd.grad(expected, wanted, seeds, allow_unused=True))
    whole = [next(gradients) if t is not None and t.requires_grad else None for t in tensors]
    together = run_together(case.call, split, 2, tensors, seeds)
    assert all(own.isfinite().all() for own in expected)
    torch.testing.assert_close(together.outputs, expected, rtol=1e-9, atol=1e-11)
    for one, other in zip(together.gradients, whole, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("case", "split"), JOINT, ids=[f"{case} along {split.name}" for case, split in JOINT]
)
def test_statistics_are_as_many_in_every_part(case: Case, split: Split) -> None:
    """A part all-reduces what the whole does, however little it has; cut along what statistics are
    told for, it has fewer.
    """
    for piece in pieces(case.call, split, ways(split)[0]):
        assert named_split_of(piece.call, split.name).statistics == split.statistics
    for other in splits_of(case.call):
        if other.name == split.name:
            continue
        part = pieces(case.call, other, 2)[0].call
        statistics = named_split_of(part, split.name).statistics
        assert statistics <= split.statistics
        assert prod(part.outputs[0].shape) <= prod(case.call.outputs[0].shape)
