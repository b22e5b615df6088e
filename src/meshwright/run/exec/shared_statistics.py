"""Running statistics of a batch normalisation that is called several times in a step. Enters: what
each call finds of its channels in each micro-batch. Leaves: the buffers, as eager has them.

    r <- (1 - m) r + m s    for each micro-batch, for each call in the order of the model

Calls may run in another order than the model's and on other devices (stages, channels), so each
writes what it finds into a place of its own. When all have run, ranks that lack some of it tell
each other, and every rank follows all of it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.graph.pieces import Box
from meshwright.graph.running_statistics import MEAN, following
from meshwright.lower.script import Script
from meshwright.plan.plan import Plan

Found = tuple[Tensor, Tensor]
"""Mean and variance of some channels."""


class CallStatistics:
    """What such calls find in a step, as one rank knows it."""

    def __init__(self, script: Script, rank: int) -> None:
        graph = script.plan.graph
        shared = (calls for calls in following(graph).values() if len(calls) > 1)
        calls = tuple(chain.from_iterable(shared))
        self.names = frozenset(call.name for call in calls)
        held = _held(script, self.names)
        self._order = tuple(
            (shared, micro)
            for micro in range(script.plan.options.micro_batches)
            for shared in calls
            if shared.name in held
        )
        devices = range(script.plan.cluster.devices)
        self._sizes = {call.name: graph.specs[call.inputs[MEAN] or ""].elements for call in calls}
        self._told = any(
            boxes != dict.fromkeys(devices, ((0, self._sizes[name]),))
            for name, boxes in held.items()
        )
        """Whether a rank lacks some of it."""
        self._answers = {
            name: boxes[rank][0]
            for name, boxes in held.items()
            if rank in boxes and (not self._told or rank == _first(boxes, boxes[rank]))
        }
        """The channels that this rank tells the others of, for each call."""
        self._found: dict[tuple[str, int], Found] = {}

    def place(self, call: str, micro: int, mean: Tensor, variance: Tensor) -> Found:
        """Where a call writes what it finds, like these running statistics."""
        self._found[call, micro] = torch.zeros_like(mean), torch.zeros_like(variance)
        return self._found[call, micro]

    @torch.no_grad()
    def follow(self, buffers: Mapping[str, Tensor]) -> None:
        """Have running statistics follow what was found; all ranks take part."""
        if not self._order:
            return
        device = buffers[self._order[0][0].inputs[MEAN] or ""].device
        rows = [self._row(norm_call.name, micro, device) for norm_call, micro in self._order]
        totals = torch.cat(rows, 1)
        if self._told:
            dist.all_reduce(totals)
        parts = torch.split(totals, [row.shape[1] for row in rows], 1)
        for (call, _), part in zip(self._order, parts, strict=True):
            momentum = dict(call.attributes).get("momentum", 0.1)
            assert isinstance(momentum, int | float)
            for name, value in zip(call.inputs[MEAN:], part, strict=True):
                running = buffers[name or ""]
                running.lerp_(value.to(running.dtype), momentum)
        self._found.clear()

    def _row(self, call: str, micro: int, device: torch.device) -> Tensor:
        """Mean and variance of all channels, zeros where this rank does not answer."""
        row = torch.zeros(2, self._sizes[call], dtype=torch.float64, device=device)
        if call in self._answers:
            first, last = self._answers[call]
            row[:, first:last] = torch.stack(self._found[call, micro])
        return row


def counters(plan: Plan, buffers: Container[str]) -> tuple[tuple[str, int], ...]:
    """The counters of batch normalisations, and by how much a step in training advances each."""
    calls = {
        mean.removesuffix("running_mean") + "num_batches_tracked": len(followers)
        for mean, followers in following(plan.graph).items()
    }
    times = plan.options.micro_batches
    return tuple((key, times * n) for key, n in calls.items() if key in buffers)


def _held(script: Script, calls: AbstractSet[str]) -> dict[str, dict[int, Box]]:
    """For each call that a step runs the channels that each device has of it."""
    parallel, channels = script.parallel, dict[str, dict[int, Box]]()
    running = {
        instruction.number for instruction in script.instructions if instruction.kind == "Run"
    }
    for unit, tasks in enumerate(parallel.tasks):
        others = calls.isdisjoint(member.operator for member in tasks.unit.members)
        if others or script.home[unit] not in running:
            continue
        for device in range(script.plan.cluster.devices):
            coordinates = parallel.machine.coordinates(device)
            for piece in tasks.pieces(coordinates, 0) if tasks.works(coordinates) else ():
                box = piece.inputs[MEAN] if piece.operator in calls else None
                if box is not None:
                    channels.setdefault(piece.operator, {})[device] = box
    return channels


def _first(boxes: Mapping[int, Box], box: Box) -> int:
    """The first device that has some channels."""
    return next(device for device, other in boxes.items() if other == box)
