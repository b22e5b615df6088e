"""Constraint checker for finished plans, independent of the search. Enters: a plan, constraints.
Leaves: a sentence for each constraint that it breaks, with the place.

Written from what the constraints say, apart from everything that searches use. A plan's stages lie
along the factors along which every unit sits at one coordinate, not all at the same. Without
micro-batches that flow through them they may as well be units that were placed one by one, which
are not refused for being stages.

Degrees of a whole model are read off where it says them: DP, TP and CP off samples, heads and
queries of every attention, EP off every group of experts, TP off most of the work on weights too.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from meshwright.baselines.degrees.facts import EXPERT, attended, attends
from meshwright.baselines.roles import work
from meshwright.plan.plan import Plan
from meshwright.search.joint.request.constraints import AXES, CP, DP, EP, TP, Constraints
from meshwright.sharding.unit import OpGroup


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
        if name in AXES:
            yield from self._axis(name, int(value))
        elif actual is None:
            yield from self._degrees(name, int(value))
        elif actual != value and not (name == "stages" and self._placed(value)):
            yield f"'{name}={value}': the plan has {actual}"

    def _placed(self, stages: str) -> bool:
        """Whether one stage is wanted and units were placed one by one."""
        return stages == "1" and self.plan.options.micro_batches == 1

    def _axis(self, name: str, degree: int) -> Iterator[str]:
        """Op groups that a degree of the whole model is read off, with another one."""
        for unit in self.plan.units:
            split = _split_of_axis(unit, name)
            ways = degree if split is None else self._ways(unit, [split])
            if ways != degree:
                yield f"'{name}={degree}': unit {unit.name!r} is cut {ways} ways"
        if name == TP:
            yield from self._weights(degree)

    def _weights(self, degree: int) -> Iterator[str]:
        """Weights that are cut another number of ways, if they do most of the work on weights."""
        shares = Counter[int]()
        for unit in self.plan.units:
            if weight := _weight_splits(unit):
                shares[self._ways(unit, weight)] += work(unit)
        for ways, _ in shares.most_common(1):
            if ways != degree:
                yield f"'{TP}={degree}': most of the work on weights is cut {ways} ways"

    def _ways(self, unit: OpGroup, splits: Sequence[str | None]) -> int:
        """How many pieces some splits of a unit are cut into together."""
        words = zip(self.sizes, self.words[unit.name], strict=True)
        return math.prod(size for size, word in words if word in splits)

    def _degrees(self, name: str, degree: int) -> Iterator[str]:
        for unit in self.plan.units:
            extents = unit.extents.get(name)
            if extents is None or not all(
                _can_be_cut(extents, extent, degree) for extent in extents
            ):
                continue
            ways = self._ways(unit, [name])
            if ways != degree:
                yield f"'{name}={degree}': unit {unit.name!r} is cut {ways} ways"


def _split_of_axis(unit: OpGroup, axis: str) -> str | None:
    """The split that an axis of the whole model cuts in a unit that says so."""
    if axis == EP:
        return EXPERT if EXPERT in unit.extents else None
    head, query = attended(unit.extents)
    if not (attends(unit) and head in unit.extents):
        return None
    samples = None if unit.samples is None else unit.splits[unit.samples].name
    return {DP: samples, TP: head, CP: query}[axis]


def _weight_splits(unit: OpGroup) -> list[str]:
    """The splits that cut the weight of a product that is no expert's: outputs and inputs."""
    roles = {split.name: split.role for split in unit.splits}
    if EXPERT in roles or not {"parameter", "reduction"} <= set(roles.values()):
        return []
    return [name for name, role in roles.items() if role in ("parameter", "reduction")]


def _can_be_cut(extents: tuple[int, ...], extent: int, degree: int) -> bool:
    """Evenly, or, where nothing else is cut with it, with a shorter last part."""
    shorter = len(set(extents)) == 1 and (degree - 1) * math.ceil(extent / degree) < extent
    return extent % degree == 0 or shorter
