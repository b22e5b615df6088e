"""One-line summary of a plan: its axes of parallelism (DP, TP, PP ...), degrees and levels. Enters:
a `Plan`. Leaves: its `Outline`: which axes of parallelism it has, how wide and on which levels,
stages, micro-batches, what is sharded and run again.

Every unit has a layout of its own, so the axes are those of the units that do most of the work
(floating-point operations of both passes); `share` says how much, `others` what the rest does. An
axis is told by the role of what is cut. That of a product's sum counts as that of its weight:
layers that cut a weight's outputs and then the next one's inputs have one axis.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import msgspec

from meshwright.base.once import once
from meshwright.base.quantities import counted
from meshwright.baselines.degrees.sequence import sequence_splits
from meshwright.baselines.roles import work
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.report.blocks import describe_blocks
from meshwright.report.documents import Document
from meshwright.sharding.layout import IDLE, REPLICA, Layout
from meshwright.sharding.unit import SAMPLE, OpGroup
from meshwright.sharding.units import units

STAGE = "stage"
"""The axis along which units sit at different coordinates."""

UNUSED = "idle"
"""The axis along which all units sit at the same coordinate."""

SEQUENCE, EXPERTS = "sequence", "expert"
"""Of an attribute what cuts positions of a sequence; of parameters what cuts experts."""

PARALLEL = {
    STAGE: "PP",
    SAMPLE: "DP",
    SEQUENCE: "CP",
    EXPERTS: "EP",
    "attribute": "attribute parallel",
    "parameter": "TP",
    REPLICA: "replicated",
}
"""What the field calls axes; one that is not here keeps its name."""

AXIS = {"sample": SAMPLE, "attribute": "attribute", "parameter": "parameter"}
AXIS |= {"reduction": "parameter"}
"""By the role of a split."""

BY_NAME = {"head": "parameter", "expert": EXPERTS}
"""Of splits whose role says less than their name: attention cut along heads reads what tensor
parallelism has cut."""

LEAST = 0.005
"""Axes of less than this share of the work are not told."""

WHOLE = 0.995
"""From this share on it is all of the work."""

MOST = 0.5
"""Above this share of the work that is replicated, people are told: they pay for devices that do it
again."""

Axes = dict[str, dict[str, int]]
"""For each axis and each level that it lies on how many ways it cuts there."""


class OutlineKind(msgspec.Struct, frozen=True, kw_only=True):
    """Axes, and the share of the work that is laid out so."""

    axes: Axes
    share: float
    parts: str = ""
    """What of the model is laid out so."""
    levels: tuple[str, ...] = ()
    """Of the machine, the outermost first."""

    def __str__(self) -> str:
        axes = (describe_axis(*axis, self.levels) for axis in self.axes.items())
        return ", ".join(axes) or "one device"

    def told(self) -> str:
        """With the parts that are laid out so, and their share of the work."""
        if self.share >= WHOLE:
            return f"all layers: {self}"
        return f"{self.parts or 'layers'} ({self.share:.0%} of FLOPs): {self}"


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan amounts to."""

    axes: Axes
    degrees: dict[str, int]
    """How many ways each of the axes cuts, over all levels."""
    share: float
    others: tuple[OutlineKind, ...]
    devices: int
    """How many are used."""
    stages: int
    """Sets of devices on which units sit."""
    options: Options
    rewrites: tuple[str, ...]
    parts: str = ""
    """What of the model has these axes."""
    levels: tuple[str, ...] = ()
    """Of the machine, the outermost first."""
    again: float = 0.0
    """The share of the work that some devices do again what others do."""
    enough: dict[str, int] = {}
    """Where most of the work is replicated along some factors: the sizes of a machine without
    them."""

    @property
    def kinds(self) -> tuple[OutlineKind, ...]:
        """All layouts, that of the most work first."""
        first = OutlineKind(axes=self.axes, share=self.share, parts=self.parts, levels=self.levels)
        return (first, *self.others)

    def decided(self) -> list[str]:
        """What holds for the whole graph."""
        return _decided(self)

    def __str__(self) -> str:
        kinds = [str(kind) for kind in self.kinds]
        if self.others:
            kinds = [f"{kind} ({kind.share:.0%} of FLOPs)" for kind in self.kinds]
        return "; ".join([*kinds, *_decided(self)])


def short_description(plan: Plan, rewrites: tuple[str, ...] = ()) -> Outline:
    """The outline of a plan; `rewrites` are the rules that made its graph."""
    levels = plan.cluster.level_names
    kinds = []
    for layout, shares in sorted(_shares(plan).items(), key=lambda item: -sum(item[1].values())):
        share = math.fsum(shares.values())
        if share >= LEAST:
            parts = describe_blocks(plan.graph, shares)
            kinds.append(
                OutlineKind(axes=_axes(layout, plan), share=share, parts=parts, levels=levels)
            )
    first, *others = kinds
    return Outline(
        axes=first.axes,
        degrees={name: math.prod(levels.values()) for name, levels in first.axes.items()},
        share=first.share,
        others=tuple(others),
        devices=_devices(plan),
        stages=stages_of(plan),
        options=plan.options,
        rewrites=rewrites,
        parts=first.parts,
        levels=levels,
        again=_again(plan),
        enough=_enough(plan),
    )


def stages_of(plan: Plan) -> int:
    """Sets of devices on which units sit."""
    return len({layout.coordinates() for layout in plan.layout.values()})


def outline_document(outline: Outline) -> Document:
    """An outline, for scripts."""
    document: Document = msgspec.to_builtins(outline)
    options = document.pop("options")
    assert isinstance(options, dict)
    return document | options | {"text": str(outline)}


def describe_options(options: Options) -> list[str]:
    """What a plan decides for the whole graph, where it is not the ordinary."""
    words = []
    if options.micro_batches > 1:
        words.append(f"{options.micro_batches} micro-batches, {options.schedule}")
    if options.zero:
        words.append(options.sharded)
    if options.recompute:
        layers = f" of {options.recompute_layers} layers" if options.recompute_layers else ""
        words.append(f"activation checkpointing{layers}")
    return words


def _decided(outline: Outline) -> list[str]:
    words = []
    if STAGE in outline.degrees:
        words.append(f"{outline.stages} stages")
    elif outline.stages > 1:
        words.append(f"operators on {outline.stages} sets of devices")
    words += describe_options(outline.options)
    if UNUSED in outline.degrees:
        words.append(f"on {counted(outline.devices, 'device')}")
    if outline.enough:
        machine = " x ".join(_instances(*level) for level in outline.enough.items())
        if outline.again >= WHOLE:
            words.append(f"all work is done more than once: {machine} would do")
        else:
            words.append(
                f"{outline.again:.0%} of FLOPs are done more than once: "
                f"for these {machine} would do"
            )
    if outline.rewrites:
        words.append(f"rewritten by {_rules(outline.rewrites)}")
    return words


def _rules(rewrites: Sequence[str]) -> str:
    """Rules, those that were used several times with how often, others with their first place.

    >>> _rules(["fuse at a", "fuse at b", "swap at c, d: x = e", "merge at f: y = g (3 times)"])
    'fuse (2 times), swap at c, merge (3 times)'
    """
    times, place = Counter[str](), dict[str, str]()
    for rewrite in rewrites:
        name, _, where = rewrite.partition(" at ")
        alike = re.search(r"\((\d+) times\)$", rewrite)
        times[name] += int(alike[1]) if alike else 1
        place.setdefault(name, re.split(r"[,:]", where)[0])
    return ", ".join(
        f"{name} ({count} times)" if count > 1 else f"{name} at {place[name]}"
        for name, count in times.items()
    )


def describe_axis(name: str, levels: Mapping[str, int], machine: Sequence[str] = ()) -> str:
    """An axis of parallelism with its degree and where it lies among the levels of a machine.

    >>> describe_axis("sample", {"node": 2, "gpu": 4}, ("node", "gpu"))
    'DP 8 = 2 nodes x 4 GPUs'
    >>> [describe_axis("parameter", {level: 2}, ("node", "gpu")) for level in ("gpu", "node")]
    ['TP 2 inside the node', 'TP 2 across nodes']
    """
    degree = f"{PARALLEL.get(name, name)} {math.prod(levels.values())}"
    if len(levels) == 1 and len(machine) > 1:
        at = machine.index(next(iter(levels)))
        inside = f"inside the {machine[at - 1]}"
        return f"{degree} {inside if at else f'across {_plural(machine[0])}'}"
    if len(levels) == len(machine) == 1:
        return degree
    places = " x ".join(_instances(level, ways) for level, ways in levels.items())
    return f"{degree} = {places}"


def _plural(level: str) -> str:
    return _instances(level, 2).removeprefix("2 ")


def _instances(level: str, count: int) -> str:
    """Some instances of a level, in words.

    >>> _instances("gpu", 4), _instances("process", 2), _instances("nvlink", 1)
    ('4 GPUs', '2 processes', '1 nvlink')
    """
    name = level.upper() if level in ("cpu", "gpu") else level
    return counted(count, f"{name}e" if count > 1 and name.endswith(("s", "x")) else name)


def _shares(plan: Plan) -> dict[Layout, dict[str, float]]:
    """For each row of axes, one for every factor, the units and their shares of the work."""
    whole = sum(map(work, plan.units))
    positions = _positions(plan.graph)
    shares: dict[Layout, dict[str, float]] = {}
    for number, unit in enumerate(plan.units):
        kind = Layout(_named(unit, plan.layout[unit.name], positions.get(number)))
        # A graph that computes nothing, as of copies, counts its units.
        share = work(unit) / whole if whole else 1 / len(plan.units)
        shares.setdefault(kind, {})[unit.name] = share
    return shares


@once
def _positions(graph: OperatorGraph) -> Mapping[int, int]:
    """For each unit that cuts positions of a sequence the split that does, both by number."""
    return sequence_splits(units(graph))


def _named(unit: OpGroup, layout: Layout, positions: int | None) -> tuple[str, ...]:
    """The axis of each factor, as far as one unit tells it."""
    roles = {split.name: AXIS[split.role] for split in unit.splits}
    roles |= {name: axis for name, axis in BY_NAME.items() if name in roles}
    if positions is not None:
        roles[unit.splits[positions].name] = SEQUENCE
    if unit.samples is not None:
        roles |= dict.fromkeys([role for role in roles if roles[role] == SAMPLE], "attribute")
        roles[unit.splits[unit.samples].name] = SAMPLE
    return tuple(IDLE if role.startswith(IDLE) else roles.get(role, role) for role in layout.roles)


def _axes(named: Layout, plan: Plan) -> Axes:
    """The axes of a row, by level."""
    places = list(zip(*(layout.coordinates() for layout in plan.layout.values()), strict=True))
    axes: Axes = {}
    for role, factor, seats in zip(named.roles, plan.factors, places, strict=True):
        axis = role
        if role == IDLE:
            axis = STAGE if len(set(seats)) > 1 else UNUSED
        level = plan.cluster.levels[factor.level].name
        levels = axes.setdefault(axis, {})
        levels[level] = levels.get(level, 1) * factor.size
    order = (STAGE, SAMPLE, SEQUENCE, "attribute", EXPERTS, "parameter", REPLICA, UNUSED)
    return {axis: axes[axis] for axis in order if axis in axes}


def describe_layout(plan: Plan, unit: OpGroup, layout: Layout) -> str:
    """One layout of a unit of a plan in the field's words."""
    number = [group.name for group in plan.units].index(unit.name)
    named = _named(unit, layout, _positions(plan.graph).get(number))
    levels = plan.cluster.level_names
    axes = _axes(Layout(named), plan).items()
    return ", ".join(describe_axis(*axis, levels) for axis in axes) or "one device"


def _again(plan: Plan) -> float:
    """The share of the work that is replicated along some factor along which most of it is."""
    copied = [f for f, share in enumerate(_copied(plan)) if share > MOST]
    whole = sum(map(work, plan.units))
    twice = (
        work(unit)
        for unit in plan.units
        if any(plan.layout[unit.name].roles[f] == REPLICA for f in copied)
    )
    return sum(twice) / whole if whole and copied else float(bool(copied))


def _copied(plan: Plan) -> list[float]:
    """For each factor the share of the work that is replicated along it; of a graph that computes
    nothing, of units.
    """
    whole = sum(map(work, plan.units))
    shares = [work(unit) / whole if whole else 1 / len(plan.units) for unit in plan.units]
    layouts = [plan.layout[unit.name].roles for unit in plan.units]
    return [
        math.fsum(
            share for share, roles in zip(shares, layouts, strict=True) if roles[f] == REPLICA
        )
        for f in range(len(plan.factors))
    ]


def _enough(plan: Plan) -> dict[str, int]:
    """The sizes of the machine without the factors along which most of the work is replicated, if
    any.
    """
    copied = [share > MOST for share in _copied(plan)]
    if not any(copied):
        return {}
    sizes = {level.name: level.cardinality for level in plan.cluster.levels}
    for factor, alike in zip(plan.factors, copied, strict=True):
        if alike:
            sizes[plan.cluster.levels[factor.level].name] //= factor.size
    return sizes


def _devices(plan: Plan) -> int:
    """How many devices some unit sits on."""
    seats = {layout.coordinates() for layout in plan.layout.values()}
    factors = range(len(plan.factors))
    sizes = [factor.size for factor in plan.factors]
    apart = [any(seat[f] is not None for seat in seats) for f in factors]

    def coordinates(at: int | None, f: int) -> Sequence[int]:
        if at is not None:
            return (at,)
        # Where no unit sits at one coordinate, one stands for all.
        return range(sizes[f]) if apart[f] else range(1)

    taken = {position for seat in seats for position in product(*map(coordinates, seat, factors))}
    return len(taken) * math.prod(sizes[f] for f in factors if not apart[f])
