"""Constraint checker for finished plans, independent of the search. Enters: a plan, constraints.
Leaves: a sentence for each constraint that it breaks, with the place.

Written from what the constraints say, apart from everything that searches use. A plan's stages lie
along the factors along which every unit sits at one coordinate, not all at the same. Without
micro-batches that flow through them they may as well be units that were placed one by one, which
are not refused for being stages.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator

from meshwright.plan.model import Plan
from meshwright.search.joint.request.constraints import Constraints


def violations(plan: Plan, constraints: Constraints) -> list[str]:
    r"""What is broken; an empty list if nothing is.

    >>> from meshwright import Cluster
    >>> from meshwright.graph.text import parse_graph
    >>> text = "graph g\ninput x: float32[n=8]\noperator y: y: float32[n=8] = exp(x)"
    >>> from meshwright.sharding.layout import Layout
    >>> layouts = [Layout.parse("sample replica")]
    >>> plan = Plan.of("mine", parse_graph(text), Cluster.named("laptop"), layouts)
    >>> violations(plan, Constraints(fixed=(("sample", "4"), ("zero", "0"))))
    ["'sample=4': unit 'y' is cut 2 ways"]
    """
    check = _Check(plan)
    return [
        *(said for pin in constraints.pinned for said in check.pin(*pin)),
        *(said for forbid in constraints.forbidden for said in check.forbid(*forbid)),
        *(said for fix in constraints.fixed for said in check.fix(*fix)),
    ]


class _Check:
    """A plan as words: what each unit does along each factor."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.words = {name: text.split() for name, text in plan.layouts}
        self.sizes = [factor.size for factor in plan.factors]
        self.level = [plan.cluster.levels[factor.level].name for factor in plan.factors]
        self.staged = [self._staged(number) for number in range(len(self.sizes))]

    def _staged(self, factor: int) -> bool:
        along = {words[factor] for words in self.words.values()}
        return len(along) > 1 and all(word[0] == "@" for word in along)

    @property
    def stages(self) -> int:
        """At how many places units sit."""
        places = {
            tuple(word for word, staged in zip(words, self.staged, strict=True) if staged)
            for words in self.words.values()
        }
        return len(places)

    def _said(self, word: str, factor: int) -> tuple[str, ...]:
        """All that a role may be called."""
        if word[0] != "@":
            return (word,)
        return (word, "stage") if self.staged[factor] else (word, "idle")

    def pin(self, pattern: str, layout: str) -> Iterator[str]:
        """Units that lie otherwise."""
        for unit in self.plan.units:
            operators = [member.operator for member in unit.members]
            if not fnmatch.filter([unit.name, *operators], pattern):
                continue
            words, wanted = self.words[unit.name], layout.split()
            kept = len(words) == len(wanted) and all(
                want in self._said(word, factor)
                for factor, (word, want) in enumerate(zip(words, wanted, strict=True))
            )
            if not kept:
                yield f"'{pattern}={layout}': unit {unit.name!r} has layout '{' '.join(words)}'"

    def forbid(self, role: str, level: str) -> Iterator[str]:
        """Factors of the level with the role."""
        if role == "stage" and self.plan.options.micro_batches == 1:
            return
        for name, words in self.words.items():
            for factor, word in enumerate(words):
                if self.level[factor] == level and role in self._said(word, factor)[-1:]:
                    yield f"'{role}@{level}': unit {name!r} has layout '{' '.join(words)}'"
                    break

    def fix(self, name: str, value: str) -> Iterator[str]:
        """An option with another value, or units with another degree."""
        options = self.plan.options
        actual = {
            "stages": str(self.stages),
            "micro-batches": str(options.micro_batches),
            "zero": str(options.zero),
            "sync-each": "yes" if options.sync_each else "no",
            "shard-within": str(options.shard_within),
            "recompute": "yes" if options.recompute else "no",
        }.get(name)
        if actual is None:
            yield from self._degrees(name, int(value))
        elif actual != value and not (name == "stages" and self._placed(value)):
            yield f"'{name}={value}': the plan has {actual}"

    def _placed(self, stages: str) -> bool:
        """Whether one stage is wanted and units were placed one by one."""
        return stages == "1" and self.plan.options.micro_batches == 1

    def _degrees(self, name: str, degree: int) -> Iterator[str]:
        for unit in self.plan.units:
            extents = unit.extents.get(name)
            if extents is None or not all(
                _can_be_cut(extents, extent, degree) for extent in extents
            ):
                continue
            ways = math.prod(
                size
                for size, word in zip(self.sizes, self.words[unit.name], strict=True)
                if word == name
            )
            if ways != degree:
                yield f"'{name}={degree}': unit {unit.name!r} is cut {ways} ways"


def _can_be_cut(extents: tuple[int, ...], extent: int, degree: int) -> bool:
    """Evenly, or, where nothing else is cut with it, with a shorter last part."""
    shorter = len(set(extents)) == 1 and (degree - 1) * math.ceil(extent / degree) < extent
    return extent % degree == 0 or shorter
