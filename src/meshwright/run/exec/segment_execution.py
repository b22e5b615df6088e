"""Eager execution of segments: operators over slots, one autograd call for the backward pass.
Enters: a script. Leaves: `Compiled` segments: what they read, the operators they run, what they
make.

Operators of a segment run one after the other over a row of slots; their backward pass is one call
of autograd from the segment's outputs to its leaves. Each segment is compiled once for each
micro-batch, whose pieces lie elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from meshwright.capture.execution.dropless_experts import Through
from meshwright.capture.execution.sharded_softmax import ALONE, JointReductions
from meshwright.graph.counts import tensors_requiring_grad
from meshwright.graph.expert_body import local_expert_count
from meshwright.graph.family import PYTHON_KERNEL
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import beyond, full, within
from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.script import Script
from meshwright.lower.shard_tasks import MemberPiece
from meshwright.run.comm.resharding import cut
from meshwright.run.exec.operator_kernels import DrawMoment, Kernel, OperatorContext, kernel
from meshwright.run.exec.recording import Recorder
from meshwright.run.exec.shared_statistics import CallStatistics, Found
from meshwright.sharding.layout import REPLICA
from meshwright.sharding.units import STATISTIC

Joining = Callable[[tuple[int, ...], tuple[int, ...], int], JointReductions]
"""What sums so many bytes over factors, side by side along others."""

Routing = Callable[[tuple[int, ...], tuple[int, ...]], Through]
"""What takes tokens to experts, of which each device along some factors has so many."""


Row = list[Tensor | None]
"""Slots of a segment as it runs."""


class Leaf(NamedTuple):
    """What enters a segment from elsewhere: a delivery, and how its gradient leaves."""

    tensor: str
    delivery: int
    return_: int | None
    parameter: bool


class Operand(NamedTuple):
    """Where an operator finds an input: in a slot, all of it or a box."""

    slot: int
    box: Box | None


class Operation(NamedTuple):
    """One operator's piece."""

    name: str
    kernel: Kernel
    inputs: tuple[Operand | None, ...]
    outputs: tuple[int, ...]
    last: tuple[int, ...] = ()
    """Slots that nothing reads afterwards: only what autograd keeps stays in memory."""
    eager: str | None = None
    """Why it can be in no graph."""


class Compiled(NamedTuple):
    """A segment on this rank, for one micro-batch."""

    slots: int
    leaves: tuple[tuple[Leaf, int], ...]
    """With their slots."""
    fixed: tuple[tuple[str, int], ...]
    """Inputs and buffers, whole, with their slots."""
    operations: tuple[Operation, ...]
    outputs: tuple[tuple[str, int], ...]
    """Tensors that are wanted elsewhere, or the loss, with their slots."""

    def run(
        self, arriving: Sequence[Tensor], fixed: Sequence[Tensor], recorder: Recorder
    ) -> list[Tensor]:
        """The outputs."""
        row = self.filled(arriving, fixed)
        run_operations(self.operations, row, recorder)
        return self.results(row)

    def filled(self, arriving: Sequence[Tensor], fixed: Sequence[Tensor]) -> Row:
        """The slots, with what enters in its own."""
        row: Row = [None] * self.slots
        for (_, slot), value in zip(self.leaves, arriving, strict=True):
            row[slot] = value
        for (_, slot), value in zip(self.fixed, fixed, strict=True):
            row[slot] = value
        return row

    def results(self, row: Row) -> list[Tensor]:
        """What is wanted elsewhere, once all operators have run."""
        return [_present(row[slot]) for _, slot in self.outputs]


def run_operations(operations: Sequence[Operation], row: Row, recorder: Recorder) -> None:
    """Run operators one after the other over a row of slots."""
    for operation in operations:
        operands = tuple(
            [None if operand is None else fetched(row, operand) for operand in operation.inputs]
        )
        if recorder.on:
            with recorder.timed("forward", operation.name):
                results = operation.kernel(operands)
        else:
            results = operation.kernel(operands)
        for slot, result in zip(operation.outputs, results, strict=False):
            row[slot] = result
        for slot in operation.last:
            row[slot] = None


def fetched(row: Row, operand: Operand) -> Tensor:
    """What an operator reads."""
    value = _present(row[operand.slot])
    return value if operand.box is None else cut(value, operand.box)


def _present(value: Tensor | None) -> Tensor:
    assert value is not None, "operators run in an order in which their inputs are there"
    return value


class Compiler:
    """Compiles the segments of a script for one rank."""

    def __init__(
        self,
        script: Script,
        coordinates: Coordinates,
        joining: Joining,
        routing: Routing,
        moment: Callable[[], DrawMoment],
        device: torch.device,
        *,
        exact: bool,
        returned: Sequence[str] = (),
    ) -> None:
        self._script, self._here, self._returned = script, coordinates, returned
        self._joining, self._routing = joining, routing
        self._now, self.device, self._exact = moment, device, exact
        self.statistics = CallStatistics(script, script.parallel.machine.device(coordinates))
        self._traced: DrawMoment | None = None
        graph = script.plan.graph
        self._fixed = {tensor.name for tensor in (*graph.inputs, *graph.buffers)}
        self._wanted = self._wanted_elsewhere()
        self.needing = tensors_requiring_grad(graph)

    def _wanted_elsewhere(self) -> set[str]:
        """Tensors that another segment reads, or that travel; the loss, and what is returned."""
        script, parallel = self._script, self._script.parallel
        wanted = {script.plan.graph.loss or "", *self._returned}
        for (unit, _), reading in parallel.readings.items():
            delivery = parallel.deliveries[reading.delivery]
            origin = parallel.made[delivery.tensor]
            if origin.parameter:
                continue
            if delivery.steps or script.home[origin.unit] != script.home[unit]:
                wanted.add(delivery.tensor)
        return wanted

    def moment(self) -> DrawMoment:
        """What operators go by: now, or what they are traced for."""
        return self._traced or self._now()

    @contextmanager
    def at(self, moment: DrawMoment) -> Iterator[None]:
        """Have operators go by another moment."""
        self._traced = moment
        try:
            yield
        finally:
            self._traced = None

    def compiled(self, number: int, micro: int) -> Compiled:
        """A segment of which this rank runs a part."""
        return _Draft(self, number, micro).finished()


class _Draft:
    """A segment as it is compiled."""

    def __init__(self, compiler: Compiler, number: int, micro: int) -> None:
        self.own, self.number, self.micro = compiler, number, micro
        self.slots: dict[object, int] = {}
        self.frames: dict[object, Box] = {}
        """The box that a slot holds of its tensor."""
        self.leaves: dict[Leaf, int] = {}
        self.fixed: dict[str, int] = {}
        self.operations: list[Operation] = []
        self.made: dict[str, int] = {}

    def finished(self) -> Compiled:
        script = self.own._script
        for unit in script.segments[self.number].units:
            pieces = script.parallel.tasks[unit].pieces(self.own._here, self.micro)
            for member, piece in enumerate(pieces):
                self._add(unit, member, piece)
        outputs = tuple(
            (name, slot) for name, slot in self.made.items() if name in self.own._wanted
        )
        return Compiled(
            slots=len(self.slots),
            leaves=tuple(self.leaves.items()),
            fixed=tuple(self.fixed.items()),
            operations=_with_last_uses(self.operations, {slot for _, slot in outputs}),
            outputs=outputs,
        )

    def _add(self, unit: int, member: int, piece: MemberPiece) -> None:
        script = self.own._script
        operator = script.plan.graph.named[piece.operator]
        inputs = tuple(
            None if name is None or box is None else self._operand(unit, (member, index), name, box)
            for index, (name, box) in enumerate(zip(operator.inputs, piece.inputs, strict=True))
        )
        for tensor, box in zip(operator.outputs, piece.outputs, strict=True):
            self.made[tensor.name] = self._slot(tensor.name, box)
        around = self._around(unit, piece)
        self.operations.append(
            Operation(
                name=piece.operator,
                kernel=kernel(piece, around),
                inputs=inputs,
                outputs=tuple(self.made[tensor.name] for tensor in operator.outputs),
                eager=_beyond_graphs(piece, around),
            )
        )

    def _around(self, unit: int, piece: MemberPiece) -> OperatorContext:
        compiler, parallel = self.own, self.own._script.parallel
        graph = compiler._script.plan.graph
        cut = parallel.samples.split[unit] is not None
        return OperatorContext(
            name=piece.operator,
            whole=graph.call(graph.named[piece.operator]),
            micro_batches=parallel.samples.micro_batches if cut else 1,
            together=self._together(unit, piece),
            through=self._routed(unit, piece),
            moment=compiler.moment,
            device=compiler.device,
            exact=compiler._exact or self._repeated(unit),
            apart=self._apart(piece.operator),
        )

    def _apart(self, operator: str) -> Callable[[Tensor, Tensor], Found] | None:
        shared = self.own.statistics
        return partial(shared.place, operator, self.micro) if operator in shared.names else None

    def _repeated(self, unit: int) -> bool:
        """Whether what a unit computes here is computed elsewhere too, or again."""
        script = self.own._script
        again = script.segments[self.number].layer is not None
        return again or REPLICA in script.parallel.layouts[unit].roles

    def _together(self, unit: int, piece: MemberPiece) -> JointReductions:
        if not piece.summing:
            return ALONE
        group = self.own._script.parallel.tasks[unit].along(piece.summing)
        return self.own._joining(*group, STATISTIC * piece.statistics)

    def _routed(self, unit: int, piece: MemberPiece) -> Through | None:
        """What takes tokens to the experts of other devices, where these hold any."""
        if not piece.exchanging:
            return None
        parallel = self.own._script.parallel
        inside, _ = parallel.tasks[unit].along(piece.exchanging)
        place = [member.operator for member in parallel.plan.units[unit].members].index(
            piece.operator
        )
        held = (
            local_expert_count(parallel.tasks[unit].pieces(coordinates, self.micro)[place].call)
            for coordinates in parallel.machine.along(inside, self.own._here)
        )
        return self.own._routing(inside, tuple(held))

    def _operand(self, unit: int, place: tuple[int, int], name: str, box: Box) -> Operand:
        """Where a member finds an input, of which it needs a box."""
        key: object = name
        if name not in self.made:
            key = self._entering(unit, place, name)
        frame = self.frames[key]
        needed = None if box == frame else within(box, frame)
        return Operand(self.slots[key], needed)

    def _entering(self, unit: int, place: tuple[int, int], name: str) -> object:
        """The key of what enters the segment for a member."""
        parallel = self.own._script.parallel
        shape = parallel.plan.graph.specs[name].shape
        if name in self.own._fixed:
            self.fixed[name] = self._slot(name, full(shape))
            return name
        reading = parallel.readings[unit, parallel.boundaries[unit][place]]
        delivery = parallel.deliveries[reading.delivery]
        leaf = Leaf(name, *reading, parallel.made[name].parameter)
        if leaf not in self.leaves:
            frame = parallel.samples.frame(name, shape, self.micro)
            box = beyond(delivery.lying.box(self.own._here), frame)
            self.leaves[leaf] = self._slot(leaf, box)
        return leaf

    def _slot(self, key: object, box: Box) -> int:
        if key not in self.slots:
            self.slots[key] = len(self.slots)
            self.frames[key] = box
        return self.slots[key]


def _beyond_graphs(piece: MemberPiece, around: OperatorContext) -> str | None:
    """Why an operator's piece can be in no graph."""
    if around.apart is not None:
        return f"{piece.call.kind} shares its running statistics with others"
    if piece.summing or piece.exchanging:
        return f"{piece.call.kind} talks to other ranks"
    if piece.call.kind == "own_function" or piece.call.get(PYTHON_KERNEL) is not None:
        return f"{piece.call.kind} is the user's own code"
    return None


def _with_last_uses(
    operations: Sequence[Operation], wanted: AbstractSet[int]
) -> tuple[Operation, ...]:
    """The operations, each with the slots that are done with after it."""
    later = set(wanted)
    updated = []
    for operation in reversed(operations):
        touched = {
            *operation.outputs,
            *(operand.slot for operand in operation.inputs if operand is not None),
        }
        updated.append(operation._replace(last=tuple(sorted(touched - later))))
        later |= touched
    return tuple(reversed(updated))
