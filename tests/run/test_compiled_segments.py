"""Segments as graphs: the numbers, gradients and masks of operators that run one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.autograd.function import Function

from meshwright.capture.execution.shard_kernels import Operands
from meshwright.run.exec.compiled_segments import Graphs, eager_backend, inductor
from meshwright.run.exec.operator_kernels import DrawMoment, Kernel
from meshwright.run.exec.random_bits import kept, key_of
from meshwright.run.exec.recording import Recorder
from meshwright.run.exec.segment_execution import (
    Compiled,
    Compiler,
    Operand,
    Operation,
    _with_last_uses,
)
from meshwright.run.exec.segment_graphs import parts_of
from support.drawn_plans import drawn_plans
from support.proved import verdicts

BOX, SHAPE, CPU = ((1, 3), (0, 8)), (4, 8), torch.device("cpu")


class Clock:
    """What a `Compiler` is to graphs."""

    device = CPU

    def __init__(self) -> None:
        self.now = DrawMoment(5, 0)

    def moment(self) -> DrawMoment:
        return self.now

    @contextmanager
    def at(self, moment: DrawMoment) -> Iterator[None]:
        before, self.now = self.now, moment
        yield
        self.now = before


class OwnBackward(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 3


def chain(kernels: Sequence[Kernel], eager: Sequence[str | None] = ()) -> Compiled:
    """One operator after the other."""
    reasons = (*eager, *(None,) * len(kernels))
    operations = [
        Operation(f"o{n}", kernel, (Operand(n, None),), (n + 1,), eager=reasons[n])
        for n, kernel in enumerate(kernels)
    ]
    last = len(kernels)
    return Compiled(last + 1, (), (("x", 0),), _with_last_uses(operations, {last}), (("y", last),))


def doubled(operands: Operands) -> tuple[Tensor, ...]:
    (x,) = operands
    assert x is not None
    return (x * 2,)


def graphs_of(clock: Clock) -> Graphs:
    return Graphs(eager_backend, cast("Compiler", clock), lambda: None)


def test_operators_beyond_graphs_split_them() -> None:
    segment = chain([doubled] * 4, [None, None, "it talks"])
    parts = parts_of(segment)
    assert [len(part.operations) for part in parts] == [2, 1, 1]
    assert [part.eager for part in parts] == [None, "it talks", None]
    assert [(part.inputs[0].slot, part.outputs) for part in parts] == [
        (0, (2,)),
        (2, (3,)),
        (3, (4,)),
    ]


def test_a_backward_of_ones_own_is_kept() -> None:
    """A graph before autograd would have the forward's derivative instead."""

    def own_backward(operands: Operands) -> tuple[Tensor, ...]:
        return (OwnBackward.apply(operands[0]),)  # type: ignore[no-untyped-call]

    graphs = graphs_of(Clock())
    segment = chain([doubled, own_backward, doubled])
    x = torch.ones(2, requires_grad=True)
    (y,) = graphs.of(segment)([], [x], Recorder())
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.tolist() == [12.0, 12.0]
    report = graphs.report()
    assert (report.graphs, report.uses) == (1, 2), "both products are the same graph"
    assert report.eager == (("OwnBackwardBackward has a backward of its own", 1),)


def test_what_waits_for_data_runs_by_itself() -> None:
    def looking(operands: Operands) -> tuple[Tensor, ...]:
        (x,) = operands
        assert x is not None
        return (x[: int(x.sum())],)

    graphs = graphs_of(Clock())
    (y,) = graphs.of(chain([doubled, looking, doubled]))([], [torch.ones(3)], Recorder())
    assert y.tolist() == [4.0, 4.0, 4.0]
    assert [count for _, count in graphs.report().eager] == [1]


def test_masks_are_those_of_the_law_in_every_step_and_piece() -> None:
    clock = Clock()
    graphs = graphs_of(clock)

    def dropping(name: str, box: tuple[tuple[int, int], ...]) -> Compiled:
        def dropped(operands: Operands) -> tuple[Tensor, ...]:
            (x,) = operands
            assert x is not None
            later = clock.now.later
            key = key_of(5, clock.now.step, name) if later is None else later(name)
            return (x * kept(key, box, SHAPE, 0.5, CPU),)

        return chain([dropped, doubled])

    for name, box in (("a", BOX), ("b", ((0, 2), (0, 8)))):
        segment = dropping(name, box)
        for step in range(2):
            clock.now = DrawMoment(5, step)
            (y,) = graphs.of(segment)([], [torch.ones(2, 8)], Recorder())
            assert torch.equal(y, 2.0 * kept(key_of(5, step, name), box, SHAPE, 0.5, CPU))
    assert graphs.report().graphs == 1, "where a piece lies and who draws is no part of a graph"


def test_other_strides_are_another_graph() -> None:
    graphs, segment = graphs_of(Clock()), chain([doubled])
    for x in (torch.rand(3, 3), torch.rand(3, 3).T, torch.rand(3, 3)):
        (y,) = graphs.of(segment)([], [x], Recorder())
        assert torch.equal(y, x * 2)
    assert graphs.report().graphs == 2


@pytest.mark.ranks
def test_random_plans_as_graphs_equal_one_device() -> None:
    models = ("gpt2-xl", "alexnet", "mixtral-8x7b", "resnet-50")
    drawn = (
        candidate for candidate in drawn_plans(11, models) if candidate.plan.cluster.devices == 4
    )
    for verdict in verdicts(list(islice(drawn, 4)), backend="graphs"):
        assert verdict.strict, str(verdict)


def test_inductor_computes_the_same_with_gradients_and_masks() -> None:
    """Slow, since Inductor is: a compiler runs twice. `benchmarks/random_plans.py --compile` has
    whole plans.
    """
    clock = Clock()
    graphs = Graphs(inductor, cast("Compiler", clock), lambda: None)

    def dropped(operands: Operands) -> tuple[Tensor, ...]:
        (x,) = operands
        assert x is not None
        later = clock.now.later
        key = key_of(5, clock.now.step, "a") if later is None else later("a")
        return (torch.tanh(x) * kept(key, BOX, SHAPE, 0.5, CPU),)

    segment = chain([doubled, dropped])
    for step in range(2):
        clock.now = DrawMoment(5, step)
        outputs = []
        for run in (segment.run, graphs.of(segment)):
            x = torch.linspace(-1, 1, 16, dtype=torch.float64).view(2, 8).requires_grad_()
            (y,) = run([], [x], Recorder())
            outputs.append((y, *torch.autograd.grad(y.square().sum(), x)))
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-12, atol=1e-12)
    assert graphs.report()[:2] == (1, 1), graphs.report()
    assert not graphs.report().eager
