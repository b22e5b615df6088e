"""Expert-parallel token dispatch and combine: dropless AllToAlls with exact counts. Enters: rows in
the order of all experts. Leaves: what their experts make of them.

Each device tells the others how many rows each of their experts gets, sends the rows, computes what
has come, and sends the results back the same way. Nothing is dropped and nothing padded. Gradients
take the same ways in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function

from meshwright.capture.execution.dropless_experts import Compute

Messages = Sequence[tuple[int, Tensor]]

Exchange = Callable[[Messages, Messages], None]
"""Sends to ranks, and receives from ranks into what is given."""


class RoutingPeers(NamedTuple):
    """The devices that share experts."""

    members: tuple[int, ...]
    """Their ranks."""
    experts: tuple[int, ...]
    """How many experts each of them holds."""
    rank: int
    """This device's."""
    exchange: Exchange

    def through(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """What the experts make of rows that are in the order of all experts."""
        ours = self.told(counts)
        leaving = [int(member_counts.sum()) for member_counts in self._by_member(counts.cpu())]
        coming = [int(count) for count in ours.sum(1).cpu()]
        arrived = _moved(rows, self, leaving, coming)
        experts = torch.arange(ours.shape[1], device=rows.device).repeat(len(self.members))
        ids = experts.repeat_interleave(ours.reshape(-1), output_size=len(arrived))
        order = ids.argsort(stable=True)
        outputs = compute(arrived[order], ours.sum(0))
        return _moved(outputs[order.argsort()], self, coming, leaving)

    def told(self, counts: Tensor) -> Tensor:
        """For each member how many rows it has for each expert of this device."""
        by_member = self._by_member(counts)
        place = self.members.index(self.rank)
        return torch.stack(self.exchanged(by_member, [by_member[place].shape] * len(self.members)))

    def exchanged(self, parts: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """What each member has for this device, given what this device has for each member."""
        received = [
            part if member == self.rank else part.new_empty(tuple(shape))
            for member, part, shape in zip(self.members, parts, shapes, strict=True)
        ]
        self.exchange(*(self._others(tensors) for tensors in (parts, received)))
        return received

    def _by_member(self, counts: Tensor) -> list[Tensor]:
        """What belongs to each member's experts."""
        ends = accumulate(self.experts)
        pairs = zip(ends, self.experts, strict=True)
        return [counts[end - size : end] for end, size in pairs]

    def _others(self, parts: Sequence[Tensor]) -> Messages:
        pairs = zip(self.members, parts, strict=True)
        return [(member, part) for member, part in pairs if member != self.rank]


class _Moved(Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, company: RoutingPeers, leaving: list[int], coming: list[int]
    ) -> Tensor:
        ctx.company, ctx.leaving, ctx.coming = company, leaving, coming
        return _sent(rows, company, leaving, coming)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None, None, None]:
        return _sent(arriving[0], ctx.company, ctx.coming, ctx.leaving), None, None, None


def _sent(rows: Tensor, company: RoutingPeers, leaving: list[int], coming: list[int]) -> Tensor:
    ends = list(accumulate(leaving))
    parts = [rows[end - size : end] for end, size in zip(ends, leaving, strict=True)]
    return torch.cat(company.exchanged(parts, [(size, *rows.shape[1:]) for size in coming]))


def _moved(rows: Tensor, company: RoutingPeers, leaving: list[int], coming: list[int]) -> Tensor:
    """Rows of other devices, in the order of their ranks, for rows of this one."""
    moved: Tensor = _Moved.apply(rows, company, leaving, coming)  # type: ignore[no-untyped-call]
    return moved
