"""Parallelization rules of an operator, derived from its index notation. Enters: a `Definition`.
Leaves: rules.

For every label that can be cut there is one rule: cut the operands that have it, copy the others,
and combine the output along it, or reduce it if the label is summed over. One more runs the
operator in steps. Nothing here is trusted: the rules are proved like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshwright.graph.notation import Definition, Index, Label, Window
from meshwright.rewrite.language.terms import (
    STEPS,
    Attribute,
    Condition,
    Degree,
    Rank,
    Rule,
    Size,
    Tensor,
    Term,
    Variable,
)


def forms(definition: Definition) -> Iterator[Rule]:
    """Every way to run an operator in parallel.

    >>> from meshwright.rewrite.language.definitions import DEFINITIONS
    >>> for rule in forms(DEFINITIONS["relu"]): print(rule)
    relu-cut-i: relu(x) => combine[k, d](relu(partition[k, d](x)))
    relu-steps: relu(x) => batch[0, m](relu(pipeline[0, m](x))) if 0 < rank(x) and x.steps = 1
    """
    for label in definition.cuts:
        if any(_nameless(definition.indices(operand), label) for operand in definition.operands):
            continue
        inputs = [_operand(definition, operand, label) for operand in definition.operands]
        if label in definition.summed:
            yield _rule(definition, f"cut-{label}", inputs, "reduce", ("d",), _uncut(definition))
        elif not _nameless(definition.output, label):
            dim = _dim(definition.output, label)
            conditions = _among_many(definition, label) if dim == "k" else ()
            yield _rule(definition, f"cut-{label}", inputs, "combine", (dim, "d"), conditions)
    if _in_steps(definition):
        inputs = [
            Term("pipeline", (Variable(operand),), (0, "m"))
            if definition.indices(operand)[:1] == definition.output[:1]
            else Term("replicate", (Variable(operand),), (STEPS, "m"))
            for operand in definition.operands
        ]
        single = tuple(Condition(Size(name, STEPS), "=", 1) for name in definition.operands)
        conditions = (*_many_are_there(definition), *single)
        yield _rule(definition, "steps", inputs, "batch", (0, "m"), conditions)


def _rule(
    definition: Definition,
    name: str,
    inputs: Sequence[Tensor],
    after: str,
    attributes: tuple[Attribute, ...],
    conditions: tuple[Condition, ...],
) -> Rule:
    source = Term(definition.name, tuple(map(Variable, definition.operands)), definition.parameters)
    target = Term(after, (Term(definition.name, tuple(inputs), definition.parameters),), attributes)
    return Rule(
        name=f"{definition.name}-{name}".replace("_", "-"),
        source=(source,),
        target=(target,),
        conditions=conditions,
    )


def _uncut(definition: Definition) -> tuple[Condition, ...]:
    """That no label of the sum is cut already: whose sums would be which is then not said."""
    return tuple(
        Condition(Degree(operand, _dim(indices, label)), "=", 1)
        for label in definition.summed
        for operand in definition.operands
        for indices in (definition.indices(operand),)
        if _place(indices, label) is not None and label in definition.cuts
    )


def _among_many(definition: Definition, label: str) -> tuple[Condition, ...]:
    """That k is one of the dims that stand in front, where others follow."""
    operand = next(
        o for o in definition.operands if _place(definition.indices(o), label) is not None
    )
    behind = len(definition.indices(operand)) - 1
    return (Condition("k", "<", Rank(operand, behind)),) if behind else ()


def _many_are_there(definition: Definition) -> tuple[Condition, ...]:
    """That there is a first dim to be worked through, where none has to be."""
    first = definition.output[0]
    if not first.many:
        return ()
    operand = next(
        o for o in definition.operands if _place(definition.indices(o), first.name) is not None
    )
    return (Condition(len(definition.indices(operand)) - 1, "<", Rank(operand)),)


def _operand(definition: Definition, operand: str, label: str) -> Tensor:
    indices, variable = definition.indices(operand), Variable(operand)
    place = _place(indices, label)
    if place is None:
        return Term("replicate", (variable,), ("d",))
    dim = _dim(indices, label)
    cut = Term("partition", (variable,), (dim, "d"))
    index = indices[place]
    if isinstance(index, Window):
        return Term("halo", (cut,), (dim, index.padding, "after"))
    return cut


def _place(indices: tuple[Index, ...], label: str) -> int | None:
    names = [index.name if isinstance(index, Label) else index.output for index in indices]
    return names.index(label) if label in names else None


def _nameless(indices: tuple[Index, ...], label: str) -> bool:
    """Whether a dim cannot be named: it is one of many that do not stand in front."""
    place = _place(indices, label)
    return bool(place) and indices[place or 0] == Label(label, many=True)


def _dim(indices: tuple[Index, ...], label: str) -> Attribute:
    """A dim as rules name it: a variable for one of many, else counted from an end."""
    place = _place(indices, label)
    assert place is not None
    if indices[place] == Label(label, many=True):
        return "k"
    followed = any(isinstance(index, Label) and index.many for index in indices[place + 1 :])
    return place if followed else place - len(indices)


def _in_steps(definition: Definition) -> bool:
    """Whether the first dim of the output can be worked through piece by piece.

    Not if an element depends on its place: a step does not know how many came before.
    """
    if not definition.output:
        return False
    first = definition.output[0].name
    places = {_place(definition.indices(operand), first) for operand in definition.operands}
    return first in definition.cuts and places <= {None, 0} and first not in definition.positions
