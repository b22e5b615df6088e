"""Operator graph IR: ATen operators on named tensors, on one device. Enters: tensors and operators.
Leaves: an `OperatorGraph`.

A tensor is defined once, where it is born: as an input, a parameter, a buffer or an operator's
output; everybody else names it. An operator follows ATen: `kind` is the name without namespace,
overload and in-place underscore ("linear", "add"); `inputs` are the tensor arguments in the order
of the schema, lists of tensors laid out in place, None for one that is absent before one that is
present; `attributes` are all other arguments that differ from their defaults. What a kind means is
told by its family (`families`), not here; that the whole is consistent is told by `check`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.quantities import Bytes
from meshwright.base.sheet import Sheet, printed
from meshwright.graph.traced import Traced

Value = bool | int | float | str | tuple[int, ...] | None
"""An attribute. An infinite number is written as text ("-inf"), since JSON has none."""

Attributes = tuple[tuple[str, Value], ...]
"""Sorted by key."""

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float16": 2, "bfloat16": 2,
    "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of an element, by dtype."""

NAME = re.compile(r"""[^\s,:;=@()\[\]{}"-][^\s,:;=@()\[\]{}"]*""")
"""What tensors, operators, dims and layers may be called."""


class Spec(msgspec.Struct, frozen=True):
    """What an operator knows of a tensor: no name, no history.

    >>> Spec("float32", (4, 8)).bytes
    128
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> Bytes:
        """How much memory the elements take."""
        return Bytes(self.elements * ITEM_BYTES[self.dtype])


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A named tensor with named dims.

    >>> print(Tensor(name="x", dtype="float32", dims=(("batch", 4), ("width", 8))))
    x: float32[batch=4, width=8]
    """

    name: str
    dtype: str
    dims: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        for name in (self.name, *(dim for dim, _ in self.dims)):
            _refuse_bad_name(name, f"tensor {self.name!r}")
        if self.dtype not in ITEM_BYTES:
            raise InputError(
                f"tensor {self.name!r} has dtype {self.dtype!r}", nearest(self.dtype, ITEM_BYTES)
            )
        for dim, size in self.dims:
            if size < 0:
                raise InputError(
                    f"dim {dim!r} of tensor {self.name!r} has size {size}", "give 0 or more"
                )

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(f'{dim}={n}' for dim, n in self.dims)}]"

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dims."""
        return tuple(size for _, size in self.dims)

    @property
    def spec(self) -> Spec:
        """The tensor without its names."""
        return Spec(self.dtype, self.shape)


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that the model learns, with further names if its weight is tied."""

    tensor: Tensor
    also: tuple[str, ...] = ()
    """Other names of the same weight in the module; the first name is the tensor's own."""
    trainable: bool = True
    stacked: bool = False
    """Whether the module has the first two dims as one: the gates of a recurrent layer."""

    @property
    def stored(self) -> Spec:
        """As the module has it."""
        spec = self.tensor.spec
        if not self.stacked:
            return spec
        gates, rows, *rest = spec.shape
        return Spec(spec.dtype, (gates * rows, *rest))


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """An operator without names: what its shapes, counts, prices and splits depend on.

    Equal calls cost the same, so everything that is derived of an operator is derived once for
    each distinct call.
    """

    kind: str
    inputs: tuple[Spec | None, ...]
    outputs: tuple[Spec, ...]
    attributes: Attributes = ()

    def __getitem__(self, key: str) -> Value:
        return dict(self.attributes)[key]

    def get(self, key: str, default: Value = None) -> Value:
        """An attribute, or the default of ATen's schema where it is not recorded."""
        return dict(self.attributes).get(key, default)

    @property
    def bytes(self) -> Bytes:
        """Of all inputs and outputs, each read or written once."""
        return Bytes(sum(spec.bytes for spec in (*self.inputs, *self.outputs) if spec is not None))


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One application of a kind to named tensors."""

    name: str
    kind: str
    inputs: tuple[str | None, ...]
    outputs: tuple[Tensor, ...]
    attributes: Attributes = ()
    layer: str = ""
    """Path of the module it came from; empty for the model's own forward."""

    def __post_init__(self) -> None:
        for name in filter(None, (self.name, self.kind, self.layer, *self.inputs)):
            _refuse_bad_name(name, f"operator {self.name!r}")
        keys = [key for key, _ in self.attributes]
        if keys != sorted(set(keys)):
            raise InputError(
                f"the attributes of operator {self.name!r} are {keys}", "sort them, each once"
            )
        for key, value in self.attributes:
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(
                    f"attribute {key!r} of operator {self.name!r} is {value}",
                    f"write it as text, {str(value)!r}",
                )


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the model's Python code has seen when it was captured, in a branch or as a
    size: the operators of the graph are those of the model wherever it is the same.
    """

    tensor: str
    """A scalar that enters the graph, or that one of its `checks` makes."""
    value: bool | int | float
    line: str
    """Where the model reads it: FILE:LINE."""

    def __post_init__(self) -> None:
        _refuse_bad_name(self.tensor, "a guard")
        if not self.line or self.line != " ".join(self.line.split()):
            raise InputError(f"a guard stands at {self.line!r}", "give a line of the model")


@printed
class OperatorGraph(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model on one device: operators in an order in which they can run.

    The text form is that of `meshwright.graph.text`, the JSON form that of `msgspec`.
    """

    name: str
    inputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...] = ()
    buffers: tuple[Tensor, ...] = ()
    """State that is not learnt, and constants."""
    operators: tuple[Operator, ...] = ()
    outputs: tuple[str, ...] = ()
    loss: str | None = None
    """The scalar that training lessens."""
    checks: tuple[Operator, ...] = ()
    """What makes the guards' tensors, of inputs and buffers alone; names of their own."""
    guards: tuple[Guard, ...] = ()
    """What a step's inputs have to fulfil; each is judged by the whole batch, before the step."""
    traced: Traced | None = None
    """Of which module it is a trace; None if nobody said. The text form leaves it out."""

    def __post_init__(self) -> None:
        if not self.name or self.name != " ".join(self.name.split()):
            raise InputError(f"the graph is called {self.name!r}", "give it a name of one line")

    def __str__(self) -> str:
        from meshwright.graph.text import format_graph

        return format_graph(self)

    def sheet(self) -> Sheet:
        """How large it is, and of which kinds of operators it is made."""
        kinds = Counter(operator.kind for operator in self.operators)
        return Sheet(
            f"graph {self.name}",
            (
                ("operators", str(len(self.operators))),
                ("parameters", f"{self.parameter_count:,}"),
                ("inputs", ", ".join(map(str, self.inputs))),
                ("loss", self.loss or "none"),
            ),
            ("kind", "operators"),
            tuple((kind, str(count)) for kind, count in kinds.most_common()),
        )

    def definitions(self) -> Iterator[Tensor]:
        """Every tensor where it is born: inputs, parameters, buffers, then operators' outputs."""
        yield from self.inputs
        yield from (parameter.tensor for parameter in self.parameters)
        yield from self.buffers
        for operator in self.operators:
            yield from operator.outputs

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by its name."""
        return {tensor.name: tensor for tensor in self.definitions()}

    @cached_property
    def producers(self) -> Mapping[str, Operator]:
        """The operator that computes a tensor, by the tensor's name."""
        return {tensor.name: op for op in self.operators for tensor in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """The operators that read a tensor, by the tensor's name."""
        readers: dict[str, list[Operator]] = {tensor.name: [] for tensor in self.definitions()}
        for operator in self.operators:
            for name in dict.fromkeys(filter(None, operator.inputs)):
                readers[name].append(operator)
        return {name: tuple(operators) for name, operators in readers.items()}

    @cached_property
    def named(self) -> Mapping[str, Operator]:
        """Every operator by its name."""
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def returned(self) -> frozenset[str]:
        """Tensors that the model returns, loss or not: a call without targets is for them."""
        structure = None if self.traced is None else self.traced.returned
        return frozenset(() if structure is None else (tensor for _, tensor in structure.tensors()))

    @property
    def parameter_count(self) -> int:
        """How many numbers the model learns; a tied weight counts once."""
        return sum(p.tensor.spec.elements for p in self.parameters if p.trainable)

    def call(self, operator: Operator) -> Call:
        """An operator of this graph without its names."""
        return Call(
            kind=operator.kind,
            inputs=tuple(None if name is None else self.specs[name] for name in operator.inputs),
            outputs=tuple(self.specs[tensor.name] for tensor in operator.outputs),
            attributes=operator.attributes,
        )

    @cached_property
    def stored(self) -> Mapping[str, Spec]:
        """Every parameter and buffer as the module has it, by its name."""
        specs = {parameter.tensor.name: parameter.stored for parameter in self.parameters}
        return specs | {buffer.name: buffer.spec for buffer in self.buffers}

    @cached_property
    def specs(self) -> Mapping[str, Spec]:
        """Every tensor without its names, by its name."""
        return {name: tensor.spec for name, tensor in self.tensors.items()}


def _refuse_bad_name(name: str, where: str) -> None:
    if NAME.fullmatch(name) is None:
        raise InputError(
            f"{where} uses the name {name!r}",
            'leave out spaces, the signs , : ; = @ ( ) [ ] { } " and a dash in front',
        )
