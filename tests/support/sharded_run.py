"""Running a graph with parallel operators, piece by piece with PyTorch's kernels, in one process.

Enters: a graph, a value for each of its inputs, parameters and buffers, and what tells the operator
of the rule language that a call is. Leaves: its outputs, through which gradients flow back. The
counterpart of `execute`, with which rewritten graphs are compared; slow and plain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.execution.kernels import run_operator
from meshwright.capture.reference_executor import refuse_missing
from meshwright.graph.notation import Definition, MisfitError
from meshwright.graph.operator_graph import Call, OperatorGraph
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
            outputs = _run(graph.call(operator), operands, reading, known)
        except MisfitError as error:
            raise InputError(
                f"operator {operator.name!r} ({operator.kind}) cannot take its inputs: {error}",
                "change the parallel operators before it",
            ) from error
        except InputError as error:
            raise error.at(f"operator {operator.name!r}") from None
        present |= zip((tensor.name for tensor in operator.outputs), outputs, strict=False)
    return {name: _finished(name, present[name]) for name in graph.outputs}


def _finished(name: str, pieces: Pieces) -> Tensor:
    if not pieces.is_plain:
        raise InputError(
            f"output {name!r} is still in pieces: {_described(pieces)}",
            "end the graph with combine, reduce or batch",
        )
    return pieces.whole[(0,) * FRONT]


def _described(pieces: Pieces) -> str:
    """How a tensor lies.

    >>> import torch
    >>> _described(moved("partition", (0, 2), in_one_piece(torch.zeros(4, 6))))
    '1 step, 1 copy, 1 sum, dims 4 in 2 and 6 in 1'
    """
    counts = [
        f"{axis.size} {word if axis.size == 1 else plural}"
        for axis, word, plural in zip(
            pieces.type, ("step", "copy", "sum"), ("steps", "copies", "sums"), strict=False
        )
    ]
    dims = " and ".join(f"{axis.size} in {axis.degree}" for axis in pieces.type[FRONT:])
    return ", ".join((*counts, f"dims {dims}" if dims else "no dims"))


def _run(
    call: Call, operands: tuple[Pieces | None, ...], reading: Read, known: Known
) -> tuple[Pieces, ...]:
    if call.kind not in PARALLEL and all(
        operand is None or operand.is_plain for operand in operands
    ):
        wholes = [None if operand is None else operand.whole[(0,) * FRONT] for operand in operands]
        return tuple(map(in_one_piece, run_operator(call.kind, wholes, call.attributes)))
    rule = reading(call)
    if rule is None:
        raise InputError(
            f"its inputs are in pieces, and no rule tells what {call.kind} computes",
            "put its inputs together before it",
        )
    taken = [present for number in rule.order if (present := operands[number]) is not None]
    if rule.operator in PARALLEL:
        return (moved(rule.operator, rule.settings, taken[0]),)
    inputs = [pieces.type for pieces in taken]
    types = infer(rule.operator, rule.settings, inputs, known)
    if rule.operator in known:
        work = defined_work(call, rule, known[rule.operator], inputs)
        return run_tasks(call, work, operands, types)
    # Rows of neighbours go where their dims go; the pieces move without them.
    bare = [None if operand is None else without_overlap(operand) for operand in operands]
    return run_tasks(call, structural_work(call, inputs[0]), bare, types)
