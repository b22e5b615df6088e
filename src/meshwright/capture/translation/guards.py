"""Guard generation, from the values that a forward pass has read.

Enters: a translation and its reads. Leaves: guards, and the operators that judge them. A guard is
judged by inputs and buffers alone, which every rank has whole. Of a read that depends on a
parameter or on chance no rank can judge; those are told to the caller (`UndecidedError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import torch

from meshwright.capture.operators.aten import overloads
from meshwright.capture.trace.data_reads import ValueRead
from meshwright.capture.translation.applied import Applied
from meshwright.capture.translation.translate import Translation
from meshwright.graph.operator_graph import Call, Guard
from meshwright.graph.randomness import draws


class JudgedGuards(NamedTuple):
    """Guards with the operators that make their tensors."""

    guards: tuple[Guard, ...]
    operators: tuple[Applied, ...]


class UndecidedError(Exception):
    """Some reads depend on parameters or on chance: their numbers among all reads."""

    def __init__(self, reads: tuple[int, ...]) -> None:
        super().__init__(reads)
        self.reads = reads


def judged(translation: Translation, reads: Sequence[tuple[str, ValueRead | None]]) -> JudgedGuards:
    """The guards of all reads that inputs or buffers decide; None is one that needs no guard."""
    guards: list[Guard] = []
    needed: dict[str, Applied] = {}
    undecided: list[int] = []
    for number, (name, read) in enumerate(reads):
        chain = needed_for([name], translation.operators)
        sources = {name, *(operand for operator in chain for operand in operator.described.inputs)}
        if read is None:
            continue
        if (
            not sources.isdisjoint(translation.parameters)
            or any(map(_by_chance, chain))
            or (read.counts and not sources.isdisjoint(_fractions(translation)))
        ):
            undecided.append(number)
        elif not sources.isdisjoint([*translation.inputs, *translation.buffers]):
            guards.append(Guard(tensor=name, value=read.value, line=read.line or "PyTorch"))
            needed |= {operator.name: operator for operator in chain}
    if undecided:
        raise UndecidedError(tuple(undecided))
    return _merged(
        guards, [operator for operator in translation.operators if operator.name in needed]
    )


def _fractions(translation: Translation) -> set[str]:
    """Inputs that are no whole numbers: how many of them pass a test differs in every batch."""
    return {name for name in translation.inputs if "float" in translation.specs[name].dtype}


def needed_for(outputs: Iterable[str], operators: Sequence[Applied]) -> list[Applied]:
    """The operators that an output depends on, in their order."""
    needed: set[str | None] = set(outputs)
    kept = []
    for operator in reversed(operators):
        if not needed.isdisjoint(name for name, _ in operator.outputs):
            needed.update(operator.described.inputs)
            kept.append(operator)
    return kept[::-1]


def _by_chance(operator: Applied) -> bool:
    call = Call(
        kind=operator.described.kind,
        inputs=(),
        outputs=(),
        attributes=operator.described.attributes,
    )
    if call.kind in ("dropout", "scaled_dot_product_attention"):
        return draws(call)
    return any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads(call.kind))


def _merged(guards: Sequence[Guard], operators: Sequence[Applied]) -> JudgedGuards:
    """The same with nothing computed twice: every layer looks at the one mask that all have."""
    names: dict[str, str] = {}
    unique: dict[object, Applied] = {}
    for operator in operators:
        inputs = tuple(names.get(name or "", name) for name in operator.described.inputs)
        described = msgspec.structs.replace(operator.described, inputs=inputs)
        # As text, since 1, 1.0 and True are equal but mean different things.
        key = described.kind, inputs, repr(described.attributes)
        first = unique.setdefault(key, msgspec.structs.replace(operator, described=described))
        for (name, _), (other, _) in zip(operator.outputs, first.outputs, strict=True):
            names[name] = other
    renamed = (
        msgspec.structs.replace(guard, tensor=names.get(guard.tensor, guard.tensor))
        for guard in guards
    )
    return JudgedGuards(tuple(dict.fromkeys(renamed)), tuple(unique.values()))
