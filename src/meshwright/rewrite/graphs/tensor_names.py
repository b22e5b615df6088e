"""Tensor naming in rewritten graphs.

Enters: a blueprint, the tensors that it reads and those that it replaces. Leaves: a name for every
tensor of it, and which names of the graph change. A replaced tensor hands its name to what takes
its place, so that readers and the outside find it. Where a rule puts a tensor that is there in the
place of another, readers of the other turn to it; only if the outside wants the other, the tensor
takes its name, which it cannot if it is wanted outside itself or comes from there: then the rule
does not apply.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from meshwright.graph.notation import Definition, Label
from meshwright.rewrite.graphs.instantiate import Blueprint
from meshwright.rewrite.graphs.readings import OperatorReading
from meshwright.rewrite.graphs.site import Site

DERIVED = "~"
"""Before the number that tells a derived name from others with the same stem."""

Names = Sequence[str]


class Naming(NamedTuple):
    """Names of the tensors of a blueprint by number; None where any name will do."""

    names: tuple[str | None, ...]
    turned: Mapping[str, str]
    """Readers of a tensor that turn to another."""
    renamed: Mapping[str, str]
    """Tensors that take another name."""


def naming(site: Site, blueprint: Blueprint, inputs: Names, outputs: Names) -> Naming | None:
    """The names, or None if the outside would lose a tensor or nothing would change."""
    wanted = site.ends
    count = sum(len(piece.outputs) for piece in blueprint.pieces)
    names: list[str | None] = [*inputs, *(None,) * count]
    turned: dict[str, str] = {}
    renamed: dict[str, str] = {}
    pairs = sorted(
        zip(blueprint.ends, outputs, strict=True), key=lambda pair: pair[1] not in wanted
    )
    for number, output in pairs:
        current = names[number]
        if current is None:
            names[number] = output
        elif current == output:
            continue
        elif output not in wanted:
            turned[output] = current
        elif current in site.makers and current not in wanted and number < len(inputs):
            renamed[current] = names[number] = output
        else:
            return None
    if all(name in inputs for name in outputs) and not renamed:
        return None
    turned = {old: renamed.get(new, new) for old, new in turned.items()}
    return Naming(tuple(names), turned, renamed)


def fresh(stem: str, taken: Collection[str]) -> str:
    """A name that nobody has.

    >>> fresh("y~1", {"y", "y~1"})
    'y~2'
    """
    stem, number = stem.partition(DERIVED)[0], 1
    while f"{stem}{DERIVED}{number}" in taken:
        number += 1
    return f"{stem}{DERIVED}{number}"


def dim_names(
    reading: OperatorReading, operands: Sequence[Names], known: Mapping[str, Definition]
) -> tuple[str, ...]:
    """What the dims of an output are called, after those of the operands.

    >>> from meshwright.rewrite.language.definitions import DEFINITIONS
    >>> linear = OperatorReading("linear", (), (0, 1))
    >>> dim_names(linear, [("batch", "in"), ("out", "in")], DEFINITIONS)
    ('batch', 'out')
    """
    first = list(operands[0])
    match reading.operator, reading.settings:
        case "transpose", (int() as one, int() as other):
            first[one], first[other] = first[other], first[one]
        case "flatten", (int() as dim,):
            del first[dim + 1]
        case "unflatten", (int() as dim, _):
            first.insert(dim + 1, f"{first[dim]}_inner")
        case operator, _ if operator in known:
            first = _by_labels(known[operator], operands)
        case _:
            pass
    return tuple(name if first.index(name) == n else f"{name}_{n}" for n, name in enumerate(first))


def _by_labels(defined: Definition, operands: Sequence[Names]) -> list[str]:
    definition = defined.at(tuple(map(len, operands)))
    called: dict[str, str] = {}
    for operand, names in zip(definition.operands, operands, strict=True):
        for index, name in zip(definition.indices(operand), names, strict=True):
            called.setdefault(index.name if isinstance(index, Label) else index.output, name)
    return [called[label.name] for label in definition.output]
