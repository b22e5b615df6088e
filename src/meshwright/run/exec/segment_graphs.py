"""FX graphs of segments, traced before autograd (`make_fx(pre_dispatch=True)`). Enters: operators
of a segment next to each other, and tensors like those that enter them. Leaves: a `SegmentGraph`
over local tensors, and the random numbers that it wants in every step.

Operators that cannot be in a graph split it: those that talk to other ranks, a user's own code,
and whatever fails to be traced. They run by themselves, one after the other, as all do without
graphs. Where a piece lies is no part of a graph: boxes of what enters are cut outside of it and
random numbers enter as their first states, so that micro-batches, ranks and repeated layers that
compute the same have the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from meshwright.graph.pieces import Box
from meshwright.run.comm.resharding import cut
from meshwright.run.exec.operator_kernels import DrawMoment
from meshwright.run.exec.random_bits import Starts, key_of, splitmix_starts
from meshwright.run.exec.segment_execution import Compiled, Compiler, Operand, Operation


class GraphPart(NamedTuple):
    """Operators of a segment that become one graph; or one that runs by itself."""

    operations: tuple[Operation, ...]
    inputs: tuple[Operand, ...]
    """What they read of before."""
    outputs: tuple[int, ...]
    """Slots that they make and that are read afterwards."""
    last: tuple[int, ...]
    """Slots that nothing reads after them."""
    eager: str | None
    """Why they are no graph."""


def parts_of(segment: Compiled) -> list[GraphPart]:
    """The parts of a segment, as long as can be."""
    groups: list[list[Operation]] = []
    for operation in segment.operations:
        if groups and operation.eager is None and groups[-1][-1].eager is None:
            groups[-1].append(operation)
        else:
            groups.append([operation])
    wanted = frozenset(slot for _, slot in segment.outputs)
    return _joined([(tuple(group), group[0].eager) for group in groups], wanted)


def split(
    parts: Sequence[GraphPart], number: int, place: int, reason: str, segment: Compiled
) -> list[GraphPart]:
    """The parts with an operator of one of them by itself, or with `place` -1 all of that part."""
    wanted = frozenset(slot for _, slot in segment.outputs)
    groups = [(part.operations, part.eager) for part in parts]
    operations, _ = groups[number]
    if place < 0:
        groups[number] = operations, reason
    else:
        before, after = operations[:place], operations[place + 1 :]
        middle = (operations[place : place + 1], reason)
        new = [*([(before, None)] if before else []), middle, *([(after, None)] if after else [])]
        groups[number : number + 1] = new
    return _joined(groups, wanted)


def _joined(
    groups: Sequence[tuple[tuple[Operation, ...], str | None]], wanted: AbstractSet[int]
) -> list[GraphPart]:
    """Parts with what they read and leave, from the last to the first."""
    later, parts = set(wanted), list[GraphPart]()
    for operations, eager in reversed(groups):
        written = {slot for operation in operations for slot in operation.outputs}
        reads = [o for operation in operations for o in operation.inputs if o is not None]
        inputs = tuple(dict.fromkeys(o for o in reads if o.slot not in written))
        touched = written | {o.slot for o in reads}
        outputs = tuple(sorted(written & later))
        parts.append(GraphPart(operations, inputs, outputs, tuple(sorted(touched - later)), eager))
        later |= touched
    return parts[::-1]


class DrawPlace(NamedTuple):
    """Where an operator draws."""

    operator: str
    box: Box
    shape: tuple[int, ...]


class SegmentGraph(NamedTuple):
    """A part as a graph: a function of its inputs and, if it draws, of a row for each place."""

    module: GraphModule
    examples: tuple[Tensor, ...]
    """Fake tensors like those that enter."""
    places: tuple[DrawPlace, ...]

    def numbers(self, moment: DrawMoment, device: torch.device) -> Tensor:
        """What the random operators of the graph begin with in a step."""
        rows = (
            splitmix_starts(
                key_of(moment.seed, moment.step, place.operator), place.box, place.shape
            )
            for place in self.places
        )
        return torch.tensor(list(rows), dtype=torch.int64).to(device, non_blocking=True)


class UntraceableError(Exception):
    """An operator that cannot be in a graph: which one, and why."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


def traced(
    part: GraphPart, tensors: Sequence[Tensor], moment: DrawMoment, compiler: Compiler
) -> SegmentGraph:
    """The graph of a part for tensors like these, in a mode of training; gradients are wanted if
    autograd is on.
    """
    fake, keeps = FakeTensorMode(allow_non_fake_inputs=True), torch.is_grad_enabled()
    with fake:
        examples = [_like(tensor, keeps=keeps) for tensor in tensors]
        numbers = torch.empty((len(part.operations), len(Starts._fields)), dtype=torch.int64)
        numbers = numbers.to(compiler.device)
    tracing = _Tracing(part)

    def run(numbers: Tensor, *values: Tensor) -> list[Tensor]:
        tracing.numbers = numbers
        return tracing.outputs(values)

    with compiler.at(moment._replace(later=tracing.later)):
        module = make_fx(run, tracing_mode="real", pre_dispatch=True)(numbers, *examples)
    first = next(iter(module.graph.nodes))
    if tracing.places:
        with fake:
            sized = torch.empty_like(numbers[: len(tracing.places)])
        examples.insert(0, sized)
        first.meta.clear()
    else:
        module.graph.erase_node(first)
        module.recompile()
    return SegmentGraph(module, tuple(examples), tuple(tracing.places))


def _like(tensor: Tensor, *, keeps: bool) -> Tensor:
    example = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return example.requires_grad_(tensor.requires_grad and keeps)


class _Tracing:
    """A part as it is traced."""

    def __init__(self, part: GraphPart) -> None:
        self.part, self.places = part, list[DrawPlace]()
        self.numbers: Tensor
        self._seen: set[Any] = set()

    def later(self, operator: str) -> _LaterKey:
        return _LaterKey(self, operator)

    def outputs(self, values: Sequence[Tensor]) -> list[Tensor]:
        entering = dict(zip(self.part.inputs, values, strict=True))
        self._seen = {value.grad_fn for value in values}
        slots: dict[int, Tensor] = {}
        for place, operation in enumerate(self.part.operations):
            operands = tuple(
                operand and _operand(operand, entering, slots) for operand in operation.inputs
            )
            try:
                results = operation.kernel(operands)
                self._refuse_own_backward(results)
            except Exception as error:
                reason = str(error).strip().split("\n")[0] or type(error).__name__
                raise UntraceableError(place, reason) from error
            slots |= zip(operation.outputs, results, strict=False)
        return [slots[slot] for slot in self.part.outputs]

    def _refuse_own_backward(self, results: Sequence[Tensor]) -> None:
        """A graph before autograd would have the derivative of an `autograd.Function`'s forward."""
        reached: list[Any] = [output.grad_fn for output in results]
        while reached:
            node = reached.pop()
            if node is None or node in self._seen:
                continue
            if isinstance(node, BackwardCFunction):
                raise TypeError(f"{type(node).__name__} has a backward of its own")
            self._seen.add(node)
            reached.extend(before for before, _ in node.next_functions)


def _operand(operand: Operand, entering: dict[Operand, Tensor], slots: dict[int, Tensor]) -> Tensor:
    if operand.slot not in slots:
        return entering[operand]
    value = slots[operand.slot]
    return value if operand.box is None else cut(value, operand.box)


class _LaterKey(NamedTuple):
    """A key whose starts are a row of what enters a graph."""

    tracing: _Tracing
    operator: str

    def starts(self, box: Box, shape: Sequence[int]) -> Starts:
        self.tracing.places.append(DrawPlace(self.operator, box, tuple(shape)))
        return Starts(*self.tracing.numbers[len(self.tracing.places) - 1])
