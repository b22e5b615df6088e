"""Translation between operator kinds of a graph and operators of the rule language.

Enters: a `Call`. Leaves: the operator that rules know it by, or None for what no rule speaks of.
And back: an operator with its settings and the specs of its operands gives a kind, its attributes
and outputs. A kind that is defined under its own name with its parameters as attributes needs no
entry here, nor does a user's operator, which carries its definition. A reading that the law of the
operator refuses (`types.infer`) is none; of several spellings of one thing (chunk, split, view as
flatten) one is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

from meshwright.graph.families import BUILT_IN, family_of
from meshwright.graph.family import DEFINITION, PYTHON_KERNEL, ShapeError
from meshwright.graph.notation import Definition, MisfitError
from meshwright.graph.operator_graph import Attributes, Call, Spec, Value
from meshwright.rewrite.graphs.readings import (
    DEFAULT_EPS,
    KEYS,
    READERS,
    OperatorReading,
    Settings,
    normal,
)
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Setting
from meshwright.rewrite.language.types import FRONT, PARALLEL, infer, plain

_TABLES = ("embedding", "embedding_bag")
"""Operators that read indices before the table, where their kinds read them after it."""

Given = Mapping[str, Value]
Writer = Callable[[Settings, Sequence[Spec]], tuple[str, Given]]


class Writing(NamedTuple):
    """A kind with its attributes; its inputs are the operands in this order."""

    kind: str
    attributes: Attributes
    order: tuple[int, ...]
    outputs: tuple[Spec, ...]


def read(call: Call, known: Mapping[str, Definition] = DEFINITIONS) -> OperatorReading | None:
    """The operator that a call is, if rules can speak of it.

    >>> x, w = Spec("float32", (4, 8)), Spec("float32", (6, 8))
    >>> read(Call(kind="linear", inputs=(x, w), outputs=(Spec("float32", (4, 6)),)))
    OperatorReading(operator='linear', settings=(), order=(0, 1))
    """
    inputs = [spec for spec in call.inputs if spec is not None]
    if len(inputs) != len(call.inputs) or not inputs:
        return None
    try:
        reading = READERS[call.kind](call) if call.kind in READERS else _by_name(call, known)
        if reading is None or reading.operator in PARALLEL:
            return reading
        operands = [plain(inputs[number].shape) for number in reading.order]
        types = infer(reading.operator, reading.settings, operands, known)
    except (ShapeError, MisfitError):
        return None
    sizes = tuple(tuple(axis.size for axis in type_[FRONT:]) for type_ in types)
    return reading if sizes == tuple(spec.shape for spec in call.outputs) else None


def write(
    operator: str,
    settings: Settings,
    operands: Sequence[Spec],
    known: Mapping[str, Definition] = DEFINITIONS,
) -> Writing:
    """The kind that computes an operator; a `MisfitError` if it cannot take its operands.

    >>> write("partition", (-1, 2), [Spec("float32", (4, 8))]).attributes
    (('axis', 1), ('degree', 2))
    """
    settings = normal(operator, settings, len(operands[0].shape))
    kind, parameters = _writer(operator, known)(settings, operands)
    order = (1, 0) if operator in _TABLES else tuple(range(len(operands)))
    attributes: Attributes = tuple(sorted(parameters.items()))
    inputs = tuple(operands[number] for number in order)
    unfinished = Call(kind=kind, inputs=inputs, outputs=(), attributes=attributes)
    try:
        outputs = family_of(unfinished).outputs(unfinished)
    except ShapeError as error:
        raise MisfitError(f"{kind}: {error}") from error
    return Writing(kind, attributes, order, outputs)


def _by_name(call: Call, known: Mapping[str, Definition]) -> OperatorReading | None:
    """A kind that is defined under its own name, or that carries its definition."""
    attributes = {key: value for key, value in call.attributes if key != PYTHON_KERNEL}
    line = attributes.pop(DEFINITION, None)
    if line is None:
        defined = known.get(call.kind)
    else:
        defined = next(
            (definition for definition in known.values() if definition.line == line), None
        )
    if defined is None or set(attributes) != set(defined.parameters):
        return None
    settings = tuple(attributes[name] for name in defined.parameters)
    return OperatorReading(defined.name, settings, tuple(range(len(call.inputs))))


def _writer(operator: str, known: Mapping[str, Definition]) -> Writer:
    if operator in _WRITERS:
        return _WRITERS[operator]
    keys = KEYS.get(operator) or (known[operator].parameters if operator in known else None)
    if keys is None:
        raise MisfitError(f"no kind computes {operator}")
    if operator in BUILT_IN or operator not in known:
        return lambda settings, operands: (operator, _named(keys, settings))
    kind, notes = carried(known[operator])
    return lambda settings, operands: (kind, {**_named(keys, settings), **notes})


def carried(definition: Definition) -> tuple[str, Given]:
    r"""The kind of a user's operator, and the attributes that tell of it wherever it goes.

    >>> from meshwright.graph.notation import parse_definitions
    >>> text = "twice(x)[i..] = 2 * x[i..]\nkernel = mylib::twice"
    >>> carried(parse_definitions(text)["twice"])
    ('mylib.twice', {'definition': 'twice(x)[i..] = 2 * x[i..]'})
    """
    library, colons, name = definition.kernel.partition("::")
    if colons:
        return f"{library}.{name}".removeprefix("aten."), {DEFINITION: definition.line}
    return definition.name, {
        DEFINITION: definition.line,
        **({PYTHON_KERNEL: definition.kernel} if definition.kernel else {}),
    }


def _named(keys: tuple[str, ...], settings: Settings) -> Given:
    if len(keys) != len(settings):
        raise MisfitError(f"{len(settings)} settings are given for {', '.join(keys)}")
    return cast("Given", dict(zip(keys, settings, strict=True)))


def _whole(value: Setting) -> int:
    if not isinstance(value, int):
        raise MisfitError(f"{value} is no whole number")
    return value


def _as(kind: str) -> Writer:
    return lambda settings, operands: (kind, {})


def _along_dim(kind: str) -> Writer:
    return lambda settings, operands: (kind, _unless_default(dim=(settings[0], 0)))


def _unless_default(**values: tuple[Setting, Value]) -> Given:
    said = {key: value for key, (value, default) in values.items() if value != default}
    return cast("Given", said)


def _convolution(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    numbers = tuple(map(_whole, settings))
    stride, padding = numbers[:2], numbers[2:]
    return "conv2d", _unless_default(stride=(stride, (1, 1)), padding=(padding, (0, 0)))


def _norm(kind: str) -> Writer:
    def write_norm(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
        default = DEFAULT_EPS if kind == "layer_norm" else None
        attributes = {"normalized_shape": operands[0].shape[-1:]}
        return kind, attributes | dict(_unless_default(eps=(settings[0], default)))

    return write_norm


def _attention(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    if not isinstance(settings[0], tuple):
        raise MisfitError(f"attention is set to {settings[0]}, not to a mask and a scale")
    causal, scale = settings[0]
    usual = 1 / math.sqrt(operands[0].shape[-1])
    return "scaled_dot_product_attention", _unless_default(
        is_causal=(causal, False), scale=(scale, usual)
    )


def _split(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    dim, *sizes = (_whole(value) for value in settings)
    if not 0 <= dim < len(operands[0].shape):
        raise MisfitError(f"there is no dim {dim} among {len(operands[0].shape)}")
    rest = operands[0].shape[dim] - sum(sizes)
    parts = {"split_sizes": (*sizes, rest)}
    return "split_with_sizes", parts | dict(_unless_default(dim=(dim, 0)))


def _transpose(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    one, other = (_whole(value) for value in settings)
    return "transpose", {"dim0": one, "dim1": other}


def _flatten(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    dim = _whole(settings[0])
    return "flatten", dict(_unless_default(start_dim=(dim, 0))) | {"end_dim": dim + 1}


def _unflatten(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    dim, outer = (_whole(value) for value in settings)
    return "unflatten", {"dim": dim, "sizes": (outer, operands[0].shape[dim] // outer)}


def _sum(dim: int) -> Writer:
    return lambda settings, operands: ("sum", {"dim": (dim % len(operands[0].shape),)})


def _softmax(settings: Settings, operands: Sequence[Spec]) -> tuple[str, Given]:
    return "softmax", {"dim": len(operands[0].shape) - 1}


_WRITERS: Mapping[str, Writer] = {
    "bias": _as("add"),
    "scale": _as("mul"),
    "linear_bias": _as("linear"),
    "conv2d": _convolution,
    "conv2d_bias": _convolution,
    "experts": _as("_grouped_mm"),
    "sum_last": _sum(-1),
    "sum_first": _sum(0),
    "sum_rows": _sum(-2),
    "softmax": _softmax,
    "rms_norm": _norm("rms_norm"),
    "layer_norm": _norm("layer_norm"),
    "attention": _attention,
    "concat": _along_dim("cat"),
    "split": _split,
    "transpose": _transpose,
    "flatten": _flatten,
    "unflatten": _unflatten,
}
