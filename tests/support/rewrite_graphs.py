"""Random small graphs of operators that rules speak of, and what they compute on shards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter, Tensor
from meshwright.rewrite.graphs.kinds import read, write
from meshwright.rewrite.graphs.readings import Settings
from meshwright.rewrite.language.compute import FUNCTIONS
from meshwright.rewrite.language.shards import Shards, run, unsharded_array

SIZE = 4
"""Every tensor is square, so that every operator takes every tensor."""

OPERATORS: tuple[tuple[str, Settings, int], ...] = (
    ("relu", (), 1), ("gelu", (), 1), ("add", (), 2), ("mul", (), 2), ("linear", (), 2),
    ("linear_relu", (), 2), ("matmul", (), 2), ("transpose", (0, 1), 1), ("bias", (), 2),
    ("linear_bias", (), 3),
)  # fmt: skip


@st.composite
def square_graphs(draw: st.DrawFn) -> OperatorGraph:
    """Operators on square matrices; unread results and sometimes others are outputs."""
    square = (("a", SIZE), ("b", SIZE))
    x = Tensor(name="x", dtype="float64", dims=square)
    weights = [Tensor(name=f"w{n}", dtype="float64", dims=square) for n in range(2)]
    vector = Tensor(name="v", dtype="float64", dims=(("b", SIZE),))
    names = ["x", "w0", "w1"]
    operators: list[Operator] = []
    for number in range(draw(st.integers(2, 6))):
        kind, settings, arity = draw(st.sampled_from(OPERATORS))
        operands = [draw(st.sampled_from(names[-4:])) for _ in range(arity)]
        if kind in ("bias", "linear_bias"):
            operands[-1] = "v"
        specs = [vector.spec if operand == "v" else x.spec for operand in operands]
        written = write(kind, settings, specs)
        output = Tensor(name=f"t{number}", dtype="float64", dims=square)
        operators.append(
            Operator(
                name=f"t{number}",
                kind=written.kind,
                inputs=tuple(operands[n] for n in written.order),
                outputs=(output,),
                attributes=written.attributes,
            )
        )
        names.append(output.name)
    read_ = {name for operator in operators for name in operator.inputs}
    outputs = [op.name for op in operators if op.name not in read_ or draw(st.integers(0, 4)) == 0]
    return OperatorGraph(
        name="squares",
        inputs=(x,),
        parameters=tuple(Parameter(tensor=tensor) for tensor in (*weights, vector)),
        operators=tuple(operators),
        outputs=tuple(outputs),
    )


def values_for(graph: OperatorGraph, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Numbers for everything that comes from outside."""
    draws = np.random.default_rng(seed)
    tensors = (*graph.inputs, *(p.tensor for p in graph.parameters), *graph.buffers)
    return {tensor.name: draws.standard_normal(tensor.shape) for tensor in tensors}


def on_shards(
    graph: OperatorGraph, values: Mapping[str, NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """The outputs by the executable semantics; operators that no rule knows run with torch."""
    present: dict[str, Shards] = {name: unsharded_array(value) for name, value in values.items()}
    gelu = torch.nn.functional.gelu
    functions = {**FUNCTIONS, "gelu": lambda x: gelu(torch.from_numpy(x)).numpy()}
    for operator in graph.operators:
        reading = read(graph.call(operator))
        names = [name for name in operator.inputs if name is not None]
        if reading is None:
            arguments = [torch.from_numpy(_plain(present[name])) for name in names]
            outputs = run_operator(operator.kind, arguments, operator.attributes)
            results: tuple[Shards, ...] = tuple(
                unsharded_array(output.numpy()) for output in outputs
            )
        else:
            operands = [present[names[n]] for n in reading.order]
            results = run(reading.operator, reading.settings, operands, functions=functions)  # type: ignore[arg-type]
        present |= zip((tensor.name for tensor in operator.outputs), results, strict=True)
    return [_plain(present[name]) for name in graph.outputs]


def _plain(shards: Shards) -> NDArray[np.float64]:
    return shards.whole.reshape(shards.whole.shape[3:])
