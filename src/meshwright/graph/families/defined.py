"""User-defined operators, described in index notation (attribute `definition`).

    swiglu(x, y)[i..] = silu(x[i..]) * y[i..]
    scaled[s](x, w)[i.., o] = sum(k) s * x[i.., k] * w[o, k]

    label                                      role
    of the output, dim 0                       sample
    of the output, not read of the first operand   parameter
    of the output otherwise                    attribute
    of the outermost sum                       reduction: a function around the sum forbids it

Whole stays what an operand has at several dims, what a window slides along, and what the line
computes with: the position or the size of a label, which a piece does not know. With sizes n of
labels, every distinct part e of the line is computed once for each value of its free labels:
    F = sum over e of operations(e) * product of n over the labels of e                 `flops`
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import final

from meshwright.graph.family import (
    Family,
    Role,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    name_of,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.meaning import require_valid_notation
from meshwright.graph.notation import (
    Apply,
    Definition,
    Expression,
    Extent,
    Index,
    Label,
    MisfitError,
    Named,
    Number,
    OperandRead,
    Plus,
    ProductTerm,
    Total,
    Window,
    parse_definition,
    parts,
)
from meshwright.graph.operator_graph import Attributes, Call, Spec


@lru_cache(maxsize=1 << 12)
def defined_by(line: str) -> Defined:
    """The family of a line: the same object for the same line.

    >>> defined_by("f(x)[i..] = relu(x[i..])") is defined_by("f(x)[i..] = relu(x[i..])")
    True
    """
    definition = parse_definition(line)
    require_valid_notation(definition)
    return Defined(definition)


@final
class Defined(Family):
    """What a line of index notation says."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.products = any(map(_is_product, parts(definition.body)))

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A dim for each label; of the dtype that was seen, or of the first operand."""
        definition = self._concrete(call)
        sizes = _sizes(definition, call)
        dtype = call.outputs[0].dtype if call.outputs else tensor(call, 0).dtype
        return (Spec(dtype, tuple(sizes[label.name] for label in definition.output)),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every label of the output and of the outermost sum that can be cut."""
        definition = self._concrete(call)
        lengths, sizes = dict(definition.lengths), _sizes(definition, call)
        whole = definition.positions | _slid(definition)
        splits = []
        for dim, label in enumerate(definition.output):
            if label.name not in whole and (label.name in definition.cuts or label.name in lengths):
                inputs = _dims(definition, label.name)
                role = _role(dim, inputs)
                splits.append(_split(name_of(dim), role, sizes[label.name], inputs, dim))
        for name in definition.summed:
            if name in definition.cuts and name not in whole:
                inputs = _dims(definition, name)
                splits.append(_split(f"sum-{name}", "reduction", sizes[name], inputs, None))
        return tuple(splits)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A label that no operand has is as long as the piece says."""
        definition, dim = self._concrete(call), split.outputs[0]
        length = None if dim is None else dict(definition.lengths).get(definition.output[dim].name)
        return (
            call.attributes
            if length is None
            else replaced(call.attributes, **{length: stop - start})
        )

    def flops(self, call: Call) -> int:
        """Of every distinct part, one for each operation and each value of its labels."""
        definition = self._concrete(call)
        sizes = _sizes(definition, call)
        distinct = dict.fromkeys(parts(definition.body))
        return sum(
            _operations(part) * math.prod(sizes[label] for label in _labels(part, sizes))
            for part in distinct
        )

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """What the derivatives by the wanted operands are made of."""
        definition = self.definition
        asked = {name for name, want in zip(definition.operands, wanted, strict=True) if want}
        needed = {name for part in parts(definition.body) for name in _multiplying(part, asked)}
        return Saved(
            inputs=tuple(n for n, name in enumerate(definition.operands) if name in needed)
        )

    def _concrete(self, call: Call) -> Definition:
        """The line for the ranks at hand."""
        definition = self.definition
        if len(call.inputs) != len(definition.operands):
            raise ShapeError(
                f"{definition.name} reads {len(definition.operands)} tensors, "
                f"not {len(call.inputs)}"
            )
        ranks = tuple(len(tensor(call, index).shape) for index in range(len(call.inputs)))
        try:
            return definition.at(ranks)
        except MisfitError as error:
            raise ShapeError(str(error)) from None


def _sizes(definition: Definition, call: Call) -> Mapping[str, int]:
    """How long every label is."""
    sizes: dict[str, int] = {}
    windows: list[tuple[Window, int]] = []
    shapes = {name: tensor(call, n).shape for n, name in enumerate(definition.operands)}
    for read in definition.reads:
        for index, size in zip(read.indices, shapes[read.operand], strict=True):
            if isinstance(index, Window):
                windows.append((index, size))
            elif sizes.setdefault(index.name, size) != size:
                raise ShapeError(f"{index.name} is {sizes[index.name]} and {size} long")
    for window, size in windows:
        padded = size + 2 * integer(call, window.padding) - sizes[window.place]
        length = padded // integer(call, window.stride) + 1
        if sizes.setdefault(window.output, length) != length:
            raise ShapeError(f"{window.output} is {sizes[window.output]} and {length} long")
    return sizes | {label: integer(call, length) for label, length in definition.lengths}


def _slid(definition: Definition) -> frozenset[str]:
    """Labels of windows, whose pieces would need their neighbours' rows."""
    windows = (i for read in definition.reads for i in read.indices if isinstance(i, Window))
    return frozenset(name for window in windows for name in (window.output, window.place))


def _dims(definition: Definition, label: str) -> tuple[int | None, ...]:
    """The dim of each operand that a label runs along."""
    return tuple(_place(definition.indices(operand), label) for operand in definition.operands)


def _place(indices: tuple[Index, ...], label: str) -> int | None:
    return indices.index(Label(label)) if Label(label) in indices else None


def _role(dim: int, inputs: tuple[int | None, ...]) -> Role:
    return "parameter" if dim and inputs[0] is None else role_of(dim)


def _split(
    name: str, role: Role, extent: int, inputs: tuple[int | None, ...], output: int | None
) -> Split:
    return Split(name=name, role=role, extent=extent, inputs=inputs, outputs=(output,))


def _is_product(part: Expression) -> bool:
    """A sum over products of two tensors or more, as matrix units run it."""
    if not isinstance(part, Total) or not isinstance(part.body, ProductTerm):
        return False
    reads = [factor for factor in part.body.factors if isinstance(factor, OperandRead)]
    return len({read.operand for read in reads}) > 1


def _operations(part: Expression) -> int:
    match part:
        case Plus(terms=inner) | ProductTerm(factors=inner):
            return len(inner) - 1
        case Apply() | Total():
            return 1
        case _:
            return 0


def _labels(part: Expression, sizes: Mapping[str, int]) -> frozenset[str]:
    """The labels for whose values a part's own operation is carried out."""
    free = _free(part, sizes)
    return free | frozenset(part.labels) if isinstance(part, Total) else free


def _free(part: Expression, sizes: Mapping[str, int]) -> frozenset[str]:
    match part:
        case OperandRead(indices=indices):
            return frozenset(name for index in indices for name in _names(index))
        case Named(name=name):
            return frozenset({name} & sizes.keys())
        case Plus(terms=inner) | ProductTerm(factors=inner) | Apply(arguments=inner):
            return frozenset[str]().union(*(_free(term, sizes) for term in inner))
        case Total(labels=labels, body=body):
            return _free(body, sizes).difference(labels)
        case Number() | Extent():
            return frozenset()


def _names(index: Index) -> tuple[str, ...]:
    return (index.name,) if isinstance(index, Label) else (index.output, index.place)


def _multiplying(part: Expression, asked: set[str]) -> Iterator[str]:
    """Operands that the derivative of a part by one of those asked for is made of."""
    match part:
        case ProductTerm(factors=factors):
            reads = [_read(factor) for factor in factors]
            for number, read in enumerate(reads):
                if read & asked:
                    yield from (
                        name for other in (*reads[:number], *reads[number + 1 :]) for name in other
                    )
        case Apply():
            yield from _read(part) if _read(part) & asked else ()
        case _:
            return


def _read(part: Expression) -> set[str]:
    return {read.operand for read in parts(part) if isinstance(read, OperandRead)}
