"""Process groups. Enters: members as global ranks. Leaves: torch's group of them, made once.

A group costs a few milliseconds and, on gloo, three threads in each member, so that only those are
made that something is carried out in. Only members meet when a group is made: all of them must come
to it in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist


class Groups:
    """The process groups that this rank is in; of everybody there is one already."""

    def __init__(self, world: dist.ProcessGroup | None) -> None:
        self._world, self._whole = world, tuple(range(dist.get_world_size()))
        self._rank = dist.get_rank()
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def prepare(self, groups: Iterable[tuple[int, ...]]) -> None:
        """Make those of some groups that this rank is in and that are not there yet."""
        for members in groups:
            if self._rank in members and len(members) > 1:
                self.of(members)

    def of(self, members: tuple[int, ...]) -> dist.ProcessGroup | None:
        """The group of some ranks, ascending; None, as torch has it, is everybody."""
        if members == self._whole:
            return self._world
        if members not in self._made:
            group = dist.new_group(list(members), use_local_synchronization=True)
            assert isinstance(group, dist.ProcessGroup), "only members ask for a group"
            self._made[members] = group
        return self._made[members]
