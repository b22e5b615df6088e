"""ATen schemas: calls of ATen to operators of the graph and back.

Enters: an overload with its arguments, or a kind with tensors and attributes. Leaves: kind,
tensors and attributes as `graph.model` defines them, or the overload and its arguments. There is
no list of operators here: what PyTorch can call, this can describe and call again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

import msgspec
import torch
from torch._ops import OpOverload

from meshwright.base.errors import InputError
from meshwright.graph.operator_graph import Attributes, Value

Operand = TypeVar("Operand")

WITHOUT_MEANING = {
    *("cudnn_enable", "cudnn_enabled", "device", "generator", "layout", "memory_format"),
    *("non_blocking", "pin_memory", "sparse", "sparse_grad"),
}
"""Arguments that say where and how, not what; gradients of a graph are never sparse."""

UNTOLD = {"cudnn_enable": True, "cudnn_enabled": True, "sparse": False, "sparse_grad": False}
"""What those of them are given that an overload cannot do without."""

BARE = ("aten", "meshwright")
"""Namespaces that a kind does not repeat."""

SYNONYMS = {
    "aten::__and__": "bitwise_and",
    "aten::__or__": "bitwise_or",
    "aten::__xor__": "bitwise_xor",
    "aten::_to_copy": "to",
    "aten::max.other": "maximum",
    "aten::min.other": "minimum",
    "aten::normal_": "normal_functional",
    "aten::_adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "aten::_adaptive_avg_pool3d": "adaptive_avg_pool3d",
    "aten::_cdist_forward": "cdist",
    "aten::_conj_physical": "conj_physical",
    "aten::det": "linalg_det",
    "aten::inverse": "linalg_inv",
    "aten::slogdet": "linalg_slogdet",
    "aten::_unsafe_index": "index",
    "aten::_unsafe_index_put": "index_put",
    "transformers::grouped_mm_fallback": "_grouped_mm",
}
"""Overloads that compute what the kind of another name computes."""

RECORDED = {("bernoulli", "p")}
"""Arguments that are recorded even where they have their default: `bernoulli_(0.5)` writes over its
operand, while `bernoulli` reads chances from it."""

_STATES = 2
"""Tensors in `hx`, the states of an LSTM, the one list that optional tensors or a list follow."""


class Described(msgspec.Struct, Generic[Operand], frozen=True):
    """A call in the words of the graph, over whatever stands for its tensors."""

    kind: str
    inputs: tuple[Operand | None, ...]
    attributes: Attributes


def kind_of(overload: OpOverload) -> str:
    """The name without overload and in-place underscore; of another library, with its namespace.

    >>> kind_of(torch.ops.aten.add_.Tensor), kind_of(torch.ops.prims.sin.default)
    ('add', 'prims.sin')
    """
    full: str = overload._schema.name
    synonym = SYNONYMS.get(full) or SYNONYMS.get(f"{full}.{overload._overloadname}")
    if synonym is not None:
        return synonym
    namespace, _, name = full.partition("::")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if namespace in BARE else f"{namespace}.{name}"


def described(
    overload: OpOverload,
    positional: Sequence[object],
    named: Mapping[str, object],
    is_tensor: Callable[[object], bool],
) -> Described[Any]:
    """A call of an overload in the words of the graph.

    >>> add = torch.ops.aten.add.Tensor
    >>> described(add, ("x", "y"), {"alpha": 2}, lambda value: isinstance(value, str))
    Described(kind='add', inputs=('x', 'y'), attributes=(('alpha', 2),))
    """
    arguments = overload._schema.arguments
    values = dict(zip((argument.name for argument in arguments), positional, strict=False))
    values |= named
    inputs: list[object | None] = []
    attributes: dict[str, Value] = {}
    for argument in arguments:
        if argument.is_out:
            continue
        value = values.get(argument.name, argument.default_value)
        items = value if isinstance(value, list | tuple) else (value,)
        if _takes_tensors(argument) and all(item is None or is_tensor(item) for item in items):
            inputs.extend(items)
            continue
        recorded = (kind_of(overload), argument.name) in RECORDED
        if argument.name in WITHOUT_MEANING or (_is_default(argument, value) and not recorded):
            continue
        attributes[argument.name] = attribute(value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    return Described(kind_of(overload), tuple(inputs), tuple(sorted(attributes.items())))


def attribute(value: object) -> Value:
    """An argument as the graph records it.

    >>> attribute(torch.float32), attribute([1, 2]), attribute(-math.inf), attribute([0.5, 2.0])
    ('float32', (1, 2), '-inf', '0.5 2.0')
    """
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case bool() | int() | float() | str() | None:
            return value
        case torch.dtype():
            return str(value).removeprefix("torch.")
        case list() | tuple() if all(isinstance(item, int) for item in value):
            return tuple(int(item) for item in value)
        case list() | tuple():
            return " ".join(map(str, value))
        case _:
            return str(value)


def call(kind: str, inputs: Sequence[torch.Tensor | None], attributes: Attributes) -> object:
    """What PyTorch gives for a kind.

    >>> call("add", (torch.ones(1), torch.ones(1)), (("alpha", 2),))
    tensor([3.])
    """
    for overload in overloads(kind):
        bound = _bound(overload, inputs, dict(attributes))
        if bound is not None:
            return overload(**bound)
    raise InputError(
        f"PyTorch has no operator {kind!r} for {len(inputs)} tensors and "
        f"{[key for key, _ in attributes]}",
        "import the library that registers it, or capture the model with this PyTorch again",
    )


class _Place(int):
    """Where among the tensors of a call one is."""


def prepared(
    kind: str, present: Sequence[bool], attributes: Attributes
) -> Callable[[Sequence[torch.Tensor | None]], object]:
    """What PyTorch runs for a kind, its overload found once; `present` tells which tensors are.

    >>> prepared("add", (True, True), (("alpha", 2),))((torch.ones(1), torch.ones(1)))
    tensor([3.])
    """
    places: Any = [_Place(i) if is_tensor else None for i, is_tensor in enumerate(present)]
    for overload in overloads(kind):
        bound = _bound(overload, places, dict(attributes))
        if bound is not None:
            return _filled(overload, bound)
    return lambda inputs: call(kind, inputs, attributes)


def _filled(
    overload: OpOverload, bound: Mapping[str, object]
) -> Callable[[Sequence[torch.Tensor | None]], object]:
    """A call with tensors in the places of their numbers, by position: names cost more to match."""
    arguments = overload._schema.arguments
    last = max((n for n, argument in enumerate(arguments) if argument.name in bound), default=-1)
    row = [bound.get(argument.name, argument.default_value) for argument in arguments[: last + 1]]
    first = next(
        (n for n, argument in enumerate(arguments[: last + 1]) if argument.kwarg_only), len(row)
    )
    named = {
        argument.name: row[first + n] for n, argument in enumerate(arguments[first : last + 1])
    }

    alone = [(n, value) for n, value in enumerate(row) if isinstance(value, _Place)]
    nested = any(
        isinstance(value, list) and any(isinstance(i, _Place) for i in value) for value in row
    )
    if not nested and all(n < first for n, _ in alone):
        return _swift(overload, row[:first], alone, named)

    def run(inputs: Sequence[torch.Tensor | None]) -> object:
        positional = [_placed(value, inputs) for value in row[:first]]
        return overload(
            *positional, **{key: _placed(value, inputs) for key, value in named.items()}
        )

    return run


def _swift(
    overload: OpOverload,
    row: Sequence[object],
    places: Sequence[tuple[int, int]],
    named: Mapping[str, object],
) -> Callable[[Sequence[torch.Tensor | None]], object]:
    """The same where tensors are arguments by themselves: small operators wait for Python."""

    def run(inputs: Sequence[torch.Tensor | None]) -> object:
        positional = [*row]
        for number, place in places:
            positional[number] = inputs[place]
        return overload(*positional, **named)

    return run


def _placed(value: object, inputs: Sequence[torch.Tensor | None]) -> object:
    if isinstance(value, _Place):
        return inputs[value]
    if isinstance(value, list):
        return [_placed(item, inputs) for item in value]
    return value


def overloads(kind: str) -> tuple[OpOverload, ...]:
    """All overloads of a kind that give new tensors, and that take dims by number.

    Those of a library are looked up each time: a file that is run again registers its operators
    anew, and PyTorch frees what the overloads of before refer to.
    """
    library, _, name = kind.rpartition(".")
    return _overloads(library, name) if library else _bare_overloads(name)


@cache
def _bare_overloads(name: str) -> tuple[OpOverload, ...]:
    return _overloads("", name)


def _overloads(library: str, name: str) -> tuple[OpOverload, ...]:
    candidates: list[OpOverload] = []
    for namespace in (library,) if library else BARE:
        try:
            packet = getattr(getattr(torch.ops, namespace), name)
        except AttributeError:
            continue
        candidates += [getattr(packet, variant) for variant in packet.overloads()]
    return tuple(o for o in candidates if not _writes(o) and "Dimname" not in str(o._schema))


def _writes(overload: OpOverload) -> bool:
    aliases = (argument.alias_info for argument in overload._schema.arguments)
    return any(alias is not None and alias.is_write for alias in aliases)


def _takes_tensors(argument: torch.Argument) -> bool:
    return "Tensor" in str(argument.type)


def _is_default(argument: torch.Argument, value: object) -> bool:
    if not argument.has_default_value():
        return False
    default = argument.default_value
    return list(value) == default if isinstance(value, list | tuple) else value == default


def _bound(
    overload: OpOverload, inputs: Sequence[torch.Tensor | None], attributes: Mapping[str, Value]
) -> dict[str, object] | None:
    """The arguments of an overload, or None if these inputs and attributes are not for it."""
    bound: dict[str, object] = {}
    left, unused = list(inputs), dict(attributes)
    arguments = overload._schema.arguments
    for index, argument in enumerate(arguments):
        if argument.name in attributes:
            value = unused.pop(argument.name)
            if _takes_tensors(argument) or not _fits(argument, value):
                return None
            bound[argument.name] = _restored(argument, value)
        elif _is_list(argument):
            later = sum(_takes_tensors(other) for other in arguments[index + 1 :])
            count = _STATES if argument.name == "hx" else len(left) - later
            bound[argument.name], left = left[:count], left[count:]
        elif _takes_tensors(argument):
            bound[argument.name] = left.pop(0) if left else None
            if bound[argument.name] is None and not _optional(argument):
                return None
        elif not argument.has_default_value():
            if argument.name not in UNTOLD:
                return None
            bound[argument.name] = UNTOLD[argument.name]
    return None if left or unused else bound


def _is_list(argument: torch.Argument) -> bool:
    return _takes_tensors(argument) and "List" in str(argument.type)


def _optional(argument: torch.Argument) -> bool:
    return str(argument.type).startswith("Optional") or argument.has_default_value()


def _fits(argument: torch.Argument, value: Value) -> bool:
    """Whether an argument is of the type of a value; overloads share names, not types.

    `split` takes a number or a list by one name, `conv2d` a list or the word "same".
    """
    declared = f"{argument.type} {argument.real_type}"
    match value:
        case tuple():
            return "List[" in declared
        case str():
            words = "str" in declared or "ScalarType" in declared
            return words or (("float" in declared or "number" in declared) and _is_number(value))
        case _:
            return True


def _is_number(text: str) -> bool:
    """Whether a text is one number or several; `linalg_matrix_norm` takes numbers and words."""
    try:
        return bool([complex(word) for word in text.split()])
    except ValueError:
        return False


def _restored(argument: torch.Argument, value: Value) -> object:
    """An argument as PyTorch takes it; the inverse of `attribute`."""
    declared = str(argument.type)
    if not isinstance(value, str) or "str" in declared:
        return value
    if "ScalarType" in str(argument.real_type):
        return getattr(torch, value)
    if "List[float]" in declared:
        return [float(item) for item in value.split()]
    return complex(value) if value.endswith("j") else float(value)


def tensors_in(value: object) -> Iterator[Any]:
    """The tensors of what an operator gave, in order, lists laid out in place."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif value is not None:
        yield value
