"""A segment's row of slots."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from meshwright.capture.execution.shard_kernels import Operands
from meshwright.run.exec.recording import Recorder
from meshwright.run.exec.segment_execution import Compiled, Operand, Operation, _with_last_uses


def test_what_nothing_reads_any_more_is_let_go_before_the_segment_ends() -> None:
    references: list[weakref.ref[Tensor]] = []
    alive: list[int] = []

    def doubled(operands: Operands) -> tuple[Tensor, ...]:
        (x,) = operands
        assert x is not None
        alive.append(sum(reference() is not None for reference in references))
        result = x * 2
        references.append(weakref.ref(result))
        return (result,)

    chain = [Operation("double", doubled, (Operand(n, None),), (n + 1,)) for n in range(4)]
    operations = _with_last_uses(chain, {4})
    assert [operation.last for operation in operations] == [(0,), (1,), (2,), (3,)]
    segment = Compiled(5, (), (("x", 0),), operations, (("y", 4),))
    (result,) = segment.run([], [torch.ones(2)], Recorder())
    assert result.tolist() == [16.0, 16.0]
    assert alive == [0, 1, 1, 1]
