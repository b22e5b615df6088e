"""Semantic checks of index notation definitions. Enters: a `Definition`. Leaves: nothing, or the
sentence that says what is wrong. The parser has seen to the grammar; here are counts and names.
"""

from __future__ import annotations

from meshwright.base.errors import InputError
from meshwright.graph.notation import (
    Apply,
    Definition,
    Expression,
    Extent,
    Label,
    Named,
    OperandRead,
    Plus,
    ProductTerm,
    Total,
    Window,
    parts,
)


def require_valid_notation(definition: Definition) -> None:
    """Refuse a line that reads or computes what is not there.

    >>> from meshwright.graph.notation import parse_definition
    >>> require_valid_notation(parse_definition("f(x)[i, j] = x[i]"))
    Traceback (most recent call last):
    ...
    meshwright.base.errors.InputError: no operand is read at j, so its size is not known; \
read one there, or write 'j < n' with an attribute n that says its size.
    """
    _require_distinct("operand", definition.operands)
    _require_distinct("label", tuple(label.name for label in definition.output))
    _require_sizes(definition)
    _require_reads(definition)
    _require_names(
        definition, definition.body, frozenset(label.name for label in definition.output)
    )


def _require_distinct(what: str, names: tuple[str, ...]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{what} {name} occurs twice", "name each once")


def _require_sizes(definition: Definition) -> None:
    """Every label needs a dim that says how long it is."""
    read = {
        index.name
        for part in definition.reads
        for index in part.indices
        if isinstance(index, Label)
    }
    read |= {index.output for part in definition.reads for index in part.indices
             if isinstance(index, Window)}  # fmt: skip
    summed = (label for part in parts(definition.body) if isinstance(part, Total)
              for label in part.labels)  # fmt: skip
    lengths = dict(definition.lengths)
    for label, length in definition.lengths:
        _require_known((length,), frozenset(definition.parameters))
        if label in read or Label(label, many=True) in definition.output:
            raise InputError(f"{label} < {length} is told twice: operands have {label} too",
                             f"write {label} alone")  # fmt: skip
    for label in (*(label.name for label in definition.output), *summed):
        if label not in read and label not in lengths:
            raise InputError(
                f"no operand is read at {label}, so its size is not known",
                f"read one there, or write '{label} < n' with an attribute n that says its size"
                if Label(label) in definition.output
                else "read one there or drop it",
            )


def _require_reads(definition: Definition) -> None:
    many = {label.name for label in definition.output if label.many}
    for part in definition.reads:
        if len(part.indices) != len(definition.indices(part.operand)):
            raise InputError(
                f"{part.operand} is read at {len(definition.indices(part.operand))} and at "
                f"{len(part.indices)} dims",
                "read it at the same number everywhere",
            )
        spread = [index for index in part.indices if isinstance(index, Label) and index.many]
        if len(spread) > 1:
            raise InputError(f"{part.operand} is read at two labels with '..'", "leave one of them")
        for index in part.indices:
            if isinstance(index, Label) and index.many != (index.name in many):
                raise InputError(
                    f"{index.name} is written with '..' at one place and without at another",
                    f"write {index.name}.. in the output and wherever it is read, or nowhere",
                )


def _require_names(definition: Definition, part: Expression, bound: frozenset[str]) -> None:
    """Every name is a parameter, a label of the output, or one of a sum around it."""
    match part:
        case Total(labels=labels, body=body):
            _require_distinct("label", labels)
            if again := bound.intersection(labels):
                raise InputError(f"label {min(again)} is bound already", "sum over another name")
            _require_names(definition, body, bound.union(labels))
        case Plus(terms=inner) | ProductTerm(factors=inner) | Apply(arguments=inner):
            for one in inner:
                _require_names(definition, one, bound)
        case OperandRead(indices=indices):
            for index in indices:
                names = (index.name,) if isinstance(index, Label) else (index.output, index.place)
                _require_known(names, bound)
                if isinstance(index, Window):
                    _require_known((index.stride, index.padding), frozenset(definition.parameters))
        case Named(name=name):
            many = {label.name for label in definition.output if label.many}
            _require_known((name,), bound.union(definition.parameters) - many)
        case Extent(label=label):
            _require_known((label,), bound)
        case _:
            pass


def _require_known(names: tuple[str, ...], known: frozenset[str]) -> None:
    for name in names:
        if name not in known:
            remedy = f"use {', '.join(sorted(known))}" if known else "leave it out"
            raise InputError(f"{name!r} is not known there", remedy)
