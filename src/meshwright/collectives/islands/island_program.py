"""Reduction programs over unequal groups: P²'s programs inside islands, joined by crossings.

    program  =  phase; crossing; phase; ...; crossing; phase
    phase    =  for each island a program of its own levels, or nothing; islands run side by side
    crossing =  form.Collective, of every island at once
        across       devices of all islands that hold the same piece; all devices take part, and
                     those of an island hold equally much
        leaders      the first device of each island
        everybody    all devices of all islands, as one group

Enters: text or parts. Leaves: `IslandProgram`, a noun with a text form that reads back. What it
means on devices is in `lowering`, which programs are right in `laws`; neither is known here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.collectives.dsl import Program
from meshwright.cost.collective import Collective

CrossingForm = Literal["across", "leaders", "everybody"]
CROSSING_FORMS: tuple[CrossingForm, ...] = get_args(CrossingForm)

EXAMPLE = "[big: gpu.InsideGroup.ReduceScatter]; across.AllReduce; [big: gpu.InsideGroup.AllGather]"


class IslandCrossing(msgspec.Struct, frozen=True):
    """A collective between islands.

    >>> print(IslandCrossing("across", Collective.ALL_REDUCE))
    across.AllReduce
    """

    form: CrossingForm
    collective: Collective

    def __str__(self) -> str:
        return f"{self.form}.{self.collective.value}"


class IslandProgram(msgspec.Struct, frozen=True):
    """What each island does between crossings, and the crossings.

    >>> program = IslandProgram.parse(EXAMPLE, ("big", "small"))
    >>> str(program) == EXAMPLE, len(program)
    (True, 3)
    """

    islands: tuple[str, ...]
    phases: tuple[tuple[Program, ...], ...]
    """One more than crossings; of each a program for every island, perhaps without a step."""
    crossings: tuple[IslandCrossing, ...]

    def __post_init__(self) -> None:
        phases = len(self.phases)
        if phases != len(self.crossings) + 1 or {*map(len, self.phases)} != {len(self.islands)}:
            raise InputError(
                f"the program has {phases} phases and {len(self.crossings)} crossings",
                "give a program of every island before, between and after crossings",
            )

    def __str__(self) -> str:
        words = [self._phase(self.phases[0])]
        for crossing, phase in zip(self.crossings, self.phases[1:], strict=True):
            words += [str(crossing), self._phase(phase)]
        return "; ".join(filter(None, words))

    def __len__(self) -> int:
        """Steps, one after the other, of an island that has most of them in every phase."""
        return sum(max(map(len, phase)) for phase in self.phases) + len(self.crossings)

    def _phase(self, phase: Sequence[Program]) -> str:
        parts = [
            f"{name}: {program}"
            for name, program in zip(self.islands, phase, strict=True)
            if program.instructions
        ]
        return f"[{' | '.join(parts)}]" if parts else ""

    def of_island(self, number: int) -> int:
        """How many steps an island takes part in."""
        return sum(len(phase[number]) for phase in self.phases) + len(self.crossings)

    @staticmethod
    def parse(text: str, islands: Sequence[str]) -> IslandProgram:
        """A program of these islands from its text form."""
        nothing = (Program(()),) * len(islands)
        phases, crossings = [nothing], list[IslandCrossing]()
        for part in _parts(text):
            if part.startswith("["):
                if phases[-1] != nothing:
                    raise InputError(
                        f"{part!r} follows what islands do without a crossing between them",
                        "write what each island does in one pair of brackets",
                    )
                phases[-1] = _parse_phase(part[1:-1], islands)
            else:
                crossings.append(_parse_crossing(part))
                phases.append(nothing)
        return IslandProgram(tuple(islands), tuple(phases), tuple(crossings))


_PART = re.compile(r"\s*(\[[^\[\]]*\]|[^;\[\]]+?)\s*(?:;|$)")


def _parts(text: str) -> list[str]:
    parts, place = [], 0
    while place < len(text.rstrip()):
        match = _PART.match(text, place)
        if match is None:
            raise InputError(
                f"{text[place:].strip()!r} is no part of a program over islands",
                f"write it as {EXAMPLE!r}",
            )
        parts.append(match.group(1))
        place = match.end()
    return parts


def _parse_phase(text: str, islands: Sequence[str]) -> tuple[Program, ...]:
    programs: dict[str, Program] = {}
    for part in text.split("|"):
        name, colon, program = part.partition(":")
        name = name.strip()
        if not colon or name in programs:
            raise InputError(
                f"{part.strip()!r} is not what one island does", f"write it as {EXAMPLE!r}"
            )
        if name not in islands:
            raise InputError(f"there is no island {name!r}", nearest(name, islands))
        programs[name] = Program.parse(program)
    return tuple(programs.get(name, Program(())) for name in islands)


def _parse_crossing(text: str) -> IslandCrossing:
    form, _, name = text.partition(".")
    for known in CROSSING_FORMS:
        if form == known:
            collectives = {one.value: one for one in Collective}
            if name not in collectives:
                raise InputError(f"{name!r} is not a collective", nearest(name, collectives))
            return IslandCrossing(known, collectives[name])
    raise InputError(
        f"{text!r} is not a crossing between islands",
        f"write FORM.COLLECTIVE with {', '.join(CROSSING_FORMS)}, or what islands do in brackets",
    )
