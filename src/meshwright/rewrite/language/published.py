"""The published rules of Unity, read into our language. Enters: the JSON form. Leaves: rules.

The file says nothing of what its dims mean; this reading was derived from the rules themselves
(docs/rules.md). Tensors have three dims: 0 is the replica dim, ours `copies`; 1 is the sample dim
of data and the output channel of a weight; 2 the channel of data and the input channel of a weight.
A split cuts where the concat before it joined, anywhere if there was none. External inputs -1, -2
and -3 are called a, b, c and -4, -5, -6 u, v, w; one that only the target reads is free.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.rewrite.language.terms import (
    COPIES,
    Attribute,
    Condition,
    Plain,
    Rank,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
    variables,
)

_DIMS: tuple[Attribute, ...] = (COPIES, 0, 1)
_INPUTS = ("a", "b", "c", "u", "v", "w")
_PLAIN: Mapping[str, str] = {"OP_RELU": "relu", "OP_EW_ADD": "add", "OP_EW_MUL": "mul"}
_PARALLEL: Mapping[str, str] = {
    "OP_PARTITION": "partition", "OP_COMBINE": "combine",
    "OP_REPLICATE": "replicate", "OP_REDUCE": "reduce",
}  # fmt: skip
_LINEAR: Mapping[int, str] = {0: "linear", 2: "linear_relu"}
"""By the number of the activation."""


class _Input(msgspec.Struct):
    opId: int  # noqa: N815  names of the published form
    tsId: int  # noqa: N815


class _Parameter(msgspec.Struct):
    key: str
    value: int


class _Operator(msgspec.Struct):
    type: str
    input: tuple[_Input, ...]
    para: tuple[_Parameter, ...]


class _Output(msgspec.Struct):
    srcOpId: int  # noqa: N815
    srcTsId: int  # noqa: N815
    dstOpId: int  # noqa: N815
    dstTsId: int  # noqa: N815


class _Rule(msgspec.Struct):
    name: str
    srcOp: tuple[_Operator, ...]  # noqa: N815
    dstOp: tuple[_Operator, ...]  # noqa: N815
    mappedOutput: tuple[_Output, ...]  # noqa: N815


class _Collection(msgspec.Struct):
    rule: tuple[_Rule, ...]


def is_published_form(text: str) -> bool:
    """Whether a file looks like the published form, not like ours."""
    return text.lstrip().startswith("{")


def parse_published(text: str) -> tuple[Rule, ...]:
    """Every rule of a published collection."""
    try:
        collection = msgspec.json.decode(text, type=_Collection)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(
            f"the collection of rules cannot be read ({error})",
            'give {"rule": [...]} with name, srcOp, dstOp and mappedOutput in each',
        ) from None
    return tuple(map(_rule, collection.rule))


def _rule(rule: _Rule) -> Rule:
    try:
        source, target = _Side(rule.srcOp), _Side(rule.dstOp)
        left = tuple(source.output(m.srcOpId, m.srcTsId) for m in rule.mappedOutput)
        right = tuple(target.output(m.dstOpId, m.dstTsId) for m in rule.mappedOutput)
    except InputError as error:
        raise error.at(f"rule {rule.name!r}") from None
    bound = dict.fromkeys(variables(left))
    everywhere = bound | dict.fromkeys(variables(right))
    ranks = [Condition(Rank(v.name), "=", 2) for v in everywhere]
    return Rule(
        name=rule.name,
        source=left,
        target=right,
        conditions=(*ranks, *source.conditions, *target.conditions),
        free=tuple(v.name for v in everywhere if v not in bound),
    )


class _Side:
    """The operators of one side as terms."""

    def __init__(self, operators: tuple[_Operator, ...]) -> None:
        self.conditions: list[Condition] = []
        self._splits = 0
        self._terms: list[Term] = []
        for operator in operators:
            self._terms.append(self._term(operator))

    def output(self, operator: int, output: int) -> Tensor:
        """An output of an operator, or an external input."""
        if operator < 0:
            if -operator > len(_INPUTS):
                raise InputError(
                    f"there is no external input {operator}", f"use -1 to {-len(_INPUTS)}"
                )
            if output:
                raise InputError(f"external input {operator} has no output {output}", "give 0")
            return Variable(_INPUTS[-operator - 1])
        if operator >= len(self._terms):
            raise InputError(
                f"operator {operator} is read before it is made", "name an earlier operator"
            )
        return msgspec.structs.replace(self._terms[operator], output=output)

    def _term(self, operator: _Operator) -> Term:
        inputs = tuple(self.output(reference.opId, reference.tsId) for reference in operator.input)
        parameters = {parameter.key: parameter.value for parameter in operator.para}
        kind = operator.type
        if kind in _PLAIN:
            return Term(_PLAIN[kind], inputs)
        if kind in _PARALLEL:
            axis = _dim(parameters, "PM_PARALLEL_DIM")
            return Term(_PARALLEL[kind], inputs, (axis, _value(parameters, "PM_PARALLEL_DEGREE")))
        match kind:
            case "OP_LINEAR":
                activation = _value(parameters, "PM_ACTI")
                if activation not in _LINEAR:
                    raise InputError(
                        f"there is no activation {activation}", "give 0 (none) or 2 (relu)"
                    )
                return Term(_LINEAR[activation], inputs)
            case "OP_CONCAT":
                return Term("concat", inputs, (_dim(parameters, "PM_AXIS"),))
            case "OP_SPLIT":
                return self._split(_dim(parameters, "PM_AXIS"), inputs)
            case _:
                known = (*_PLAIN, *_PARALLEL, "OP_LINEAR", "OP_CONCAT", "OP_SPLIT")
                raise InputError(f"there is no operator {kind!r}", nearest(kind, known))

    def _split(self, axis: Attribute, inputs: tuple[Tensor, ...]) -> Term:
        name = f"n{self._splits}"
        self._splits += 1
        place = joined(inputs[0], axis)
        if place is not None:
            self.conditions.append(Condition(name, "=", place))
        return Term("split", inputs, (axis, name))


def joined(tensor: Tensor, axis: Attribute) -> Size | None:
    """The size of the first tensor that a concat put where a split cuts."""
    if isinstance(tensor, Variable):
        return None
    if tensor.operator == "concat" and tensor.attributes == (axis,):
        return _size(tensor.inputs[0], axis)
    return next(filter(None, (joined(*origin) for origin in _origins(tensor, axis))), None)


def _size(tensor: Tensor, axis: Attribute) -> Size | None:
    """The size of an axis as that of a variable, where operators leave it alone."""
    if isinstance(tensor, Variable):
        return Size(tensor.name, axis)
    if tensor.operator in ("replicate", "reduce", "concat") and tensor.attributes[0] == axis:
        return None
    return next(filter(None, (_size(*origin) for origin in _origins(tensor, axis))), None)


def _origins(term: Term, axis: Attribute) -> list[tuple[Tensor, Attribute]]:
    """Which axes of the inputs run along an axis of the output."""
    if term.operator in _LINEAR.values():
        return [(term.inputs[1], 0)] if axis == 1 else [(term.inputs[0], axis)]
    return [(operand, axis) for operand in term.inputs]


def _value(parameters: Mapping[str, int], key: str) -> int:
    if key not in parameters:
        raise InputError(f"an operator without {key}", f"add {key} to its parameters")
    return parameters[key]


def _dim(parameters: Mapping[str, int], key: str) -> Attribute:
    number = _value(parameters, key)
    if not 0 <= number < len(_DIMS):
        raise InputError(f"{key} is {number}", f"give 0 to {len(_DIMS) - 1}")
    return _DIMS[number]


def for_plain_inputs(rule: Rule) -> Rule:
    """The rule under the condition that everything it reads is in one piece."""
    added = tuple(Plain(v.name) for v in variables((*rule.source, *rule.target)))
    return msgspec.structs.replace(rule, conditions=(*rule.conditions, *added))
