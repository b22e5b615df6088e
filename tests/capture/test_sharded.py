"""Graphs with parallel operators, run piece by piece, are the plain graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.capture.reference_executor import execute
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import Attributes, Call, OperatorGraph, Spec, Value
from meshwright.graph.text import parse_graph
from meshwright.rewrite.graphs.kinds import read
from meshwright.rewrite.graphs.readings import OperatorReading
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import Shards, run
from meshwright.rewrite.language.types import FRONT, PARALLEL
from support.shard_strategies import Case, cases, moves
from support.shard_tasks import defined_work, run_tasks
from support.sharded_forms import FORMS, Form, graphs
from support.sharded_run import execute_sharded
from support.shards import Pieces, moved, piece


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Pieces are small: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def drawn(graph: OperatorGraph) -> dict[str, Tensor]:
    """A value for all that enters a graph; whole numbers are rows of a table or ends of groups."""
    generator = torch.Generator().manual_seed(3)
    values = {}
    for tensor in (*graph.inputs, *(p.tensor for p in graph.parameters)):
        match tensor.dtype:
            case "int64":
                value = torch.randint(0, 6, tensor.shape, generator=generator)
            case "int32":
                value = torch.tensor([1, 3, 3, 8], dtype=torch.int32)
            case _:
                value = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
                value.requires_grad_()
        values[tensor.name] = value
    return values


def gradients(value: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a fixed random weighting, by all that can have one."""
    weights = torch.randn(
        value.shape, dtype=value.dtype, generator=torch.Generator().manual_seed(5)
    )
    learnt = {name: tensor for name, tensor in values.items() if tensor.requires_grad}
    grads = torch.autograd.grad(value, list(learnt.values()), weights, materialize_grads=True)
    return dict(zip(learnt, grads, strict=True))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_is_the_plain_graph(form: Form) -> None:
    plain, sharded = graphs(form)
    values = drawn(plain)
    expected = execute(plain, values)["y"]
    output = execute_sharded(sharded, values)["y"]
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-13)
    ours, theirs = gradients(output, values), gradients(expected, values)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_plain_graphs_run_as_they_are(form: Form) -> None:
    plain, _ = graphs(form)
    values = drawn(plain)
    assert torch.equal(execute_sharded(plain, values)["y"], execute(plain, values)["y"])


def as_pieces(shards: Shards) -> Pieces:
    """The same tensor, held the other way."""
    return Pieces(shards.type, torch.from_numpy(np.ascontiguousarray(shards.whole)))


@pytest.mark.parametrize("operator", PARALLEL)
@given(st.data())
def test_parallel_operators_are_those_of_the_definition(operator: str, data: st.DataObject) -> None:
    attributes, operand = data.draw(moves(operator))
    (expected,) = run(operator, attributes, (operand,))
    output = moved(operator, attributes, as_pieces(operand))
    assert output.type == expected.type
    np.testing.assert_array_equal(output.whole.numpy(), expected.whole)
    at = [data.draw(st.integers(0, axis.degree - 1)) for axis in output.type]
    inside = [data.draw(st.integers(0, n.size // n.degree - 1)) for n in output.type[:FRONT]]
    front = tuple(
        place * (axis.size // axis.degree) + own_place
        for axis, place, own_place in zip(output.type, at, inside, strict=False)
    )
    np.testing.assert_array_equal(
        piece(output, front, at[FRONT:]).numpy(), expected.values[tuple(at)][tuple(inside)]
    )


KINDS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "relu": ("relu", (0,)),
    "silu": ("silu", (0,)),
    "tanh": ("tanh", (0,)),
    "sigmoid": ("sigmoid", (0,)),
    "exp": ("exp", (0,)),
    "neg": ("neg", (0,)),
    "add": ("add", (0, 1)),
    "sub": ("sub", (0, 1)),
    "mul": ("mul", (0, 1)),
    "bias": ("add", (0, 1)),
    "scale": ("mul", (0, 1)),
    "linear": ("linear", (0, 1)),
    "linear_bias": ("linear", (0, 1, 2)),
    "matmul": ("matmul", (0, 1)),
    "conv2d": ("conv2d", (0, 1)),
    "conv2d_bias": ("conv2d", (0, 1, 2)),
    "embedding": ("embedding", (1, 0)),
    "embedding_bag": ("embedding_bag", (1, 0)),
    "experts": ("_grouped_mm", (0, 1, 2)),
    "sum_last": ("sum", (0,)),
    "sum_first": ("sum", (0,)),
    "sum_rows": ("sum", (0,)),
    "softmax": ("softmax", (0,)),
    "rms_norm": ("rms_norm", (0, 1)),
    "layer_norm": ("layer_norm", (0, 1, 2)),
}
"""The kind that computes an operator, and which of its inputs each operand is."""

DIFFERENT = {"gelu", "linear_relu", "attention"}
"""Not compared: told by another function (gelu, attention's weight), or by no kind of its own."""


def test_every_operator_is_compared() -> None:
    assert {*KINDS, *DIFFERENT} == {*DEFINITIONS}


def attributes_of(case: Case) -> Attributes:
    """The attributes of the kind that computes a case."""
    values: dict[str, Value] = {}
    match case.definition.name:
        case "conv2d" | "conv2d_bias":
            numbers = tuple(map(int, case.attributes))
            values = {"padding": numbers[2:], "stride": numbers[:2]}
        case "sum_last" | "softmax":
            values = {"dim": (-1,) if case.definition.name == "sum_last" else -1}
        case "sum_first" | "sum_rows":
            values = {"dim": (0 if case.definition.name == "sum_first" else -2,)}
        case "rms_norm" | "layer_norm":
            shape = case.wholes[1].shape[FRONT:]
            values = {"eps": float(case.attributes[0]), "normalized_shape": shape}
        case _:
            pass
    return tuple(sorted(values.items()))


def call_of(case: Case) -> Call:
    """The call that computes a case."""
    kind, order = KINDS[case.definition.name]
    inputs = [Spec("float64", ())] * len(order)
    for number, whole in zip(order, case.wholes, strict=True):
        inputs[number] = Spec("float64", whole.shape[FRONT:])
    call = Call(kind=kind, inputs=tuple(inputs), outputs=(), attributes=attributes_of(case))
    outputs = family_of(call).outputs(call)
    return Call(kind=kind, inputs=call.inputs, outputs=outputs, attributes=call.attributes)


WHOLE = {("embedding", "t"), ("embedding_bag", "t"), ("experts", "e")}


def operands_of(case: Case) -> tuple[Pieces, ...]:
    """The operands of a case in the order of its call; rows of tables that are there."""
    order = KINDS[case.definition.name][1]
    operands: dict[int, Pieces] = {}
    for number, name, operand in zip(order, case.definition.operands, case.operands, strict=True):
        pieces = as_pieces(operand)
        if (case.definition.name, name) in WHOLE:
            pieces = Pieces(pieces.type, pieces.whole.long())
        operands[number] = pieces
    return tuple(operands[number] for number in range(len(order)))


@pytest.mark.parametrize("name", KINDS)
@given(st.data())
def test_kernels_in_pieces_are_the_definition(name: str, data: st.DataObject) -> None:
    """Real kernels on pieces, with steps, copies and pending sums, make what the line tells."""
    case = data.draw(cases(DEFINITIONS[name], for_kernels=True))
    call, order = call_of(case), KINDS[name][1]
    (expected,) = run(name, case.attributes, case.operands)
    reading = OperatorReading(name, case.attributes, order)
    types = [operand.type for operand in case.operands]
    work = defined_work(call, reading, DEFINITIONS[name], types)
    (output,) = run_tasks(call, work, operands_of(case), (expected.type,))
    assert output.type == expected.type
    np.testing.assert_allclose(output.whole.numpy(), expected.whole, rtol=1e-10, atol=1e-12)


HEAD = "graph g\ninput x: float64[n=4, k=6]\nparameter w: float64[o=8, k=6]\n"

MISTAKES = {
    'operator y: y: float64[n=4, k=6] = partition(x) {axis=0, degree=3}\noutput y\n':
    "operator 'y' (partition) cannot take its inputs: an axis of size 4 is cut into 3; "
    "change the parallel operators before it.",
    'operator y: y: float64[n=4, k=6] = partition(x) {axis=0, degree=2}\noutput y\n':
    "output 'y' is still in pieces: 1 step, 1 copy, 1 sum, dims 4 in 2 and 6 in 1; "
    "end the graph with combine, reduce or batch.",
    'operator y: y: float64[n=4, k=6] = replicate(x) {axis="copies", degree=2}\noutput y\n':
    "output 'y' is still in pieces: 1 step, 2 copies, 1 sum, dims 4 in 1 and 6 in 1; "
    "end the graph with combine, reduce or batch.",
    'operator p: p: float64[n=4, k=6] = partition(x) {axis=0, degree=2}\n'
    'operator y: y: float64[n=4, o=8] = linear(p, w)\noutput y\n':
    "operator 'y' (linear) cannot take its inputs: w has 1 copies where 2 are needed; "
    "change the parallel operators before it.",
    'operator p: p: float64[n=4, k=6] = partition(x) {axis=1, degree=2}\n'
    'operator y: y: float64[n=4, k=6] = softmax(p) {dim=-1}\noutput y\n':
    "operator 'y' (softmax) cannot take its inputs: softmax cannot be cut along j; "
    "change the parallel operators before it.",
    'operator p: p: float64[n=4, k=6] = partition(x) {axis=0, degree=2}\n'
    'operator y: y: float64[n=4, k=6] = dropout(p) {p=0.5, train=true}\noutput y\n':
    "operator 'y': its inputs are in pieces, and no rule tells what dropout computes; "
    "put its inputs together before it.",
}  # fmt: skip


@pytest.mark.parametrize("body", MISTAKES)
def test_mistakes_are_sentences(body: str) -> None:
    graph = parse_graph(HEAD + body)
    with pytest.raises(InputError) as error:
        execute_sharded(graph, drawn(graph))
    assert str(error.value) == MISTAKES[body]


def test_a_kind_without_such_a_split_is_refused() -> None:
    """A reading may claim more than the family knows: softmax read as a function of elements."""
    graph = parse_graph(
        HEAD + "operator p: p: float64[n=4, k=6] = partition(x) {axis=1, degree=2}\n"
        "operator y: y: float64[n=4, k=6] = softmax(p) {dim=-1}\noutput y\n"
    )
    with pytest.raises(InputError) as error:
        execute_sharded(
            graph,
            drawn(graph),
            lambda call: (
                OperatorReading("relu", (), (0,)) if call.kind == "softmax" else read(call)
            ),
        )
    assert str(error.value) == (
        "operator 'y': softmax cannot run in pieces along i.1; put its inputs together before it."
    )


def test_a_missing_value_is_a_sentence() -> None:
    graph = parse_graph(HEAD + "output x\n")
    with pytest.raises(InputError, match="there is no value for 'w' of graph 'g'"):
        execute_sharded(graph, {"x": torch.zeros(4, 6)})
