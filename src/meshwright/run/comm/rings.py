"""Ring collectives from sends and receives: ReduceScatter, AllGather, Reduce, Broadcast. Enters:
tensors and the members of a group, ascending. Leaves: the same on every member as the collective's
definition says.

Gloo's ReduceScatter is an AllReduce; its AllGather wants equal parts, and takes half as long again
where several groups share a link and do not begin at once; its Broadcast crosses a slow link once
for every member behind it, its Reduce up to 1.4 times. Here members stand in a ring (or a
chain) in the order of their ranks: each receives from the one before, adds its own and sends on, in
segments, so that all links are busy at once and each is crossed once by each byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.cost.collective_bytes import SEGMENT

EXCHANGE, COLLECTIVE = 0, 1
"""Tags: what is exchanged may wait for its receiver while collectives pass it by."""


class Mail:
    """Sends to and receives from single ranks; counts what it sends."""

    def __init__(self, world: dist.ProcessGroup | None) -> None:
        self._world = world
        self.sent_to: Counter[int] = Counter()
        """Bytes for each receiver."""

    def send(self, to: int, data: Tensor, tag: int = COLLECTIVE) -> dist.Work:
        """Begin to send contiguous data, which must live until the work is done."""
        self.sent_to[to] += data.nbytes
        return _begun(dist.isend(data, to, group=self._world, tag=tag))

    def receive(self, sender: int, data: Tensor, tag: int = COLLECTIVE) -> dist.Work:
        """Begin to receive into contiguous data."""
        return _begun(dist.irecv(data, sender, group=self._world, tag=tag))


def _begun(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is in the default group"
    return work


class _Piece(NamedTuple):
    """What is received, what is added to it, and whether it is sent on."""

    data: Tensor
    own: Tensor | None
    onward: bool
    largest: bool = False
    """Whether the larger is kept of both instead of their sum."""


def reduce_scatter(
    mail: Mail, parts: Sequence[Tensor], members: Sequence[int], *, largest: bool = False
) -> Tensor:
    """The sum, or the largest, of everybody's part for this member; parts are flat and
    contiguous.
    """
    position = members.index(dist.get_rank())
    order = [(position - hops) % len(members) for hops in range(1, len(members) + 1)]
    pieces = [
        _Piece(torch.empty_like(parts[p]), parts[p], p != position, largest) for p in order[1:]
    ]
    _relay(mail, parts[order[0]], pieces, members, position)
    return pieces[-1].data


def all_gather(
    mail: Mail, part: Tensor, sizes: Sequence[int], members: Sequence[int]
) -> list[Tensor]:
    """Everybody's part, in the order of the members; `part` is flat and contiguous."""
    position = members.index(dist.get_rank())
    after = (position + 1) % len(members)
    parts = [part if p == position else part.new_empty(size) for p, size in enumerate(sizes)]
    order = [(position - hops) % len(members) for hops in range(1, len(members))]
    _relay(mail, part, [_Piece(parts[p], None, p != after) for p in order], members, position)
    return parts


def reduce(mail: Mail, data: Tensor, members: Sequence[int], *, largest: bool = False) -> None:
    """The sum, or the largest, in place, on the first member; the data of the others stays as it
    was.
    """
    backwards = tuple(reversed(members))
    position = backwards.index(dist.get_rank())
    if position == 0:
        _relay(mail, data, (), backwards, position)
        return
    last = position == len(members) - 1
    piece = _Piece(torch.empty_like(data), data, not last, largest)
    _relay(mail, None, [piece], backwards, position)
    if last:
        data.copy_(piece.data)


def broadcast(mail: Mail, data: Tensor, members: Sequence[int]) -> None:
    """The first member's data, in place, on everybody."""
    position = members.index(dist.get_rank())
    if position == 0:
        _relay(mail, data, (), members, position)
    else:
        piece = _Piece(data, None, position < len(members) - 1)
        _relay(mail, None, [piece], members, position)


def _relay(
    mail: Mail,
    first: Tensor | None,
    pieces: Iterable[_Piece],
    members: Sequence[int],
    position: int,
) -> None:
    """Send what comes first to the next member; receive pieces from the one before, send them on.

    All receives are posted at once: gloo's sender waits until its receiver is ready.
    """
    before, after = members[position - 1], members[(position + 1) % len(members)]
    segments = [segment for piece in pieces for segment in _segments(piece)]
    arriving = [mail.receive(before, segment.data) for segment in segments]
    start = [] if first is None else [_Piece(first, None, True)]
    leaving = [mail.send(after, chunk.data) for piece in start for chunk in _segments(piece)]
    for work, segment in zip(arriving, segments, strict=True):
        work.wait()
        if segment.own is not None and segment.largest:
            torch.maximum(segment.data, segment.own, out=segment.data)
        elif segment.own is not None:
            segment.data.add_(segment.own)
        if segment.onward:
            leaving.append(mail.send(after, segment.data))
    for work in leaving:
        work.wait()


def _segments(piece: _Piece) -> Iterator[_Piece]:
    each = max(1, SEGMENT // piece.data.element_size())
    for begin in range(0, piece.data.numel(), each):
        cut = slice(begin, begin + each)
        part = None if piece.own is None else piece.own[cut]
        yield _Piece(piece.data[cut], part, piece.onward, piece.largest)
