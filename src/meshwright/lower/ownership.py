"""Ownership of state: who holds which shard of parameters, optimizer states and buffers. Enters: a
script. Leaves: `Holdings`: for every parameter and buffer what each device keeps, and one owner for
each element.

A device keeps a box of a parameter or, where parameters are sharded (ZeRO), some rows of the box
(`buckets`); of parameters that the module has otherwise that may be a few boxes again. Copies have
one owner between them, and where boxes overlap the later ones own what is left, so that the shares
of a tensor cover it once:

    for each element e of a tensor exactly one share (device, box) has e in box.

What the elements are, and where they go, is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from meshwright.graph.pieces import Box
from meshwright.lower.boxes import elements, full, overlap, shape_of
from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.script import Script


class Region(NamedTuple):
    """A box of which a device keeps the elements in a row."""

    box: Box
    first: int
    """The place of its first element in all that the device keeps of the tensor."""


class OwnedBox(NamedTuple):
    """A box that one device owns."""

    device: int
    box: Box


def stretch(frame: Box, start: int, stop: int) -> Iterator[Box]:
    """The boxes that some elements of a box make up, counted row by row, in their order.

    >>> list(stretch(((0, 3), (0, 4)), 2, 9))
    [((0, 1), (2, 4)), ((1, 2), (0, 4)), ((2, 3), (0, 1))]
    """
    if start >= stop:
        return
    if not frame:
        yield ()
        return
    (low, _), *rest = frame
    inner = tuple(rest)
    each = elements(inner)
    head, tail = -(-start // each), stop // each
    if start < head * each:
        end = min(stop - (head - 1) * each, each)
        for box in stretch(inner, start - (head - 1) * each, end):
            yield ((low + head - 1, low + head), *box)
    if head < tail:
        yield ((low + head, low + tail), *inner)
    if head <= tail:
        for box in stretch(inner, 0, stop - tail * each):
            yield ((low + tail, low + tail + 1), *box)


def merged_dim_boxes(box: Box, size: int) -> Iterator[Box]:
    """The boxes that a box makes up, in order, if its first two dims are one; `size` is that of
    the second.

    >>> list(merged_dim_boxes(((0, 2), (1, 3), (0, 5)), 4))
    [((1, 3), (0, 5)), ((5, 7), (0, 5))]
    >>> list(merged_dim_boxes(((1, 3), (0, 4)), 4))
    [((4, 12),)]
    """
    (first, last), (start, stop), *rest = box
    if (start, stop) == (0, size):
        yield ((first * size, last * size), *rest)
        return
    for row in range(first, last):
        yield ((row * size + start, row * size + stop), *rest)


def without(box: Box, others: Iterable[Box]) -> tuple[Box, ...]:
    """What is left of a box, in boxes that do not overlap.

    >>> without(((0, 4), (0, 2)), [((1, 2), (0, 1))])
    (((0, 1), (0, 2)), ((2, 4), (0, 2)), ((1, 2), (1, 2)))
    """
    left: tuple[Box, ...] = (box,)
    for other in others:
        left = tuple(part for piece in left for part in _less(piece, other))
    return left


def _less(box: Box, other: Box) -> Iterator[Box]:
    shared = overlap(box, other)
    if shared is None:
        yield box
        return
    for dim, (first, last) in enumerate(shared):
        start, stop = box[dim]
        if start < first:
            yield (*box[:dim], (start, first), *box[dim + 1 :])
        if last < stop:
            yield (*box[:dim], (last, stop), *box[dim + 1 :])
        box = (*box[:dim], (first, last), *box[dim + 1 :])


class Holdings:
    """What every device keeps of every parameter that operators read, and of every buffer."""

    def __init__(self, script: Script) -> None:
        self._script, self._parallel = script, script.parallel
        graph, machine = script.plan.graph, script.parallel.machine
        self._stacked = {
            weight.tensor.name: weight.tensor.shape[1]
            for weight in graph.parameters
            if weight.stacked
        }
        """For each parameter that the module has with its first two dims as one the second."""
        self._sharded = {o.name: o for b in script.buckets for o in b.parameters if o.shards}
        count = math.prod(machine.sizes)
        self.devices = {machine.coordinates(device): device for device in range(count)}
        """Every device by its coordinates."""
        self._owned = [0] * len(self.devices)
        """Bytes of each device so far."""
        self.shares: dict[str, tuple[OwnedBox, ...]] = {}
        """For each tensor boxes that cover it once."""
        for parameter in graph.parameters:
            name = parameter.tensor.name
            if name in self._parallel.made:
                self.shares[name] = self._shared(name, self._keepers(name))
        for buffer in graph.buffers:
            read = self.workers(buffer.name)
            read.setdefault(full(buffer.shape), list(self.devices.values()))
            self.shares[buffer.name] = self._shared(buffer.name, read)

    def regions(self, name: str, device: int) -> tuple[Region, ...]:
        """What a device keeps of a parameter, for its optimizer."""
        return self._regions(name, self._parallel.machine.coordinates(device))

    def owned(self, name: str, device: int) -> tuple[Box, ...]:
        """The boxes of a tensor that a device owns."""
        return tuple(share.box for share in self.shares[name] if share.device == device)

    def _regions(self, name: str, coordinates: Coordinates) -> tuple[Region, ...]:
        placement, machine = self._parallel.made[name].forward, self._parallel.machine
        if not placement.holds(coordinates):
            return ()
        box, kept = placement.box(coordinates), self._sharded.get(name)
        first, last = 0, elements(box)
        if kept is not None:
            members = list(machine.along(kept.shards, coordinates))
            first, last = kept.stretches(machine, shape_of(box))[members.index(coordinates)]
        boxes = [
            stored for part in stretch(box, first, last) for stored in self._stored(name, part)
        ]
        places = accumulate(map(elements, boxes), initial=0)
        return tuple(map(Region, boxes, places))

    def _stored(self, name: str, box: Box) -> tuple[Box, ...]:
        """A box of a parameter as boxes of what the module has."""
        hidden = self._stacked.get(name)
        return (box,) if hidden is None else tuple(merged_dim_boxes(box, hidden))

    def _keepers(self, name: str) -> dict[Box, list[int]]:
        """The devices that keep each region of a parameter."""
        keepers: dict[Box, list[int]] = {}
        for coordinates, device in self.devices.items():
            for region in self._regions(name, coordinates):
                keepers.setdefault(region.box, []).append(device)
        return keepers

    def workers(self, name: str) -> dict[Box, list[int]]:
        """The devices that compute with each part of a buffer."""
        graph, workers = self._script.plan.graph, dict[Box, list[int]]()
        for tasks in self._parallel.tasks:
            places = [
                (member, index)
                for member, unit_member in enumerate(tasks.unit.members)
                for index, read in enumerate(graph.named[unit_member.operator].inputs)
                if read == name
            ]
            for coordinates, device in self.devices.items() if places else ():
                if tasks.works(coordinates):
                    for member, index in places:
                        box = tasks.pieces(coordinates, 0)[member].inputs[index]
                        if box is not None:
                            workers.setdefault(box, []).append(device)
        return workers

    def _shared(self, name: str, holders: Mapping[Box, list[int]]) -> tuple[OwnedBox, ...]:
        """One owner for every element: of those who have it the one who owns least so far."""
        spec, shares = self._script.plan.graph.specs[name], list[OwnedBox]()
        apart = sum(map(elements, holders)) == spec.elements
        for box, devices in holders.items():
            owner = min(devices, key=lambda device: (self._owned[device], device))
            # Boxes that have as many elements as the tensor that they cover do not overlap.
            left = (box,) if apart else without(box, (share.box for share in shares))
            shares += [OwnedBox(owner, part) for part in left]
            self._owned[owner] += sum(map(elements, left)) * spec.bytes // max(1, spec.elements)
        return tuple(shares)
