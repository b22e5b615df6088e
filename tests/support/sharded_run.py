"""Running a graph with parallel operators, piece by piece with PyTorch's kernels, in one process.

Enters: a graph, a value for each of its inputs, parameters and buffers, and what tells the operator
of the rule language that a call is. Leaves: its outputs, through which gradients flow back. The
counterpart of `execute`, with which rewritten graphs are compared; slow and plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.execute import refuse_missing
from meshwright.capture.kernels import run_operator
from meshwright.graph.model import Call, OperatorGraph
from meshwright.graph.notation import Definition, MisfitError
from meshwright.rewrite.graphs.kinds import read
from meshwright.rewrite.graphs.readings import OperatorReading
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.types import FRONT, PARALLEL, infer
from support.shard_tasks import defined_work, run_tasks, structural_work
from support.shards import Pieces, in_one_piece, moved, without_overlap

Known = Mapping[str, Definition]
Read = Callable[[Call], OperatorReading | None]
"""Tells the operator of the rule language that a call is, None if no rule speaks of it."""


def execute_sharded(
    graph: OperatorGraph,
    values: Mapping[str, Tensor],
    reading: Read = read,
    known: Known = DEFINITIONS,
) -> dict[str, Tensor]:
    """The outputs of a graph by name, which have to be in one piece again."""
    refuse_missing(graph, values)
    present = {name: in_one_piece(value) for name, value in values.items()}
    for operator in graph.operators:
        operands = tuple(None if name is None else present[name] for name in operator.inputs)
        try:
            made = _run(graph.call(operator), operands, reading, known)
        except MisfitError as error:
            raise InputError(
                f"operator {operator.name!r} ({operator.kind}) cannot take its inputs: {error}",
                "change the parallel operators before it",
            ) from error
        except InputError as error:
            raise error.at(f"operator {operator.name!r}") from None
        present |= zip((tensor.name for tensor in operator.outputs), made, strict=False)
    return {name: _finished(name, present[name]) for name in graph.outputs}


def _finished(name: str, own: Pieces) -> Tensor:
    if not own.is_plain:
        raise InputError(
            f"output {name!r} is still in pieces: {_described(own)}",
            "end the graph with combine, reduce or batch",
        )
    return own.whole[(0,) * FRONT]


def _described(own: Pieces) -> str:
    """How a tensor lies.

    >>> import torch
    >>> _described(moved("partition", (0, 2), in_one_piece(torch.zeros(4, 6))))
    '1 step, 1 copy, 1 sum, dims 4 in 2 and 6 in 1'
    """
    counts = [
        f"{axis.size} {word if axis.size == 1 else plural}"
        for axis, word, plural in zip(
            own.type, ("step", "copy", "sum"), ("steps", "copies", "sums"), strict=False
        )
    ]
    dims = " and ".join(f"{axis.size} in {axis.degree}" for axis in own.type[FRONT:])
    return ", ".join((*counts, f"dims {dims}" if dims else "no dims"))


def _run(
    call: Call, operands: tuple[Pieces | None, ...], reading: Read, known: Known
) -> tuple[Pieces, ...]:
    if call.kind not in PARALLEL and all(own is None or own.is_plain for own in operands):
        wholes = [None if own is None else own.whole[(0,) * FRONT] for own in operands]
        return tuple(map(in_one_piece, run_operator(call.kind, wholes, call.attributes)))
    found = reading(call)
    if found is None:
        raise InputError(
            f"its inputs are in pieces, and no rule tells what {call.kind} computes",
            "put its inputs together before it",
        )
    taken = [own for number in found.order if (own := operands[number]) is not None]
    if found.operator in PARALLEL:
        return (moved(found.operator, found.settings, taken[0]),)
    inputs = [own.type for own in taken]
    types = infer(found.operator, found.settings, inputs, known)
    if found.operator in known:
        work = defined_work(call, found, known[found.operator], inputs)
        return run_tasks(call, work, operands, types)
    # Rows of neighbours go where their dims go; the pieces move without them.
    bare = [None if own is None else without_overlap(own) for own in operands]
    return run_tasks(call, structural_work(call, inputs[0]), bare, types)
