"""Kinds and operators of the rule language: two ways that meet, and one meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from meshwright.capture.execution.kernels import run_operator
from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.graph.notation import MisfitError, parse_definitions
from meshwright.graph.operator_graph import Attributes, Call, OperatorGraph, Spec
from meshwright.rewrite.graphs.kinds import read, write
from meshwright.rewrite.graphs.readings import Settings
from meshwright.rewrite.language.compute import FUNCTIONS
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.shards import run, unsharded_array
from meshwright.rewrite.language.types import STRUCTURAL
from support.operator_cases import CASES, Case, Operand, case, real, whole


@cache
def tiny(name: str) -> OperatorGraph:
    return load_model(f"zoo:{name}/tiny").graph


def rewritten(call: Call) -> Call:
    """A call that was read, as it is written."""
    reading = read(call)
    assert reading is not None
    operands = [call.inputs[number] for number in reading.order]
    specs = [spec for spec in operands if spec is not None]
    written = write(reading.operator, reading.settings, specs)
    inputs = tuple(specs[number] for number in written.order)
    return Call(
        kind=written.kind, inputs=inputs, outputs=written.outputs, attributes=written.attributes
    )


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_reading_and_writing_are_inverse_on_the_zoo(name: str) -> None:
    graph = tiny(name)
    calls = {call for call in map(graph.call, graph.operators) if read(call) is not None}
    assert calls
    for call in calls:
        written = rewritten(call)
        assert (written.inputs, written.outputs) == (call.inputs, call.outputs)
        assert read(written) == read(call)
        assert rewritten(written) == written


def test_what_the_zoo_writes_as_we_do() -> None:
    """Nothing is respelt but these: the kind of a call says how it was come by."""
    respelt = {
        call.kind
        for entry in ENTRIES
        for call in map(tiny(entry.name).call, tiny(entry.name).operators)
        if read(call) is not None and rewritten(call) != call
    }
    assert respelt == {
        "bmm", "cat", "chunk", "embedding_bag", "flatten", "softmax", "split", "unflatten", "view",
    }  # fmt: skip


class Example(NamedTuple):
    """A term of the language on operands of a case."""

    operator: str
    case: Case
    settings: Settings = ()


EXAMPLES = (
    *(Example(name, case(name, real(3, 4)))
      for name in ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "neg")),
    *(Example(name, case(name, real(3, 4), real(3, 4))) for name in ("add", "sub", "mul")),
    Example("bias", case("add", real(2, 3, 4), real(4))),
    Example("scale", case("mul", real(2, 3, 4), real(4))),
    Example("linear", case("linear", real(2, 3, 4), real(5, 4))),
    Example("linear_bias", case("linear", real(3, 4), real(5, 4), real(5))),
    Example("linear_relu", case("linear_relu", real(3, 4), real(5, 4))),
    Example("matmul", case("matmul", real(2, 2, 3, 4), real(2, 2, 4, 5))),
    Example("matmul", case("mm", real(3, 4), real(4, 5))),
    Example("matmul", case("bmm", real(2, 3, 4), real(2, 4, 5))),
    Example("conv2d", case("conv2d", real(2, 3, 6, 5), real(4, 3, 3, 2), stride=(2, 2),
                           padding=(1, 0)), (2, 2, 1, 0)),
    Example("conv2d_bias", case("conv2d", real(2, 3, 6, 5), real(4, 3, 2, 2), real(4)),
            (1, 1, 0, 0)),
    Example("embedding", case("embedding", real(7, 4), whole(7, 2, 3))),
    Example("embedding_bag", case("embedding_bag", real(7, 4), whole(7, 5, 3))),
    Example("experts", case("_grouped_mm", real(6, 4), real(3, 4, 5), Operand("rising", (3,), 6))),
    Example("sum_last", case("sum", real(2, 3, 4), dim=(2,))),
    Example("sum_first", case("sum", real(2, 3, 4), dim=(0,))),
    Example("sum_rows", case("sum", real(2, 3, 4), dim=(1,))),
    Example("softmax", case("softmax", real(2, 3, 4), dim=-1)),
    Example("rms_norm", case("rms_norm", real(2, 3, 4), real(4), eps=1e-5,
                             normalized_shape=(4,)), (1e-5,)),
    Example("layer_norm", case("layer_norm", real(2, 3, 4), real(4), real(4),
                               normalized_shape=(4,)), (1e-5,)),
    Example("attention", case("scaled_dot_product_attention", real(2, 3, 5, 4), real(2, 3, 5, 4),
                              real(2, 3, 5, 6)), ((False, 0.5),)),
    Example("attention", case("scaled_dot_product_attention", real(2, 5, 4), real(2, 5, 4),
                              real(2, 5, 4), is_causal=True, scale=0.3), ((True, 0.3),)),
    Example("concat", case("cat", real(2, 3), real(2, 4), dim=-1), (1,)),
    Example("split", case("split_with_sizes", real(2, 6), dim=1, split_sizes=(1, 2, 3)), (1, 1, 2)),
    Example("split", case("chunk", real(6, 2), chunks=2), (0, 3)),
    Example("transpose", case("transpose", real(2, 3, 4), dim0=-1, dim1=0), (0, 2)),
    Example("transpose", case("permute", real(2, 3, 4), dims=(0, 2, 1)), (1, 2)),
    Example("flatten", case("flatten", real(2, 1, 4), start_dim=1), (1,)),
    Example("flatten", case("view", real(2, 3, 4), size=(6, 4)), (0,)),
    Example("unflatten", case("unflatten", real(2, 6), dim=-1, sizes=(3, -1)), (1, 3)),
    Example("unflatten", case("reshape", real(6, 4), shape=(2, 3, 4)), (0, 2)),
)  # fmt: skip


def test_every_operator_has_an_example() -> None:
    assert {example.operator for example in EXAMPLES} == {*DEFINITIONS, *STRUCTURAL}


def torch_gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(torch.nn.functional.gelu(torch.from_numpy(x)).numpy())


Array = NDArray[np.float64]


def attention_weight(causal: bool, scale: float) -> Callable[[Array, Array, Array, Array], Array]:
    """What settings of attention mean: how the score of query m and key n is weighed."""
    return lambda z, m, n, score: np.asarray(np.exp(score * scale) * ((m >= n) | (not causal)))


def meaning(example: Example) -> list[Array]:
    """The definition on whole arrays."""
    tensors = [t for t in example.case.tensors() if t is not None]
    reading = read(example.case.call)
    assert reading is not None
    operands = [unsharded_array(tensors[n].detach().double().numpy()) for n in reading.order]
    settings = reading.settings
    functions: dict[str, Callable[..., Array]] = {**FUNCTIONS, "gelu": torch_gelu}
    match settings:
        case ((bool() as causal, float() as scale),):
            settings, functions["weight"] = (0,), attention_weight(causal, scale)
        case _:
            pass
    outputs = run(example.operator, settings, operands, functions=functions)  # type: ignore[arg-type]
    return [shards.whole.reshape(shards.whole.shape[3:]) for shards in outputs]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.operator}-{e.case.kind}")
def test_definitions_mean_what_torch_computes(example: Example) -> None:
    reading = read(example.case.call)
    assert reading is not None
    assert (reading.operator, reading.settings) == (example.operator, example.settings)
    expected = run_operator(example.case.kind, example.case.tensors(), example.case.attributes)
    for output, other in zip(meaning(example), expected, strict=True):
        np.testing.assert_allclose(output, other.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.operator}-{e.case.kind}")
def test_written_calls_compute_the_same(example: Example) -> None:
    call, tensors = example.case.call, example.case.tensors()
    written = rewritten(call)
    expected = run_operator(call.kind, tensors, call.attributes)
    for output, other in zip(
        run_operator(written.kind, tensors, written.attributes), expected, strict=True
    ):
        torch.testing.assert_close(output, other, rtol=0, atol=0)


OPAQUE = (
    case("gelu", real(3, 4), approximate="tanh"),
    case("add", real(3, 4), real(3, 4), alpha=2),
    case("add", real(3, 4), real(3, 1)),
    case("sub", real(3, 4), real(4)),
    case("matmul", real(2, 3, 4), real(4, 5)),
    case("conv2d", real(2, 4, 6, 6), real(4, 2, 3, 3), groups=2),
    case("conv2d", real(2, 4, 6, 6), real(4, 4, 3, 3), dilation=(2, 2)),
    case("softmax", real(3, 4), dim=0),
    case("sum", real(2, 3, 4, 5), dim=(1,)),
    case("sum", real(3, 4), dim=(1,), keepdim=True),
    case("layer_norm", real(2, 3, 4), normalized_shape=(3, 4)),
    case("scaled_dot_product_attention", real(2, 4, 5, 4), real(2, 2, 5, 4), real(2, 2, 5, 4),
         enable_gqa=True),
    case("scaled_dot_product_attention", real(2, 5, 4), real(2, 5, 4), real(2, 5, 4),
         dropout_p=0.1),
    case("permute", real(2, 3, 4), dims=(2, 0, 1)),
    case("flatten", real(2, 3, 4)),
    case("view", real(2, 6), size=(3, 4)),
    case("embedding", real(7, 4), whole(7, 3), padding_idx=1),
    case("embedding_bag", real(7, 4), whole(7, 5, 3), mode=1),
)  # fmt: skip


@pytest.mark.parametrize("example", OPAQUE, ids=str)
def test_what_no_rule_speaks_of(example: Case) -> None:
    assert read(example.call) is None


def test_every_case_that_is_read_is_written_back() -> None:
    for example in CASES:
        if read(example.call) is not None:
            assert read(rewritten(example.call)) == read(example.call)


@pytest.mark.parametrize(
    ("operator", "settings", "attributes"),
    [
        ("partition", (-1, 2), (("axis", 1), ("degree", 2))),
        ("replicate", (2,), (("axis", "copies"), ("degree", 2))),
        ("reduce", (2,), (("axis", "sums"), ("degree", 2))),
        ("batch", (0, 4), (("axis", 0), ("count", 4))),
        ("halo", (0, 1, 2), (("after", 2), ("axis", 0), ("before", 1))),
    ],
)
def test_parallel_operators(operator: str, settings: Settings, attributes: Attributes) -> None:
    x = Spec("float32", (4, 8))
    written = write(operator, settings, [x])
    assert (written.kind, written.attributes) == (operator, attributes)
    call = Call(kind=operator, inputs=(x,), outputs=written.outputs, attributes=attributes)
    reading = read(call)
    assert reading is not None
    assert write(reading.operator, reading.settings, [x]) == written


SWISH = "swish[b](x)[i..] = x[i..] * sigmoid(b * x[i..])"


@pytest.mark.parametrize(
    ("kernel", "kind", "notes"),
    [
        ("", "swish", ()),
        ("mylib::swish", "mylib.swish", ()),
        ("mylib.ops:swish", "swish", (("python_kernel", "mylib.ops:swish"),)),
    ],
)
def test_an_operator_of_a_user_carries_its_definition(
    kernel: str, kind: str, notes: Attributes
) -> None:
    known = {**DEFINITIONS, **parse_definitions(f"{SWISH}\n{kernel and f'kernel = {kernel}'}")}
    x = Spec("float32", (4, 8))
    attributes: Attributes = (("b", 2), ("definition", SWISH), *notes)
    assert write("swish", (2,), [x], known) == (kind, attributes, (0,), (x,))
    call = Call(kind=kind, inputs=(x,), outputs=(x,), attributes=attributes)
    assert read(call, known) == ("swish", (2,), (0,))
    assert read(call, DEFINITIONS) is None


def test_an_operator_that_nobody_defines_is_not_written() -> None:
    with pytest.raises(MisfitError, match="no kind computes swish"):
        write("swish", (2,), [Spec("float32", (4, 8))])


def test_the_usual_scale_is_left_out() -> None:
    q = Spec("float32", (2, 5, 4))
    assert write("attention", ((False, 1 / math.sqrt(4)),), [q, q, q]).attributes == ()
