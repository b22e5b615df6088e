"""From values that a forward pass has read to the guards of its graph.

Enters: a translation and its reads. Leaves: guards, and the operators that judge them. A guard is
judged by inputs and buffers alone, which every rank has whole. Of a read that depends on a
parameter or on chance no rank can judge; those are told to the caller (`UndecidedError`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import torch

from meshwright.capture.aten import overloads
from meshwright.capture.reading import ValueRead
from meshwright.capture.translate import Applied, Translation
from meshwright.graph.chance import draws
from meshwright.graph.model import Call, Guard


class JudgedGuards(NamedTuple):
    """Guards with the operators that make their tensors."""

    guards: tuple[Guard, ...]
    operators: tuple[Applied, ...]


class UndecidedError(Exception):
    """Some reads depend on parameters or on chance: their numbers among all reads."""

    def __init__(self, reads: tuple[int, ...]) -> None:
        super().__init__(reads)
        self.reads = reads


def judged(found: Translation, reads: Sequence[tuple[str, ValueRead | None]]) -> JudgedGuards:
    """The guards of all reads that inputs or buffers decide; None is one that needs no guard."""
    guards: list[Guard] = []
    needed: dict[str, Applied] = {}
    undecided: list[int] = []
    for number, (name, read) in enumerate(reads):
        chain = needed_for([name], found.operators)
        sources = {name, *(given for own in chain for given in own.described.inputs)}
        if read is None:
            continue
        if (
            not sources.isdisjoint(found.parameters)
            or any(map(_by_chance, chain))
            or (read.counts and not sources.isdisjoint(_fractions(found)))
        ):
            undecided.append(number)
        elif not sources.isdisjoint([*found.inputs, *found.buffers]):
            guards.append(Guard(tensor=name, value=read.value, line=read.line or "PyTorch"))
            needed |= {own.name: own for own in chain}
    if undecided:
        raise UndecidedError(tuple(undecided))
    return _merged(guards, [own for own in found.operators if own.name in needed])


def _fractions(found: Translation) -> set[str]:
    """Inputs that are no whole numbers: how many of them pass a test differs in every batch."""
    return {name for name in found.inputs if "float" in found.specs[name].dtype}


def needed_for(outputs: Iterable[str], operators: Sequence[Applied]) -> list[Applied]:
    """The operators that an output depends on, in their order."""
    needed: set[str | None] = set(outputs)
    kept = []
    for operator in reversed(operators):
        if not needed.isdisjoint(name for name, _ in operator.outputs):
            needed.update(operator.described.inputs)
            kept.append(operator)
    return kept[::-1]


def _by_chance(own: Applied) -> bool:
    call = Call(kind=own.described.kind, inputs=(), outputs=(), attributes=own.described.attributes)
    if call.kind in ("dropout", "scaled_dot_product_attention"):
        return draws(call)
    return any(torch.Tag.nondeterministic_seeded in one.tags for one in overloads(call.kind))


def _merged(guards: Sequence[Guard], operators: Sequence[Applied]) -> JudgedGuards:
    """The same with nothing computed twice: every layer looks at the one mask that all have."""
    names: dict[str, str] = {}
    made: dict[object, Applied] = {}
    for own in operators:
        inputs = tuple(names.get(name or "", name) for name in own.described.inputs)
        described = msgspec.structs.replace(own.described, inputs=inputs)
        # As text, since 1, 1.0 and True are equal but mean different things.
        key = described.kind, inputs, repr(described.attributes)
        first = made.setdefault(key, msgspec.structs.replace(own, described=described))
        for (name, _), (other, _) in zip(own.outputs, first.outputs, strict=True):
            names[name] = other
    renamed = (
        msgspec.structs.replace(guard, tensor=names.get(guard.tensor, guard.tensor))
        for guard in guards
    )
    return JudgedGuards(tuple(dict.fromkeys(renamed)), tuple(made.values()))
