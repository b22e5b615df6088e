"""Process groups of torch.distributed, created once and only if used. Enters: members as global
ranks. Leaves: torch's group of them, made once.

A group costs a few milliseconds and, on gloo, three threads in each member, so that only those are
made that something is carried out in. Only members meet when a group is made: all of them must come
to it in the same order. `torch.distributed.new_group` cannot do that: with local synchronisation it
names a group by how many groups a rank is in already, and so hangs where members differ in that.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from meshwright.run.launch.thread_affinity import schedule_gloo_as_batch


class Groups:
    """The process groups that this rank is in; of everybody there is one already."""

    def __init__(self, world: dist.ProcessGroup | None) -> None:
        self._given, self._rank = world, dist.get_rank()
        self._whole = tuple(range(dist.get_world_size()))
        store = self.world.get_group_store()
        # Every rank makes its wires in the same order, so that this is the same number for all.
        number = store.add(f"meshwright/{self._rank}", 1)
        self._store = PrefixStore(f"meshwright/{number}", store)
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}
        if dist.get_backend(self.world) == "nccl":
            # torch's destroy_process_group knows nothing of groups that it has not made.
            self._end = weakref.finalize(self, _shut_down, self._made)
        schedule_gloo_as_batch()

    @property
    def world(self) -> dist.ProcessGroup:
        """The group of everybody.

        The default one is not kept: `destroy_process_group` ends the threads of a group that nobody
        holds, and one that ends with Python instead may meet a lock that is gone, and abort.
        """
        group = self._given or dist.group.WORLD
        assert group is not None, "the default process group is there"
        return group

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Make those of some groups that this rank is in and that are not there yet."""
        for members in groups:
            if self._rank in members and len(members) > 1:
                self.of(members)

    def of(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """The group of some ranks, ascending, of which this is one."""
        if members == self._whole:
            return self.world
        if members not in self._made:
            self._made[members] = self._new(members)
        return self._made[members]

    def _new(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        name = PrefixStore("_".join(map(str, members)), self._store)
        place, count = members.index(self._rank), len(members)
        group: dist.ProcessGroupGloo | dist.ProcessGroupNCCL
        if dist.get_backend(self.world) == "nccl":
            group = dist.ProcessGroupNCCL(name, place, count, dist.ProcessGroupNCCL.Options())
        else:
            cpu = torch.device("cpu")
            patience = self.world._get_backend(cpu).options._timeout
            group = dist.ProcessGroupGloo(name, place, count, patience)
            schedule_gloo_as_batch()
        # Both have the collectives of a process group under the same names.
        return cast(dist.ProcessGroup, group)


def _shut_down(groups: dict[tuple[int, ...], dist.ProcessGroup]) -> None:
    """End the communicators of NCCL; whoever holds such a group cannot use it any more."""
    for members in tuple(groups):
        groups.pop(members).shutdown()
