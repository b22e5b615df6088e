"""Graphs to lay out: tiny models of the zoo, and random ones of many kinds of operators."""

from __future__ import annotations

from functools import cache
from random import Random

from meshwright.capture.load import load_model
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import (
    Call,
    Operator,
    OperatorGraph,
    Parameter,
    Spec,
    Tensor,
    Value,
)

TINY = ("alexnet", "inception-v3", "nmt", "bert-large", "mixtral-8x7b", "dlrm")
"""One model of each structure."""


@cache
def tiny(name: str, batch: int = 4) -> OperatorGraph:
    """A model of the zoo at small sizes."""
    return load_model(f"zoo:{name}/tiny", batch).graph


class _Growing:
    """A graph to which operators are added; shapes follow from the families."""

    def __init__(self) -> None:
        self.specs: dict[str, Spec] = {}
        self.parameters: list[Parameter] = []
        self.operators: list[Operator] = []

    def parameter(self, shape: tuple[int, ...], trainable: bool = True) -> str:
        name = f"w{len(self.parameters)}"
        self.specs[name] = Spec("float32", shape)
        self.parameters.append(Parameter(tensor=_tensor(name, shape), trainable=trainable))
        return name

    def add(self, kind: str, inputs: tuple[str, ...], **attributes: Value) -> str:
        call = Call(
            kind=kind,
            inputs=tuple(self.specs[name] for name in inputs),
            outputs=(),
            attributes=tuple(sorted(attributes.items())),
        )
        name = f"{kind}{len(self.operators)}"
        outputs = []
        for number, spec in enumerate(family_of(call).outputs(call)):
            output_name = f"{name}.{number}"
            self.specs[output_name] = spec
            outputs.append(_tensor(output_name, spec.shape, spec.dtype))
        self.operators.append(
            Operator(
                name=name,
                kind=kind,
                inputs=inputs,
                outputs=tuple(outputs),
                attributes=call.attributes,
            )
        )
        return outputs[0].name


def _tensor(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Tensor:
    return Tensor(name=name, dtype=dtype, dims=tuple((f"d{i}", n) for i, n in enumerate(shape)))


def random_graph(random: Random, most: int = 10) -> OperatorGraph:
    """Up to so many operators on tensors of two or three dims of sizes that 2 and 3 divide."""
    growing = _Growing()
    shape = (12, *(random.choice((4, 6, 12)) for _ in range(random.randint(1, 2))))
    growing.specs["x"] = Spec("float32", shape)
    names = ["x"]
    weights: dict[tuple[int, ...], str] = {}
    for _ in range(random.randint(2, most)):
        names.append(_grow(random, growing, names, weights))
    read = {name for operator in growing.operators for name in operator.inputs}
    return OperatorGraph(
        name="random",
        inputs=(_tensor("x", shape),),
        parameters=tuple(growing.parameters),
        operators=tuple(growing.operators),
        outputs=tuple(name for name in names[1:] if name not in read),
    )


def _grow(
    random: Random, growing: _Growing, names: list[str], weights: dict[tuple[int, ...], str]
) -> str:
    name = random.choice(names[-3:])
    shape = growing.specs[name].shape
    last = len(shape) - 1
    alike = [other for other in names if growing.specs[other].shape == shape]
    match random.choice(("linear", "linear", "relu", "add", "softmax", "norm", "turn", "sum")):
        case "linear":
            wanted = (random.choice((4, 6, 12)), shape[-1])
            if wanted not in weights or random.random() < 0.7:
                weights[wanted] = growing.parameter(wanted, random.random() < 0.9)
            bias = (growing.parameter(wanted[:1]),) if random.random() < 0.5 else ()
            return growing.add("linear", (name, weights[wanted], *bias))
        case "add":
            return growing.add("add", (name, random.choice(alike)))
        case "softmax":
            return growing.add("softmax", (name,), dim=random.randint(0, last))
        case "norm":
            scale = growing.parameter(shape[-1:])
            return growing.add("layer_norm", (name, scale), normalized_shape=shape[-1:])
        case "turn" if last > 0:
            return growing.add("transpose", (name,), dim0=0, dim1=last)
        case "sum" if last > 1:
            return growing.add("sum", (name,), dim=(random.randint(0, last),))
        case _:
            return growing.add("relu", (name,))
