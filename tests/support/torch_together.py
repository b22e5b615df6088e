"""Pieces of an operator that talk to each other, each run by a thread of its own as by a device.

Enters: calls, splits and tensors. Leaves: outputs and gradients of the whole, put together from the
definition of a `Split`. All-reduces are sums and maxima of what the threads bring to a barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import NamedTuple

import torch

from meshwright.capture.execution.shard_kernels import run_call
from meshwright.capture.execution.sharded_softmax import JointReductions
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import Call
from meshwright.graph.pieces import CallPiece, pieces
from support.torch_pieces import cut

Given = torch.Tensor | None


class Meeting:
    """Where the threads of an operator meet."""

    def __init__(self, parts: int) -> None:
        self._barrier = Barrier(parts, timeout=20)
        self._brought: list[torch.Tensor] = [torch.empty(0)] * parts
        self.counts: list[list[int]] = [[] for _ in range(parts)]
        """For each part the elements of each of its all-reduces."""

    def together(self, part: int) -> JointReductions:
        return JointReductions(
            partial(self._reduced, part, lambda stacked: stacked.sum(0)),
            partial(self._reduced, part, lambda stacked: stacked.amax(0)),
        )

    def _reduced(
        self, part: int, joined: Callable[[torch.Tensor], torch.Tensor], data: torch.Tensor
    ) -> torch.Tensor:
        self.counts[part].append(data.numel())
        self._brought[part] = data.detach().clone()
        self._barrier.wait()
        reduced = joined(torch.stack(self._brought))
        self._barrier.wait()
        return reduced


class Run(NamedTuple):
    """What the parts make of the whole, and what they told each other."""

    outputs: tuple[torch.Tensor, ...]
    gradients: tuple[Given, ...]
    forward: list[int]
    backward: list[int]
    """Elements of each all-reduce in both passes, of the first part."""


def run_together(
    call: Call, split: Split, parts: int, tensors: Sequence[Given], seeds: Sequence[torch.Tensor]
) -> Run:
    """The outputs of a call and the gradients of its inputs, given those of its outputs."""
    cuts, meeting = pieces(call, split, parts), Meeting(parts)

    def own(number: int) -> tuple[list[torch.Tensor], list[Given], int]:
        piece = cuts[number]
        leaves = [_leaf(t, box) for t, box in zip(tensors, piece.inputs, strict=True)]
        outputs = run_call(piece.call, tuple(leaves), meeting.together(number))
        assert [tuple(m.shape) for m in outputs] == [spec.shape for spec in piece.call.outputs]
        count = len(meeting.counts[number])
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        arriving = [cut(s, box) for s, box in zip(seeds, piece.outputs, strict=True)]
        gradients = iter(torch.autograd.grad(outputs, wanted, arriving, allow_unused=True))
        return (
            [m.detach() for m in outputs],
            [next(gradients) if x is not None and x.requires_grad else None for x in leaves],
            count,
        )

    with ThreadPoolExecutor(parts) as pool:
        results = list(pool.map(own, range(parts)))
    forward_count, part_outputs = results[0][2], [result[0] for result in results]
    return Run(
        tuple(
            torch.stack(mine).sum(0) if dim is None else torch.cat(mine, dim)
            for dim, mine in zip(split.outputs, zip(*part_outputs, strict=True), strict=True)
        ),
        tuple(_gradient(t, i, cuts, [r[1][i] for r in results]) for i, t in enumerate(tensors)),
        meeting.counts[0][:forward_count],
        meeting.counts[0][forward_count:],
    )


def _leaf(tensor: Given, box: object) -> Given:
    if tensor is None or box is None:
        return None
    return cut(tensor, box).detach().clone().requires_grad_(tensor.requires_grad)  # type: ignore[arg-type]


def _gradient(
    tensor: Given, index: int, cuts: Sequence[CallPiece], parts: Sequence[Given]
) -> torch.Tensor | None:
    """Each part's gradient put where its piece lies, all added up."""
    if tensor is None or not tensor.requires_grad:
        return None
    gradient = torch.zeros_like(tensor, requires_grad=False)
    for piece, part in zip(cuts, parts, strict=True):
        box = piece.inputs[index]
        if part is not None and box is not None:
            cut(gradient, box).add_(part)
    return gradient
