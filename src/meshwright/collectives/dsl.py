"""The reduction language of P²: a program is a list of slice x form x collective.

Enters: text or parts. Leaves: `Program`, a noun with a text form that reads back. What a program
means on devices is in `lower`, whether it is right in `check`; neither is known here.
"""

from __future__ import annotations

import re
from typing import assert_never

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.cost.collective import Collective

ROOT = "root"
"""The level of size one that stands above every synthesis hierarchy."""


class InsideGroup(msgspec.Struct, frozen=True, tag="InsideGroup"):
    """The collective runs inside each group of the slice."""


class Parallel(msgspec.Struct, frozen=True, tag="Parallel"):
    """First devices of all groups under one `under`, second devices, and so on."""

    under: str


class Master(msgspec.Struct, frozen=True, tag="Master"):
    """As Parallel, but only the first devices of the groups take part."""

    under: str


Form = InsideGroup | Parallel | Master


class ReductionInstruction(msgspec.Struct, frozen=True):
    """One collective over the groups that a slice and a form make.

    >>> print(ReductionInstruction("node", Parallel("root"), Collective.ALL_REDUCE))
    node.Parallel(root).AllReduce
    """

    slice: str
    form: Form
    collective: Collective

    def __str__(self) -> str:
        return f"{self.slice}.{_format_form(self.form)}.{self.collective.value}"


class Program(msgspec.Struct, frozen=True):
    """Instructions in the order in which they run.

    >>> text = "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce"
    >>> str(Program.parse(text)) == text
    True
    """

    instructions: tuple[ReductionInstruction, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.instructions))

    def __len__(self) -> int:
        return len(self.instructions)

    @staticmethod
    def parse(text: str) -> Program:
        """A program from its text form."""
        return Program(tuple(_parse_instruction(part) for part in text.split(";")))


def _format_form(form: Form) -> str:
    match form:
        case InsideGroup():
            return "InsideGroup"
        case Parallel(under):
            return f"Parallel({under})"
        case Master(under):
            return f"Master({under})"
        case _:
            assert_never(form)


_INSTRUCTION = re.compile(r"\s*(\S+)\.(InsideGroup|(?:Parallel|Master)\(([^()\s]+)\))\.(\w+)\s*")
_COLLECTIVES = {collective.value: collective for collective in Collective}


def _parse_instruction(text: str) -> ReductionInstruction:
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise InputError(
            f"{text.strip()!r} is not an instruction",
            "write SLICE.FORM.COLLECTIVE, as 'node.Parallel(root).AllReduce'",
        )
    slice_, form, under, name = match.groups()
    if name not in _COLLECTIVES:
        raise InputError(f"{name!r} is not a collective", nearest(name, _COLLECTIVES))
    kind: Form = InsideGroup()
    if under is not None:
        kind = Parallel(under) if form.startswith("Parallel") else Master(under)
    return ReductionInstruction(slice_, kind, _COLLECTIVES[name])


ALL_REDUCE = Program((ReductionInstruction(ROOT, InsideGroup(), Collective.ALL_REDUCE),))
"""One AllReduce over everybody that reduces together."""
