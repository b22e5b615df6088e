"""Cross-mesh resharding between pipeline stages: send/recv of chunks, then all-gather. Enters:
tensors of one micro-batch, whole on every rank of the part that has them. Leaves: the same on every
rank of the part that wants them.

A tensor is cut, as a row of numbers, into as many chunks as the larger of both parts has ranks.
Each chunk goes from one rank to one other, and those who received gather them inside of their
island: so each byte crosses the links between islands once, through the ports of all ranks of the
smaller part. Gradients go back the same way. What is sent is under way until `finish`. Between
islands all travels by gloo, from GPUs through the memory of their hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.operator_graph import OperatorGraph, Spec
from meshwright.graph.stage_graph import GATE
from meshwright.run.comm.communicator import Communicator

THERE, BACK = 0, 1
"""Tags."""


class StageLink(NamedTuple):
    """A tensor that goes from one part to a later one."""

    tensor: str
    sender: int
    receiver: int
    spec: Spec
    """Of one micro-batch."""
    backward: bool
    """Whether its gradient comes back."""

    @property
    def gate(self) -> str:
        """What it is called behind the gate of the stage that it enters."""
        return f"{self.tensor}.{GATE}"


def stage_links(graphs: Sequence[OperatorGraph]) -> tuple[StageLink, ...]:
    """What goes between parts, given their graphs, one for each stage.

    >>> from meshwright.graph.stage_graph import stage_graph
    >>> from meshwright.graph.text import parse_graph
    >>> graph = parse_graph('''graph g
    ... input x: float32[n=4, i=8]
    ... parameter w: float32[o=2, i=8]
    ... operator y: y: float32[n=4, o=2] = linear(x, w)
    ... operator l: l: float32[] = sum(y)
    ... loss l''')
    >>> stages = [stage_graph(graph, [name], name) for name in ("y", "l")]
    >>> [(link.tensor, link.sender, link.receiver, link.backward) for link in stage_links(stages)]
    [('y', 0, 1, True)]
    """
    links = []
    for receiver, graph in enumerate(graphs):
        for tensor in graph.inputs:
            makers = [n for n in range(receiver) if tensor.name in graphs[n].producers]
            for sender in makers[:1]:
                link = StageLink(tensor.name, sender, receiver, tensor.spec, backward=False)
                links.append(link._replace(backward=link.gate in graph.tensors))
    return tuple(links)


class StageMail:
    """How a rank of one part talks to those of others."""

    def __init__(
        self, ranks: Sequence[tuple[int, ...]], rank: int, store: Store, wire: Communicator
    ) -> None:
        """Enter besides: the ranks of each part; how this rank talks inside of its own."""
        self._ranks, self.rank, self._wire = tuple(ranks), rank, wire
        self._own = next(members for members in ranks if rank in members)
        patience = dist.distributed_c10d.default_pg_timeout
        group = dist.ProcessGroupGloo(store, rank, sum(map(len, ranks)), patience)
        self._group: dist.ProcessGroup = group  # type: ignore[assignment]
        self._leaving: list[tuple[dist.Work, Tensor]] = []

    def send(self, link: StageLink, whole: Tensor, *, backward: bool = False) -> None:
        """Begin to send what every rank of this part has."""
        flat = whole.detach().contiguous().view(-1)
        chunks = torch.split(flat, list(self._sizes(link)))
        for chunk, (sender, receiver) in zip(chunks, self._pairs(link, backward), strict=True):
            if sender == self.rank and len(chunk):
                on_host = chunk.cpu()
                work = self._group.send([on_host], receiver, BACK if backward else THERE)
                self._leaving.append((work, on_host))

    def receive(self, link: StageLink, *, backward: bool = False) -> Tensor:
        """The chunks that come to this rank, in a row, on the host."""
        sizes, pairs = self._sizes(link), self._pairs(link, backward)
        dtype = torch_dtype(link.spec.dtype)
        chunks = [torch.empty(0, dtype=dtype)]
        for size, (sender, receiver) in zip(sizes, pairs, strict=True):
            if receiver == self.rank and size:
                chunks.append(torch.empty(size, dtype=dtype))
                self._group.recv([chunks[-1]], sender, BACK if backward else THERE).wait()
        return torch.cat(chunks)

    def together(self, link: StageLink, received: Tensor, *, backward: bool = False) -> Tensor:
        """The whole tensor, of what the ranks of this part have received; all of them call it."""
        sizes = self._sizes(link)
        takers = [receiver for _, receiver in self._pairs(link, backward)]
        mine = [[n for n, taker in enumerate(takers) if taker == rank] for rank in self._own]
        counts = [sum(sizes[n] for n in numbers) for numbers in mine]
        members = tuple(range(len(self._own)))
        chunks: dict[int, Tensor] = {}
        for numbers, row in zip(
            mine, self._wire.all_gather(received, counts, members), strict=True
        ):
            chunks |= zip(numbers, torch.split(row, [sizes[n] for n in numbers]), strict=True)
        return torch.cat([chunks[n] for n in range(len(sizes))]).view(link.spec.shape)

    def finish(self) -> None:
        """Wait for what is still under way."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()

    def total(self, value: Tensor) -> Tensor:
        """The sum of a number over all ranks."""
        number = value.detach().double().reshape(1).clone()
        self._group.allreduce([number], dist.AllreduceOptions()).wait()
        return number[0]

    def to_first(self, value: Tensor, sender: int) -> None:
        """Have the first rank of all receive in place what a rank sends."""
        if self.rank == sender:
            self._group.send([value], 0, THERE).wait()
        elif self.rank == 0:
            self._group.recv([value], sender, THERE).wait()

    def _sizes(self, link: StageLink) -> tuple[int, ...]:
        widest = max(len(self._ranks[link.sender]), len(self._ranks[link.receiver]))
        each = -(-link.spec.elements // widest)
        ends = (min(link.spec.elements, each * n) for n in range(widest + 1))
        return tuple(end - begin for begin, end in pairwise(ends))

    def _pairs(self, link: StageLink, backward: bool) -> list[tuple[int, int]]:
        """For each chunk who sends it, and to whom."""
        senders, receivers = self._ranks[link.sender], self._ranks[link.receiver]
        if backward:
            senders, receivers = receivers, senders
        widest = max(len(senders), len(receivers))
        return [(senders[n % len(senders)], receivers[n % len(receivers)]) for n in range(widest)]
