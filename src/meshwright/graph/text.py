"""Text format of operator graphs: printer and parser, a line for each tensor or operator.

    graph tiny
    input x: float32[batch=4, width=8]
    parameter layer.weight (also head.weight): float32[out=8, in=8]
    frozen scale: float32[]
    buffer mask: bool[width=8]
    operator layer: h: float32[batch=4, width=8] = linear(x, layer.weight) @ layer
    operator pick: m: float32[batch=4], i: int64[batch=4] = max(h) {dim=1}
    output m
    loss l
    check all: a: bool[] = all(mask)
    guard a == true at model.py:12

Enters: a graph or its text. Leaves: the other. An absent input is written as `-`; attributes are
JSON. Whether the graph makes sense is not known here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from meshwright.base.errors import InputError, nearest
from meshwright.graph.operator_graph import (
    NAME,
    Attributes,
    Guard,
    Operator,
    OperatorGraph,
    Parameter,
    Tensor,
    Value,
)

_N = NAME.pattern
_TENSOR = re.compile(rf"({_N}): (\w+)\[([^\]]*)\]")
_PARAMETER = re.compile(rf"({_N})(?: \(also ([^)]*)\))?( \(stacked\))?: (\w+)\[([^\]]*)\]")
_OPERATOR = re.compile(
    rf"(?P<name>{_N}): (?P<outputs>.*?) ?= (?P<kind>{_N})\((?P<inputs>[^)]*)\)"
    rf"(?: \{{(?P<attributes>.*)\}})?(?: @ (?P<layer>{_N}))?"
)
_GUARD = re.compile(rf"({_N}) == (\S+) at (.+)")
_WORDS = (
    *("input", "parameter", "frozen", "buffer", "operator", "output", "loss", "check", "guard"),
)


def format_graph(graph: OperatorGraph) -> str:
    """A graph as text."""
    return "\n".join(_lines(graph)) + "\n"


def _lines(graph: OperatorGraph) -> Iterator[str]:
    yield f"graph {graph.name}"
    for tensor in graph.inputs:
        yield f"input {tensor}"
    for parameter in graph.parameters:
        yield _format_parameter(parameter)
    for tensor in graph.buffers:
        yield f"buffer {tensor}"
    for operator in graph.operators:
        yield f"operator {_format_operator(operator)}"
    for name in graph.outputs:
        yield f"output {name}"
    if graph.loss is not None:
        yield f"loss {graph.loss}"
    for operator in graph.checks:
        yield f"check {_format_operator(operator)}"
    for guard in graph.guards:
        yield f"guard {guard.tensor} == {json.dumps(guard.value)} at {guard.line}"


def _format_parameter(parameter: Parameter) -> str:
    word = "parameter" if parameter.trainable else "frozen"
    name, _, rest = str(parameter.tensor).partition(":")
    also = f" (also {', '.join(parameter.also)})" if parameter.also else ""
    stacked = " (stacked)" if parameter.stacked else ""
    return f"{word} {name}{also}{stacked}:{rest}"


def _format_operator(operator: Operator) -> str:
    outputs = ", ".join(map(str, operator.outputs))
    inputs = ", ".join(name or "-" for name in operator.inputs)
    line = f"{operator.name}: {outputs} = {operator.kind}({inputs})"
    line += format_attributes(operator.attributes)
    return line + (f" @ {operator.layer}" if operator.layer else "")


def format_attributes(attributes: Attributes) -> str:
    """Attributes behind an operator: nothing, or a space and all of them in braces.

    >>> format_attributes((("dim", 1), ("keepdim", True)))
    ' {dim=1, keepdim=true}'
    """
    text = ", ".join(f"{key}={json.dumps(value)}" for key, value in attributes)
    return f" {{{text}}}" if text else ""


def parse_graph(text: str) -> OperatorGraph:
    """A graph from its text form.

    >>> graph = parse_graph('''graph tiny
    ... input x: float32[batch=4, width=8]
    ... operator double: y: float32[batch=4, width=8] = mul(x) {other=2}
    ... output y''')
    >>> parse_graph(str(graph)) == graph
    True
    """
    title, *lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    word, _, name = title.partition(" ")
    if word != "graph" or not name:
        raise InputError(f"the text begins with {title!r}", "begin with 'graph NAME'")
    by_word: dict[str, list[str]] = {word: [] for word in _WORDS}
    parameters: list[Parameter] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word not in by_word:
            raise InputError(f"{line!r} begins with {word!r}", nearest(word, _WORDS))
        if word in ("parameter", "frozen"):
            parameters.append(_parse_parameter(rest, trainable=word == "parameter"))
        by_word[word].append(rest)
    if len(by_word["loss"]) > 1:
        raise InputError(f"the graph has {len(by_word['loss'])} losses", "give one")
    return OperatorGraph(
        name=name,
        inputs=tuple(map(_parse_tensor, by_word["input"])),
        parameters=tuple(parameters),
        buffers=tuple(map(_parse_tensor, by_word["buffer"])),
        operators=tuple(map(_parse_operator, by_word["operator"])),
        outputs=tuple(by_word["output"]),
        loss=by_word["loss"][0] if by_word["loss"] else None,
        checks=tuple(map(_parse_operator, by_word["check"])),
        guards=tuple(map(_parse_guard, by_word["guard"])),
    )


def _parse_tensor(text: str) -> Tensor:
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not a tensor", "write it as 'x: float32[batch=4, width=8]'")
    name, dtype, dims = match.groups()
    return Tensor(name=name, dtype=dtype, dims=_parse_dims(dims))


def _parse_dims(text: str) -> tuple[tuple[str, int], ...]:
    dims = []
    for part in filter(None, text.split(", ")):
        name, sign, size = part.partition("=")
        if not sign or not size.isdecimal():
            raise InputError(f"{part!r} is not a dim", "write it as 'batch=4'")
        dims.append((name, int(size)))
    return tuple(dims)


def _parse_parameter(text: str, *, trainable: bool) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text!r} is not a parameter",
            "write it as 'a.weight (also b.weight): float32[out=4, in=8]'",
        )
    name, also, stacked, dtype, dims = match.groups()
    tensor = Tensor(name=name, dtype=dtype, dims=_parse_dims(dims))
    others = tuple(filter(None, (also or "").split(", ")))
    return Parameter(tensor=tensor, also=others, trainable=trainable, stacked=stacked is not None)


def _parse_operator(text: str) -> Operator:
    match = _OPERATOR.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text!r} is not an operator",
            "write it as 'name: y: float32[batch=4] = kind(x, w) {key=1} @ layer'",
        )
    outputs = re.split(r"(?<=\]), ", match["outputs"]) if match["outputs"] else []
    return Operator(
        name=match["name"],
        kind=match["kind"],
        inputs=tuple(
            None if name == "-" else name for name in filter(None, match["inputs"].split(", "))
        ),
        outputs=tuple(map(_parse_tensor, outputs)),
        attributes=parse_attributes(match["attributes"] or ""),
        layer=match["layer"] or "",
    )


def _parse_guard(text: str) -> Guard:
    match = _GUARD.fullmatch(text)
    try:
        value = None if match is None else json.loads(match[2])
    except json.JSONDecodeError:
        value = None
    if match is None or not isinstance(value, bool | int | float):
        raise InputError(f"{text!r} is not a guard", "write it as 'x == true at model.py:12'")
    return Guard(tensor=match[1], value=value, line=match[3])


def parse_attributes(text: str) -> Attributes:
    """Keys and JSON values; a value may hold commas, so the JSON parser says where it ends."""
    decoder, pairs, at = json.JSONDecoder(), [], 0
    while at < len(text):
        key, sign, rest = text[at:].partition("=")
        try:
            value, length = decoder.raw_decode(rest)
        except json.JSONDecodeError as error:
            raise InputError(
                f"attribute {text[at:]!r} has no JSON value", "write it as 'key=[1, 2]'"
            ) from error
        pairs.append((key, _value(value)))
        at += len(key) + len(sign) + length + len(", ")
    return tuple(pairs)


def _value(value: object) -> Value:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(item, int) for item in value):
        return tuple(value)
    raise InputError(
        f"attribute value {value!r} is not known",
        "write a number, a text or a list of whole numbers",
    )
