"""One operator on tensors in pieces. Enters: a call, tensors in pieces. Leaves: tensors in pieces.

The grid of tasks is that of `meshwright.rewrite.language.types`: one task for each piece of each
label, for each step, each spare copy and each pending sum. A task runs the real kernel on the
pieces that lie there, with the attributes that the kind's family gives to such a piece. Cuts are
never chosen here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.execution.shard_kernels import run_call
from meshwright.graph.family import Split, integers, replaced
from meshwright.graph.notation import Definition, Label
from meshwright.graph.operator_graph import Call
from meshwright.graph.pieces import pieces, splits_of
from meshwright.rewrite.graphs.readings import OperatorReading
from meshwright.rewrite.language.types import COPY, FRONT, STEP, SUM, Type, TypedAxis, meet
from support.shards import Pieces, piece


class Work(NamedTuple):
    """The tasks of an operator: labels that are cut, and where they are dims of its tensors."""

    degrees: Mapping[str, int]
    inputs: tuple[tuple[str, ...], ...]
    """For each input of the call the label of each dim."""
    outputs: tuple[tuple[str, ...], ...]
    lacking: tuple[tuple[str, ...], ...]
    """For each input the labels of which it has a copy a piece; "" stands for the sums."""
    sums: TypedAxis
    """Sums that operands bring with them."""
    summed: tuple[str, ...] = ()

    def cut(self, label: str) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        """The dim of each input and of each output that has a label."""
        inputs, outputs = (
            tuple(labels.index(label) if label in labels else None for labels in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        return inputs, outputs


def defined_work(
    call: Call, reading: OperatorReading, defined: Definition, inputs: Sequence[Type]
) -> Work:
    """The tasks of an operator with a line of index notation; `inputs` in the order it reads."""
    meeting = meet(defined, reading.settings, inputs)
    definition = meeting.definition
    labels: dict[int, tuple[str, ...]] = {}
    lacking: dict[int, tuple[str, ...]] = {}
    for number, operand, absent in zip(
        reading.order, definition.operands, meeting.lacking, strict=True
    ):
        indices = definition.indices(operand)
        labels[number] = tuple(i.name if isinstance(i, Label) else i.output for i in indices)
        lacking[number] = absent
    return Work(
        degrees={label: meeting.degrees[label] for label in definition.cuts},
        inputs=tuple(labels.get(n, ()) for n in range(len(call.inputs))),
        outputs=(tuple(label.name for label in definition.output),),
        lacking=tuple(lacking.get(n, ()) for n in range(len(call.inputs))),
        sums=meeting.sums,
        summed=tuple(label for label in definition.summed if label in definition.cuts),
    )


def structural_work(call: Call, type_: Type) -> Work:
    """The tasks of an operator that only moves elements: a label for each dim that is cut."""
    degrees: dict[str, int] = {}
    outputs = [[""] * len(spec.shape) for spec in call.outputs]
    for dim, axis in enumerate(type_[FRONT:]):
        if axis.degree > 1:
            degrees[f"{dim}"] = axis.degree
            along = (s for s in splits_of(call) if s.inputs[0] == dim and not s.statistics)
            split = _first(call, along, f"dim {dim}")
            for labels, place in zip(outputs, split.outputs, strict=True):
                if place is not None:
                    labels[place] = f"{dim}"
    return Work(
        degrees=degrees,
        inputs=(tuple(f"{dim}" for dim in range(len(type_) - FRONT)),) * len(call.inputs),
        outputs=tuple(map(tuple, outputs)),
        lacking=((),) * len(call.inputs),
        sums=type_[SUM],
    )


def _first(call: Call, splits: Iterator[Split], where: str) -> Split:
    split = next(splits, None)
    if split is None:
        raise InputError(
            f"{call.kind} cannot run in pieces along {where}", "put its inputs together before it"
        )
    return split


def run_tasks(
    call: Call, work: Work, operands: Sequence[Pieces | None], types: tuple[Type, ...]
) -> tuple[Pieces, ...]:
    """Runs the kernel once for each task; `types` are those of the outputs."""
    front = (types[0][STEP].size, types[0][COPY].size, work.sums.size)
    blocks = list(itertools.product(*map(range, work.degrees.values())))
    calls = [_local(call, work, block) for block in blocks]
    outputs = [
        run_call(
            local_call,
            tuple(
                None if operand is None else _read(work, number, operand, at, block)
                for number, operand in enumerate(operands)
            ),
        )
        for at in itertools.product(*map(range, front))
        for local_call, block in zip(calls, blocks, strict=True)
    ]
    return tuple(
        Pieces(type_, _assembled(work, labels, front, results).reshape([a.size for a in type_]))
        for type_, labels, results in zip(
            types, work.outputs, zip(*outputs, strict=True), strict=True
        )
    )


def _local(call: Call, work: Work, block: tuple[int, ...]) -> Call:
    """What one task runs: the call, cut along one label after the other."""
    for (label, degree), place in zip(work.degrees.items(), block, strict=True):
        if degree == 1:
            continue
        cut = work.cut(label)
        along = (
            split
            for split in splits_of(call)
            if (split.inputs, split.outputs) == cut and _runs_alone(split)
        )
        split = _first(call, along, label)
        call = pieces(call, split, degree)[place].call
        if split.halo is not None:
            call = _without_padding(call, work.outputs[0].index(label))
    return call


def _runs_alone(split: Split) -> bool:
    """Whether pieces with the rows of their neighbours, as `halo` gives them, need nothing else."""
    return not split.statistics and not (split.halo is not None and split.halo.transposed)


def _without_padding(call: Call, dim: int) -> Call:
    """A piece with rows of its neighbours holds the zeros beyond the edge too."""
    edges = list(integers(call, "edges"))
    first = 2 * (dim - len(call.outputs[0].shape)) + len(edges)
    edges[first : first + 2] = (0, 0)
    attributes = replaced(call.attributes, edges=tuple(edges))
    return msgspec.structs.replace(call, attributes=attributes)


def _read(
    work: Work, number: int, operand: Pieces, at: tuple[int, ...], block: tuple[int, ...]
) -> Tensor:
    """The piece that a task reads of an operand: copies count labels, then the rest."""
    step, copy, pending = at
    places = dict(zip(work.degrees, block, strict=True))
    places[""] = pending * work.sums.degree // work.sums.size
    degrees = {**work.degrees, "": work.sums.degree}
    mine = 0
    for label in work.lacking[number]:
        mine = mine * degrees[label] + places[label]
    spare = operand.type[COPY].size // math.prod(degrees[label] for label in work.lacking[number])
    copies = mine * spare + (copy if spare > 1 else 0)
    front = (step, copies, pending if operand.type[SUM].size > 1 else 0)
    return piece(operand, front, [places.get(label, 0) for label in work.inputs[number]])


def _assembled(
    work: Work, labels: tuple[str, ...], front: tuple[int, ...], results: Sequence[Tensor]
) -> Tensor:
    """The results of all tasks by step, copy, part of a sum and pending sum, then dims by block."""
    grid = (*front, *work.degrees.values())
    stacked = torch.stack(tuple(results)).reshape(*grid, *results[0].shape)
    place = {label: FRONT + n for n, label in enumerate(work.degrees)}
    order = [STEP, COPY, *(place[label] for label in work.summed), SUM]
    for dim, label in enumerate(labels, len(grid)):
        order += [place[label], dim] if label in place else [dim]
    return stacked.permute(order)
