"""Graphs to lay out: tiny models of the zoo, and random ones of many kinds of operators."""

from __future__ import annotations

from functools import cache
from random import Random

from meshwright.capture.load import load_model
from meshwright.graph.families import family_of
from meshwright.graph.model import Call, Operator, OperatorGraph, Parameter, Spec, Tensor, Value

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
            own = f"{name}.{number}"
            self.specs[own] = spec
            outputs.append(_tensor(own, spec.shape, spec.dtype))
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
    own = _Growing()
    shape = (12, *(random.choice((4, 6, 12)) for _ in range(random.randint(1, 2))))
    own.specs["x"] = Spec("float32", shape)
    made = ["x"]
    weights: dict[tuple[int, ...], str] = {}
    for _ in range(random.randint(2, most)):
        made.append(_grow(random, own, made, weights))
    read = {name for operator in own.operators for name in operator.inputs}
    return OperatorGraph(
        name="random",
        inputs=(_tensor("x", shape),),
        parameters=tuple(own.parameters),
        operators=tuple(own.operators),
        outputs=tuple(name for name in made[1:] if name not in read),
    )


def _grow(
    random: Random, own: _Growing, made: list[str], weights: dict[tuple[int, ...], str]
) -> str:
    name = random.choice(made[-3:])
    shape = own.specs[name].shape
    last = len(shape) - 1
    alike = [other for other in made if own.specs[other].shape == shape]
    match random.choice(("linear", "linear", "relu", "add", "softmax", "norm", "turn", "sum")):
        case "linear":
            wanted = (random.choice((4, 6, 12)), shape[-1])
            if wanted not in weights or random.random() < 0.7:
                weights[wanted] = own.parameter(wanted, random.random() < 0.9)
            bias = (own.parameter(wanted[:1]),) if random.random() < 0.5 else ()
            return own.add("linear", (name, weights[wanted], *bias))
        case "add":
            return own.add("add", (name, random.choice(alike)))
        case "softmax":
            return own.add("softmax", (name,), dim=random.randint(0, last))
        case "norm":
            scale = own.parameter(shape[-1:])
            return own.add("layer_norm", (name, scale), normalized_shape=shape[-1:])
        case "turn" if last > 0:
            return own.add("transpose", (name,), dim0=0, dim1=last)
        case "sum" if last > 1:
            return own.add("sum", (name,), dim=(random.randint(0, last),))
        case _:
            return own.add("relu", (name,))
