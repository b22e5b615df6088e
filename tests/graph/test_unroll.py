"""An unrolled graph computes what it computed: values, gradients and flops, run by run."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from meshwright.base.errors import InputError
from meshwright.capture.export import capture
from meshwright.capture.reference_executor import execute, values_of
from meshwright.capture.source.example import Example
from meshwright.capture.zoo import entry
from meshwright.graph.counts import product_flops
from meshwright.graph.operator_graph import Operator, OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.graph.unroll import is_recurrent, unrolled
from meshwright.graph.validation import check

LENGTH, SAMPLES, WIDTH, HIDDEN = 6, 3, 4, 5


class Shape(NamedTuple):
    """Everything that a recurrent layer of PyTorch can be told."""

    kind: str = "lstm"
    layers: int = 1
    both_ways: bool = False
    batch_first: bool = False
    bias: bool = True
    projected: int = 0
    dropout: float = 0.0
    given: bool = False
    """Whether the first state is given."""
    used: str = "both"
    """Which results the model returns: "sequence", "state" or "both"."""


class Model(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kinds = {"lstm": nn.LSTM, "gru": nn.GRU}
        projected = {"proj_size": shape.projected} if shape.projected else {}
        self.layer = kinds[shape.kind](
            WIDTH,
            HIDDEN,
            num_layers=shape.layers,
            bidirectional=shape.both_ways,
            batch_first=shape.batch_first,
            bias=shape.bias,
            dropout=shape.dropout,
            **projected,
        )
        self.used = shape.used

    def forward(self, x: Tensor, state: Any = None) -> Any:
        results = self.layer(x * 1, state)
        return results if self.used == "both" else results[self.used == "state"]


def example_of(shape: Shape) -> Example:
    lead = (SAMPLES, LENGTH) if shape.batch_first else (LENGTH, SAMPLES)
    cells = shape.layers * (2 if shape.both_ways else 1)
    widths = (shape.projected or HIDDEN, HIDDEN)
    states = tuple(torch.randn(cells, SAMPLES, width).double() for width in widths)
    state = states if shape.kind == "lstm" else states[0]
    x = torch.randn(*lead, WIDTH).double()
    inputs: tuple[Any, ...] = (x, state) if shape.given else (x,)
    return Example(model=Model(shape).double(), inputs=inputs)


def results(graph: OperatorGraph, values: dict[str, Tensor]) -> tuple[Any, list[Any]]:
    """Outputs, and the gradients of all that enters, for outputs weighted at random."""
    entering = {
        name: value.detach().requires_grad_(value.is_floating_point())
        for name, value in values.items()
    }
    outputs = execute(graph, entering)
    torch.manual_seed(7)
    # Not randn_like, which draws in the order of memory, and that may differ.
    weights = [torch.randn(output.shape).double() for output in outputs.values()]
    gradients = torch.autograd.grad(
        tuple(outputs.values()),
        [value for value in entering.values() if value.requires_grad],
        weights,
        allow_unused=True,
    )
    return outputs, list(gradients)


def assert_same(example: Example, steps: int | None) -> OperatorGraph:
    """The unrolled graph, after it was compared with the one before."""
    graph = capture(example, "model")
    new = unrolled(graph, steps)
    assert check(new) == ()
    alone = msgspec.structs.replace(new, traced=None)
    assert parse_graph(str(alone)) == alone
    assert (new.inputs, new.parameters, new.outputs) == (
        graph.inputs,
        graph.parameters,
        graph.outputs,
    )
    assert product_flops(new) == product_flops(graph)
    values = values_of(example, graph)
    torch.testing.assert_close(results(new, values), results(graph, values), rtol=1e-9, atol=1e-12)
    return new


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    kind = draw(st.sampled_from(("lstm", "gru")))
    layers = draw(st.integers(1, 3))
    return Shape(
        kind=kind,
        layers=layers,
        both_ways=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        bias=draw(st.booleans()),
        projected=draw(st.sampled_from((0, 2))) if kind == "lstm" else 0,
        # All is dropped or nothing, so that no draw decides; PyTorch warns of it at one layer.
        dropout=draw(st.sampled_from((0.0, 1.0))) if layers > 1 else 0.0,
        given=draw(st.booleans()),
        used=draw(st.sampled_from(("sequence", "state", "both"))),
    )


@given(shape=shapes(), steps=st.sampled_from((None, 1, 2, 3, 6)))
def test_the_same_is_computed(shape: Shape, steps: int | None) -> None:
    torch.manual_seed(0)
    new = assert_same(example_of(shape), steps)
    cells = shape.layers * (2 if shape.both_ways else 1)
    assert len(recurrent(new)) == cells * (steps or LENGTH)


@pytest.mark.parametrize("run", [6, 2])
@pytest.mark.parametrize("name", ["nmt", "rnnlm", "rnntc"])
def test_flexflow_s_models(name: str, run: int) -> None:
    """Whole sequences and runs of them; a decoder begins with the last states of an encoder."""
    torch.manual_seed(0)
    model = entry(name)
    sizes = msgspec.structs.replace(model.tiny, run=run)
    example = model.example(sizes, SAMPLES)
    example.model.double()
    sides = 2 if name == "nmt" else 1
    assert len(recurrent(assert_same(example, None))) == sides * sizes.layers * sizes.steps


def recurrent(graph: OperatorGraph) -> list[Operator]:
    return [operator for operator in graph.operators if is_recurrent(operator)]


class Stack(nn.Module):
    """Layers that are modules of their own; what is between them is a function."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.LSTM(WIDTH, WIDTH) for _ in range(2))
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        first, _ = self.encoder[0](x)
        second, _ = self.encoder[1](self.between(first))
        y: Tensor = second
        return y


def stack(between: Any) -> Example:
    return Example(model=Stack(between).double(), inputs=(torch.randn(4, SAMPLES, WIDTH).double(),))


def test_modules_in_a_row_are_wired_run_by_run() -> None:
    new = assert_same(stack(lambda y: y), 2)
    wiring = {op.name: op.inputs[:3] for op in new.operators if op.kind != "zeros"}
    zeros = ("encoder.0.zeros", "encoder.0.zeros_2"), ("encoder.1.zeros", "encoder.1.zeros_2")
    assert wiring == {
        "encoder.0.lstm.split": ("x",),
        "encoder.0.lstm.step0": ("encoder.0.lstm.split.0", *zeros[0]),
        "encoder.0.lstm.step1": (
            "encoder.0.lstm.split.1",
            "encoder.0.lstm.step0.1",
            "encoder.0.lstm.step0.2",
        ),
        "encoder.1.lstm.step0": ("encoder.0.lstm.step0.0", *zeros[1]),
        "encoder.1.lstm.step1": (
            "encoder.0.lstm.step1.0",
            "encoder.1.lstm.step0.1",
            "encoder.1.lstm.step0.2",
        ),
        "encoder.1.lstm.cat": ("encoder.1.lstm.step0.0", "encoder.1.lstm.step1.0"),
    }
    assert [op.layer for op in recurrent(new)] == ["encoder.0"] * 2 + ["encoder.1"] * 2


class Deep(nn.Module):
    """Modules of several layers in a row and side by side, of which most results are used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(WIDTH, HIDDEN, 2, bidirectional=True, batch_first=True)
        self.second = nn.GRU(2 * HIDDEN, 3, 2, bidirectional=True, batch_first=True)
        self.beside = nn.LSTM(WIDTH, HIDDEN, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, _ = self.first(x)
        z, state = self.second(y)
        other, (_, cell) = self.beside(x)
        return z, state, other.sum(), cell, y.mean()


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_a_sequence_is_cut_once(steps: int) -> None:
    """For all that read it; and not at all where it was joined."""
    x = torch.randn(SAMPLES, LENGTH, WIDTH).double()
    new = assert_same(Example(model=Deep().double(), inputs=(x,)), steps)
    cuts = [op.name for op in new.operators if op.kind == "split" and "state" not in op.name]
    assert cuts == (["first.lstm.split"] if steps > 1 else [])


def test_what_stands_between_modules_stays_whole() -> None:
    new = assert_same(stack(functional.relu), None)
    kinds = [op.kind for op in new.operators if op.kind != "zeros"]
    lstm = ["split", *["lstm"] * 4, "cat"]
    assert kinds == [*lstm, "relu", *lstm]


def test_parts_that_differ_are_cut_anew() -> None:
    """A user's join in other places, or of other dims, is not taken for a cut."""
    for between in (
        lambda y: torch.cat([y[:1], y[1:]]),
        lambda y: torch.cat([y[..., :2], y[..., 2:]], -1),
        lambda y: torch.cat([y[:1], y[1:2], y[2:3], y[3:]]),
    ):
        assert_same(stack(between), 2)
    new = assert_same(stack(lambda y: torch.cat([y[2:], y[:2]])), 2)
    assert [op.kind for op in new.operators].count("cat") == 2, "of the user and of the end"


def test_one_layer_is_a_module_of_each_layer() -> None:
    new = assert_same(example_of(Shape(layers=2, both_ways=True, used="sequence")), 3)
    assert {op.layer for op in recurrent(new)} == {"layer.0", "layer.1"}
    assert [op.name for op in recurrent(new)][:4] == [
        "layer.lstm.0.step0",
        "layer.lstm.0.step1",
        "layer.lstm.0.step2",
        "layer.lstm.0.reverse.step0",
    ]


def test_dropout_stands_between_layers() -> None:
    graph = unrolled(capture(example_of(Shape(layers=3, dropout=0.25)), "model"), 2)
    drops = [op for op in graph.operators if op.kind == "dropout"]
    assert [op.name for op in drops] == [
        f"layer.lstm.{i}.dropout{r}" for i in (0, 1) for r in (0, 1)
    ]
    assert {op.attributes for op in drops} == {(("p", 0.25), ("train", True))}
    evaluated = example_of(Shape(layers=3, dropout=0.25))
    evaluated.model.eval()
    assert "dropout" not in {op.kind for op in assert_same(evaluated, 2).operators}


def test_nothing_to_unroll() -> None:
    """No recurrent operator, or one that is a single cell and stays in one run."""
    linear = capture(Example(model=nn.Linear(4, 4), inputs=(torch.randn(4, 4),)))
    assert unrolled(linear) == linear
    lstm = capture(example_of(Shape()), "model")
    assert unrolled(lstm, 1) == lstm


def test_an_operator_that_nobody_reads_stays() -> None:
    graph = capture(example_of(Shape()), "model")
    unread = parse_graph("\n".join(x for x in str(graph).splitlines() if x[:6] != "output"))
    assert len(recurrent(unrolled(unread, 3))) == 3


@pytest.mark.parametrize("steps", [0, -2, 4, 12])
def test_runs_that_are_not_equal(steps: int) -> None:
    with pytest.raises(InputError) as caught:
        unrolled(capture(example_of(Shape()), "model"), steps)
    assert str(caught.value) == (
        f"operator 'layer.lstm' runs over 6 steps, which {steps} operators do not share evenly; "
        "unroll it into one of 1, 2, 3, 6."
    )
