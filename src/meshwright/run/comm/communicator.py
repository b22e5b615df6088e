"""The communicator of a rank. Enters: tensors and members of a group, as global ranks, ascending.
Leaves: what the collective's definition says, and a count of the bytes that left this rank.

Gloo does AllReduce in a ring of its own; everything else is made of sends in `rings`. NCCL does
everything itself. Complex numbers, which neither library sums, travel as pairs of real ones. What
is computed, and why data moves, is not known here. A wire is used by one thread at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.cost.collective import Collective
from meshwright.cost.collective_bytes import ring_parts, sent_bytes
from meshwright.run.comm import rings
from meshwright.run.comm.process_groups import Groups
from meshwright.run.comm.rings import EXCHANGE, Mail


class Communicator:
    """How this rank talks to others; counts what it sends.

    Groups of one do nothing. Sums of Booleans are true where any of them is.
    """

    def __init__(self, world: dist.ProcessGroup | None = None) -> None:
        """All goes through a group of all ranks, the default one if None.

        Every rank makes its wires in the same order; those of several threads need groups of
        their own.
        """
        self._rank, self._world = dist.get_rank(), world
        self._native = dist.get_backend(world) == "nccl"
        self._groups = Groups(world)
        self._mail = Mail(world)
        self._leaving: list[tuple[dist.Work, Tensor]] = []

    @property
    def sent(self) -> int:
        """Payload bytes that left this rank so far."""
        return self.sent_to.total()

    @property
    def sent_to(self) -> Counter[int]:
        """The same for each receiver; in a library's ring that is the next member."""
        return self._mail.sent_to

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Make the process groups this rank is in, once each.

        Every member calls it with the same groups in the same order.
        """
        self._groups.prepare(groups)

    def all_reduce(self, data: Tensor, members: tuple[int, ...], *, largest: bool = False) -> None:
        """The sum over the members, or the largest, in place."""
        if len(members) < 2 or not data.numel():
            return
        flat = _flat(data)
        options = dist.AllreduceOptions()
        # Booleans of gloo are bytes, which sums would make larger than one.
        options.reduceOp = dist.ReduceOp(_operation(largest or data.dtype == torch.bool))
        self._groups.of(members).allreduce([flat], options).wait()
        _put_back(data, flat)
        parts = ring_parts(flat.numel(), flat.element_size(), len(members))
        self._count(Collective.ALL_REDUCE, parts, members)

    def reduce_scatter(
        self, parts: Sequence[Tensor], members: tuple[int, ...], *, largest: bool = False
    ) -> Tensor:
        """The sum, or the largest, of everybody's part for this member, flat; `parts[i]` is for
        member i.
        """
        flat = [_flat(part) for part in parts]
        return _like(parts[0], self._reduce_scatter(flat, members, largest))

    def _reduce_scatter(
        self, parts: list[Tensor], members: tuple[int, ...], largest: bool
    ) -> Tensor:
        if len(members) < 2:
            return parts[0].clone()
        if not self._native:
            return rings.reduce_scatter(self._mail, parts, members, largest=largest)
        result = torch.empty_like(parts[members.index(self._rank)])
        options = dist.ReduceScatterOptions()
        options.reduceOp = dist.ReduceOp(_operation(largest))
        self._groups.of(members).reduce_scatter([result], [parts], options).wait()
        self._count(Collective.REDUCE_SCATTER, [part.nbytes for part in parts], members)
        return result

    def all_gather(
        self, shard: Tensor, sizes: Sequence[int], members: tuple[int, ...]
    ) -> list[Tensor]:
        """Everybody's part, flat; `sizes[i]` is the number of elements of member i."""
        each = 2 if shard.is_complex() else 1
        parts = self._all_gather(_flat(shard), [each * size for size in sizes], members)
        return [_like(shard, part) for part in parts]

    def _all_gather(
        self, flat: Tensor, sizes: Sequence[int], members: tuple[int, ...]
    ) -> list[Tensor]:
        if len(members) < 2:
            return [flat.clone()]
        if not self._native:
            return rings.all_gather(self._mail, flat, sizes, members)
        parts = [flat.new_empty(size) for size in sizes]
        if any(sizes):
            self._groups.of(members).allgather([parts], [flat]).wait()
        self._count(Collective.ALL_GATHER, [part.nbytes for part in parts], members)
        return parts

    def reduce(self, data: Tensor, members: tuple[int, ...], *, largest: bool = False) -> None:
        """The sum over the members, or the largest, on the first of them, in place; the others keep
        their data.
        """
        if len(members) < 2:
            return
        flat = _flat(data)
        if self._native:
            flat = flat.clone()
            self._groups.of(members).reduce(flat, 0, _operation(largest)).wait()
            self._count(Collective.REDUCE, _as_parts(flat, members), members)
        else:
            rings.reduce(self._mail, flat, members, largest=largest)
        if self._rank == members[0]:
            data.detach().copy_(_like(data, flat).view(data.shape))

    def broadcast(self, data: Tensor, members: tuple[int, ...]) -> None:
        """The first member's data on all of them, in place."""
        if len(members) < 2:
            return
        flat = _flat(data)
        if self._native:
            self._groups.of(members).broadcast(flat, 0).wait()
            self._count(Collective.BROADCAST, _as_parts(flat, members), members)
        else:
            rings.broadcast(self._mail, flat, members)
        _put_back(data, flat)

    def exchange(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """Send to and receive from single ranks; several between the same two stay in order.

        It returns when everything is received. What is sent must not be changed before `finish`.
        """
        into = [(sender, data, _flat(data)) for sender, data in receives if data.numel()]
        leaving = [(to, _flat(data)) for to, data in sends if data.numel()]
        if self._native:
            self._exchange_at_once(leaving, [(sender, flat) for sender, _, flat in into])
        else:
            works = [self._mail.receive(sender, flat, EXCHANGE) for sender, _, flat in into]
            self._leaving += [(self._mail.send(to, flat, EXCHANGE), flat) for to, flat in leaving]
            for work in works:
                work.wait()
        for _, data, flat in into:
            _put_back(data, flat)

    def finish(self) -> None:
        """Wait for the sends of `exchange` that are still under way."""
        for work, _ in self._leaving:
            work.wait()
        self._leaving.clear()

    def _exchange_at_once(
        self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]
    ) -> None:
        """NCCL has no tags, and hangs on two ranks that send to each other one by one."""
        batch = [dist.P2POp(dist.isend, flat, to, self._world) for to, flat in sends]
        batch += [dist.P2POp(dist.irecv, flat, sender, self._world) for sender, flat in receives]
        for work in dist.batch_isend_irecv(batch) if batch else ():
            work.wait()
        for to, flat in sends:
            self._mail.sent_to[to] += flat.nbytes

    def _count(
        self, collective: Collective, sizes: Sequence[int], members: tuple[int, ...]
    ) -> None:
        place = members.index(self._rank)
        following = members[(place + 1) % len(members)]
        self._mail.sent_to[following] += sent_bytes(collective, sizes, place)


def _operation(largest: bool) -> dist.ReduceOp.RedOpType:
    return dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM


def _flat(data: Tensor) -> Tensor:
    """The data in one row of real numbers: itself where it lies so, else a copy.

    A conjugate is a flag beside the memory, which no library sends, so it is carried out before.
    """
    row = data.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return torch.view_as_real(row).view(-1) if row.is_complex() else row


def _like(data: Tensor, flat: Tensor) -> Tensor:
    """A row of numbers of the kind that the data has."""
    return torch.view_as_complex(flat.view(-1, 2)) if data.is_complex() else flat


def _put_back(data: Tensor, flat: Tensor) -> None:
    """Write what was done to a copy into the data."""
    if not data.is_contiguous() or data.is_conj() or data.is_neg():
        data.detach().copy_(_like(data, flat).view(data.shape))


def _as_parts(flat: Tensor, members: tuple[int, ...]) -> tuple[int, ...]:
    """The bytes of a whole as parts: only their sum matters to a chain."""
    return (flat.nbytes, *(0 for _ in members[1:]))
