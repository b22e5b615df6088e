"""What ranks run in tests of collectives and reduction programs; they import it by name."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.price.collective import Collective
from meshwright.price.traffic import ring_parts, sent_bytes
from meshwright.run.wire import Wire

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool)
SIZES = ((3, 3, 3, 3), (5, 0, 1, 2), (0, 0, 0, 0), (1, 0, 0, 0), (70_000, 1, 40_000, 3))
"""How a whole is cut among up to four members; the last is more than a segment."""


def drawn(size: int, dtype: torch.dtype, rank: int, salt: int = 0) -> Tensor:
    """What a rank contributes: small whole numbers, whose sums every dtype here holds exactly."""
    random = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(0, 2 if dtype == torch.bool else 9, (size,), generator=random).to(dtype)


def summed(parts: Sequence[Tensor]) -> Tensor:
    """The sum from its definition; of Booleans whether any is true."""
    if parts[0].dtype == torch.bool:
        return torch.stack(list(parts)).any(0)
    return torch.stack(list(parts)).sum(0, dtype=parts[0].dtype)


class _Counted:
    """A wire whose count is compared with the formula after each collective."""

    def __init__(self, wire: Wire, members: tuple[int, ...]) -> None:
        self.wire, self.before = wire, wire.sent
        self.position = members.index(dist.get_rank())

    def expect(self, collective: Collective, sizes: Sequence[int]) -> None:
        sent, self.before = self.wire.sent - self.before, self.wire.sent
        assert sent == sent_bytes(collective, sizes, self.position), (collective, sizes, sent)


def every_collective(groups: Sequence[tuple[int, ...]]) -> int:
    """Check each collective in each group that this rank is in; how many checks there were."""
    wire, rank, checks = Wire(), dist.get_rank(), 0
    wire.prepare(groups)
    wire.prepare(groups)
    for members in groups:
        if rank in members:
            for cut in SIZES:
                for dtype in DTYPES:
                    _check(wire, members, cut[: len(members)], dtype)
                    checks += 1
    wire.finish()
    return checks


def _check(
    wire: Wire, members: tuple[int, ...], sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    whole, position = sum(sizes), members.index(dist.get_rank())
    everyone = [drawn(whole, dtype, member) for member in members]
    total, own = summed(everyone), everyone[position]
    item = own.element_size()
    cut = [size * item for size in sizes]
    counted = _Counted(wire, members)

    data = own.clone()
    wire.all_reduce(data, members)
    assert torch.equal(data, total)
    counted.expect(Collective.ALL_REDUCE, ring_parts(whole, item, len(members)))

    scattered = wire.reduce_scatter(torch.split(own, sizes), members)
    assert torch.equal(scattered, torch.split(total, sizes)[position])
    assert torch.equal(own, everyone[position])
    counted.expect(Collective.REDUCE_SCATTER, cut)

    gathered = wire.all_gather(scattered, sizes, members)
    assert [part.numel() for part in gathered] == list(sizes)
    assert torch.equal(torch.cat(gathered), total)
    counted.expect(Collective.ALL_GATHER, cut)

    data = own.clone()
    wire.reduce(data, members)
    assert torch.equal(data, total if position == 0 else own)
    counted.expect(Collective.REDUCE, cut)

    data = own.clone()
    wire.broadcast(data, members)
    assert torch.equal(data, everyone[0])
    counted.expect(Collective.BROADCAST, cut)


def strided() -> None:
    """Tensors that do not lie in one row, or that gradients flow through."""
    wire, rank, world = Wire(), dist.get_rank(), dist.get_world_size()
    members = tuple(range(world))
    ranks = sum(members)
    base = torch.arange(12.0).view(3, 4)

    for data in ((base + rank).t(), (base + rank)[:, ::2], (base + rank).requires_grad_()):
        before = data.detach().clone()
        wire.all_reduce(data, members)
        assert torch.equal(data, (before - rank) * world + ranks)
    data = (base + rank).t()
    wire.reduce(data, members)
    assert torch.equal(data, base.t() * world + ranks if rank == 0 else base.t() + rank)
    data = (base + rank).t()
    wire.broadcast(data, members)
    assert torch.equal(data, base.t())

    parts = [(base + rank).t()[:, :1] for _ in members]
    assert torch.equal(wire.reduce_scatter(parts, members), torch.arange(4.0) * world + ranks)
    gathered = wire.all_gather((base + rank)[:, 1], [3] * world, members)
    assert torch.equal(torch.stack(gathered), base[:, 1] + torch.arange(world)[:, None])


def exchanged() -> int:
    """Everybody sends to everybody, itself excepted: three messages of different sizes in order."""
    wire, rank, world = Wire(), dist.get_rank(), dist.get_world_size()
    others = [other for other in range(world) if other != rank]
    sizes = (5, 0, 70_000)
    sends = [(to, drawn(size, torch.float32, rank, to)) for to in others for size in sizes]
    receives = [(sender, torch.full((size,), -1.0)) for sender in others for size in sizes]
    wire.exchange(sends, receives)
    for sender, data in receives:
        assert torch.equal(data, drawn(data.numel(), torch.float32, sender, rank))
    into = torch.zeros(4, 3).t()
    right, left = (rank + 1) % world, (rank - 1) % world
    wire.exchange([(right, torch.full((4, 3), float(rank)).t())], [(left, into)])
    assert torch.equal(into, torch.full((3, 4), float(left)))
    wire.finish()
    return wire.sent


def sends_that_wait() -> float:
    """The first rank goes on before its messages are received, through a collective too."""
    wire, rank = Wire(), dist.get_rank()
    first, second, total = torch.ones(1000), torch.full((1000,), 2.0), torch.tensor(1.0)
    if rank == 0:
        wire.exchange([(1, first)], [])
        wire.exchange([(1, second)], [])
    wire.all_reduce(total, (0, 1))
    wire.broadcast(total, (0, 1))
    if rank == 1:
        into = [torch.zeros(1000), torch.zeros(1000)]
        wire.exchange([], [(0, into[0])])
        wire.exchange([], [(0, into[1])])
        assert torch.equal(into[0], first)
        assert torch.equal(into[1], second)
    wire.finish()
    return total.item()
