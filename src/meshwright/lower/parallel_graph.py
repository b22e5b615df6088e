"""Parallel computation graph (PCG; Unity, OSDI 2022): placements and resharding on every edge.
Enters: a plan. Leaves: `ParallelGraph`: how every tensor lies where it is made and where it is
read, and the transfers between; `parallel_operators` writes it down as Unity does.

A delivery is a tensor as one or several units need it; a return is the gradient of a tensor as one
or several of them leave it, on its way to where the tensor was made. A parameter lies as its first
reader needs it. What no unit makes and nobody learns (inputs and buffers) is cut by everybody for
itself and is not told of here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from meshwright.graph.pieces import Box
from meshwright.lower.boxes import hull, shape_of, within
from meshwright.lower.device_mesh import Coordinates, MeshSizes
from meshwright.lower.shard_tasks import Samples, Tasks, samples_of
from meshwright.lower.tensor_placement import TensorPlacement
from meshwright.lower.transfers import Step, transfer
from meshwright.plan.plan import Plan
from meshwright.sharding.layout import Layout
from meshwright.sharding.states import (
    WHOLE,
    State,
    States,
    at,
    gradient_made,
    gradient_needed,
    needed,
)
from meshwright.sharding.unit import BoundaryTensor, Member, OpGroup, states_inside

Place = tuple[int, int]
"""A member of a unit and which of its inputs."""


class MadeTensor(NamedTuple):
    """A tensor where it is born; a parameter where it lies."""

    unit: int
    """The maker, or the first reader of a parameter."""
    forward: TensorPlacement
    backward: TensorPlacement | None
    """How its gradient is wanted."""
    parameter: bool = False


class TensorDelivery(NamedTuple):
    """A tensor on its way to readers who need it alike."""

    tensor: str
    steps: tuple[Step, ...]
    lying: TensorPlacement
    """How it arrives."""


class GradientReturn(NamedTuple):
    """A gradient on its way back from readers who leave it alike."""

    tensor: str
    steps: tuple[Step, ...]
    lying: TensorPlacement
    """How it leaves."""


class TensorReading(NamedTuple):
    """What a unit gets through one port, by the numbers of the delivery and of the return."""

    delivery: int
    return_: int | None


class ParallelGraph:
    """All tensors of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.machine = plan, MeshSizes.of(plan.cluster)
        self.samples: Samples = samples_of(plan)
        self.layouts: tuple[Layout, ...] = tuple(plan.layout[unit.name] for unit in plan.units)
        self.tasks = tuple(
            Tasks(unit, layout, self.machine, self.samples, number)
            for number, (unit, layout) in enumerate(zip(plan.units, self.layouts, strict=True))
        )
        self.made: dict[str, MadeTensor] = {}
        self.deliveries: list[TensorDelivery] = []
        self.returns: list[GradientReturn] = []
        self.readings: dict[tuple[int, int], TensorReading] = {}
        """By unit and port."""
        self.boundaries: list[dict[Place, int]] = []
        """For each unit the port through which each member gets each input."""
        self._known: dict[object, int] = {}
        for number, unit in enumerate(plan.units):
            self._add(number, unit)

    def _add(self, number: int, unit: OpGroup) -> None:
        self.boundaries.append(_places(unit, self.plan))
        for index, boundary in enumerate(unit.inputs):
            places = [
                place
                for place, port_index in self.boundaries[number].items()
                if port_index == index
            ]
            self.readings[number, index] = self._reading(number, boundary, places)
        for tensor, states in states_inside(unit, self.plan.graph).items():
            wanted = next(
                (boundary.backward for boundary in unit.outputs if boundary.tensor == tensor), None
            )
            self.made[tensor] = MadeTensor(
                unit=number,
                forward=self._lying_made(number, tensor, states),
                backward=None if wanted is None else self._lying_made(number, tensor, wanted),
            )

    def _reading(self, number: int, boundary: BoundaryTensor, places: list[Place]) -> TensorReading:
        lying = self._lying_read(number, boundary, boundary.forward, places)
        if boundary.tensor not in self.made:
            self.made[boundary.tensor] = self._home(number, boundary, lying)
        tensor = self.made[boundary.tensor]
        return_number = None
        if boundary.backward is not None and tensor.backward is not None:
            leaving = self._lying_read(number, boundary, boundary.backward, places)
            steps = transfer(leaving, tensor.backward)
            return_number = self._number(GradientReturn(boundary.tensor, steps, leaving), number)
        arriving = TensorDelivery(boundary.tensor, transfer(tensor.forward, lying), lying)
        return TensorReading(self._number(arriving, number), return_number)

    def _number(self, movement: TensorDelivery | GradientReturn, unit: int) -> int:
        """The number of a delivery or return; those that are alike are one."""
        lying = movement.lying
        # Boxes that are no equal cuts are those of one unit.
        key = type(movement), movement.tensor, lying.states, None if lying.exact is None else unit
        if key not in self._known:
            if isinstance(movement, TensorDelivery):
                self._known[key] = len(self.deliveries)
                self.deliveries.append(movement)
            else:
                self._known[key] = len(self.returns)
                self.returns.append(movement)
        return self._known[key]

    def _home(
        self, number: int, boundary: BoundaryTensor, placement: TensorPlacement
    ) -> MadeTensor:
        """Where a parameter lies: as its first reader needs it."""
        gradient = None
        if boundary.backward is not None:
            wanted = tuple(map(gradient_needed, boundary.forward))
            states = placement_by_factor(self.plan.units[number], wanted, self.layouts[number])
            gradient = placement._replace(states=states)
        return MadeTensor(unit=number, forward=placement, backward=gradient, parameter=True)

    def _lying_read(
        self,
        number: int,
        boundary: BoundaryTensor,
        by_split: tuple[State, ...],
        places: list[Place],
    ) -> TensorPlacement:
        states = placement_by_factor(self.plan.units[number], by_split, self.layouts[number])
        exact = None
        if self._of_all_samples(number, boundary):
            states = tuple(WHOLE if state >= 0 else state for state in states)
        elif not self._equal(number, boundary):
            exact = partial(self._box_read, number, boundary.tensor, tuple(places))
        return TensorPlacement(self.machine, self._shape(boundary.tensor), states, exact)

    def _of_all_samples(self, number: int, boundary: BoundaryTensor) -> bool:
        """Whether a unit reads its micro-batch of a tensor that is there for all of them."""
        split = self.samples.split[number]
        if split is None or boundary.forward[split] < 0:
            return False
        return self.samples.dims.get(boundary.tensor, WHOLE) == WHOLE

    def _lying_made(self, number: int, tensor: str, by_split: tuple[State, ...]) -> TensorPlacement:
        states = placement_by_factor(self.plan.units[number], by_split, self.layouts[number])
        exact = None if self._equal(number, None) else partial(self._box_made, number, tensor)
        return TensorPlacement(self.machine, self._shape(tensor), states, exact)

    def _shape(self, tensor: str) -> tuple[int, ...]:
        """Of the part that one micro-batch has."""
        return shape_of(self.samples.frame(tensor, self.plan.graph.specs[tensor].shape, 0))

    def _equal(self, number: int, boundary: BoundaryTensor | None) -> bool:
        """Whether all pieces of a unit's tensors, or those of a port, are equal cuts."""
        unit, layout = self.plan.units[number], self.layouts[number]
        degrees = layout.degrees(self.plan.factors)
        for index, split in enumerate(unit.splits):
            if degrees.get(split.name, 1) == 1:
                continue
            ways = degrees[split.name]
            if index == self.samples.split[number]:
                ways *= self.samples.micro_batches
            if any(extent % ways for extent in unit.extents[split.name]):
                return False
            if boundary is not None and boundary.halo and boundary.halo[index]:
                return False
        return all(_divides(member, unit, degrees, self.samples, number) for member in unit.members)

    def _box_read(
        self, number: int, tensor: str, places: tuple[Place, ...], coordinates: Coordinates
    ) -> Box:
        pieces = self.tasks[number].pieces(coordinates, 0)
        boxes = [box for m, i in places if (box := pieces[m].inputs[i]) is not None]
        return self._framed(tensor, hull(boxes))

    def _box_made(self, number: int, tensor: str, coordinates: Coordinates) -> Box:
        operator = self.plan.graph.producers[tensor]
        index = [output.name for output in operator.outputs].index(tensor)
        pieces = self.tasks[number].pieces(coordinates, 0)
        piece = next(
            member_piece for member_piece in pieces if member_piece.operator == operator.name
        )
        return self._framed(tensor, piece.outputs[index])

    def _framed(self, tensor: str, box: Box) -> Box:
        return within(box, self.samples.frame(tensor, self.plan.graph.specs[tensor].shape, 0))


def placement_by_factor(unit: OpGroup, by_split: tuple[State, ...], layout: Layout) -> States:
    """The states of a tensor along every factor, given those under each split of its unit."""
    numbers = {split.name: number for number, split in enumerate(unit.splits)}
    states: list[State] = []
    for role, coordinate in zip(layout.roles, layout.coordinates(), strict=True):
        if coordinate is not None:
            states.append(at(coordinate))
        else:
            states.append(by_split[numbers[role]] if role in numbers else WHOLE)
    return tuple(states)


def _divides(
    member: Member, unit: OpGroup, degrees: Mapping[str, int], samples: Samples, number: int
) -> bool:
    """Whether what cuts a dim of a tensor, all splits together, makes equal parts of it."""
    ways: dict[tuple[int, int], int] = {}
    for index, (split, member_split) in enumerate(zip(unit.splits, member.splits, strict=True)):
        count = degrees.get(split.name, 1)
        if index == samples.split[number]:
            count *= samples.micro_batches
        for place, dim in enumerate(() if member_split is None else member_split.inputs):
            if dim is not None:
                ways[place, dim] = ways.get((place, dim), 1) * count
    return all(
        (spec := member.call.inputs[place]) is None or spec.shape[dim] % count == 0
        for (place, dim), count in ways.items()
    )


def _places(unit: OpGroup, plan: Plan) -> dict[Place, int]:
    """Through which port each input of each member comes, where it comes from another unit."""
    inside = states_inside(unit, plan.graph)
    boundaries: dict[Place, int] = {}
    for number, member in enumerate(unit.members):
        for index, name in enumerate(plan.graph.named[member.operator].inputs):
            if name is None or name in inside:
                continue
            boundary = next(
                (p for p, boundary in enumerate(unit.inputs) if _is(boundary, member, name, index)),
                None,
            )
            if boundary is not None:
                boundaries[number, index] = boundary
    return boundaries


def _is(boundary: BoundaryTensor, member: Member, name: str, index: int) -> bool:
    """Whether an input of a member comes through a port."""
    if boundary.tensor != name:
        return False
    forward = tuple(WHOLE if s is None else needed(s, index) for s in member.splits)
    backward = tuple(WHOLE if s is None else gradient_made(s, index) for s in member.splits)
    return boundary.forward == forward and boundary.backward in (None, backward)
