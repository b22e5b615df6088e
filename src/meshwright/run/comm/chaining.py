"""Multi-step collectives executed on ranks (recursive halving and doubling). Enters: tensors and
the links of a chain (`lower.chains`). Leaves: what one collective over all of its factors would
leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from meshwright.lower.chains import ChainLink
from meshwright.run.comm.communicator import Communicator


def reduce_scatter(
    wire: Communicator, parts: Sequence[Tensor], links: Sequence[ChainLink]
) -> Tensor:
    """The sum of everybody's part for this member, flat; parts are so too."""
    held = dict(enumerate(parts))
    for link in links:
        shares = [_row([held[piece] for piece in share]) for share in link.pieces]
        total = wire.reduce_scatter(shares, link.members)
        kept = link.pieces[link.place]
        lengths = [held[piece].numel() for piece in kept]
        held = dict(zip(kept, torch.split(total, lengths), strict=True))
    (part,) = held.values()
    return part


def all_gather(
    wire: Communicator, shard: Tensor, sizes: Sequence[int], links: Sequence[ChainLink]
) -> list[Tensor]:
    """Everybody's part, flat; `sizes[i]` is the number of elements of member i."""
    (first,) = links[0].pieces[links[0].place]
    held = {first: shard}
    for link in links:
        row = _row([held[piece] for piece in link.pieces[link.place]])
        lengths = [[sizes[piece] for piece in share] for share in link.pieces]
        gathered = wire.all_gather(row, list(map(sum, lengths)), link.members)
        for share, part, cuts in zip(link.pieces, gathered, lengths, strict=True):
            held |= zip(share, torch.split(part, cuts), strict=True)
    return [held[piece] for piece in range(len(sizes))]


def reduce(wire: Communicator, data: Tensor, links: Sequence[ChainLink]) -> None:
    """The sum over everybody on the root, in place; of others the data is of no use afterwards."""
    for link in links:
        wire.reduce(data, link.members)


def broadcast(wire: Communicator, data: Tensor, links: Sequence[ChainLink]) -> None:
    """The root's data on everybody, in place."""
    for link in links:
        wire.broadcast(data, link.members)


def _row(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
