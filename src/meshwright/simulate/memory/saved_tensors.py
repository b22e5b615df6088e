"""Saved tensors: what autograd keeps for the backward pass. Enters: a graph. Leaves: an
`SavedTensors`; found once for each graph, since no plan changes it.

A tensor that is a view is what it looks at, its root. Only roots that some unit makes count: what
enters the graph is there anyway.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.once import once
from meshwright.cluster.rates import Software
from meshwright.graph.counts import view_bases
from meshwright.graph.families import family_of
from meshwright.graph.layers import layer_of
from meshwright.graph.operator_graph import ITEM_BYTES, Call, Operator, OperatorGraph, Spec
from meshwright.sharding.unit import Member, OpGroup
from meshwright.sharding.units import units
from meshwright.simulate.operator_table import MOST_SPLITS
from meshwright.simulate.tasks import Flags, Indices, Ints

FOREIGN = -1
"""In place of a root: no unit makes it."""


class HandledTensors(NamedTuple):
    """What a member handles: its inputs, then its outputs, each called a slot."""

    flows: bool
    """Whether it has a backward pass."""
    root: tuple[int, ...]
    """[slots] the number of the root, or FOREIGN."""
    again: tuple[bool, ...]
    """[slots] whether it comes back when the layer runs again, if layers do."""
    extra_again: bool
    """The same of what the member keeps besides tensors."""
    inside: tuple[tuple[int, int, bool], ...]
    """The slots of what never leaves the unit, with the root and whether somebody reads it."""


class SavedTensors(NamedTuple):
    """The members of all units, the roots, and what passes between units."""

    handled: tuple[tuple[HandledTensors, ...], ...]
    """For each unit and member."""
    kind: tuple[int, ...]
    """[units] equal numbers for units whose members run equal calls and are cut alike."""
    root_bytes: tuple[int, ...]
    layer: Indices
    """[units] the layer with which a unit runs again; units outside of layers share one number."""
    passed_root: Indices
    """[tensors that leave a unit] the root, or FOREIGN."""
    passed_view: Flags
    """[tensors that leave a unit] whether it is a view of one that another unit made."""
    passed_back: Flags
    """[tensors that leave a unit] whether it has a gradient."""


class PieceBytes(NamedTuple):
    """What a piece of a member takes."""

    extra: int
    """Bytes that it keeps besides tensors."""
    kept: tuple[tuple[int, float], ...]
    """The slots that it keeps, each with the share of the whole."""
    bytes: tuple[int | None, ...]
    """[slots] None for an input that is absent."""
    scratch: int
    """Bytes that its backward pass needs besides."""


LOSS = "cross_entropy_loss"

SCORE_BYTES = 2.5
"""What attention that is not fused keeps of each score, in elements: the softmax, what dropout left
of it, and its mask of a byte (Korthikanti et al. 2022, section 4.1: 5 bytes in 16 bits)."""


def _beside(call: Call, software: Software) -> tuple[int, int]:
    """What a framework keeps of a call, and needs in its backward pass, beside its family's."""
    first = call.inputs[0]
    if first is None:
        return 0, 0
    if call.kind == "scaled_dot_product_attention" and not software.flash:
        keys, out = call.inputs[1], call.outputs[0]
        assert keys is not None
        scores = out.elements // out.shape[-1] * keys.shape[-2]
        return round(SCORE_BYTES * scores * ITEM_BYTES[out.dtype]), 0
    if call.kind == LOSS and software.wide and ITEM_BYTES[first.dtype] == 2:
        # A copy of the scores, and log-probabilities of 4 bytes instead of 2.
        return 6 * first.elements, 2 * first.elements
    return 0, 0


def piece_bytes_of(member: Member, degrees: tuple[int, ...], software: Software) -> PieceBytes:
    """A member whose unit's splits are cut so many ways."""
    # Compiled code knows of more splits than a unit may have; those are not cut.
    cut = dict(zip(range(len(member.splits)), degrees, strict=False))
    piece, flows = member.piece(cut), any(member.wanted)
    whole: tuple[Spec | None, ...] = (*member.call.inputs, *member.call.outputs)
    cut_specs: tuple[Spec | None, ...] = (*piece.inputs, *piece.outputs)
    family, kept, extra = family_of(piece), [], 0
    if flows:
        saved = family.saved(piece, member.wanted)
        share = 1.0 if piece.kind == LOSS else software.keeps
        extra = round(share * saved.extra)
        slots = (*saved.inputs, *(len(piece.inputs) + index for index in saved.outputs))
        for slot in slots:
            part, all_of_it = cut_specs[slot], whole[slot]
            if part is not None and all_of_it is not None:
                kept.append((slot, share * part.elements / max(1, all_of_it.elements)))
    sizes = tuple(None if spec is None else int(spec.bytes) for spec in cut_specs)
    if not flows:
        return PieceBytes(0, (), sizes, 0)
    more, scratch = _beside(piece, software)
    return PieceBytes(extra + more, tuple(kept), sizes, family.scratch(piece) + scratch)


@once
def piece_bytes_cache(
    graph: OperatorGraph, software: Software
) -> dict[tuple[int, tuple[int, ...]], tuple[PieceBytes, ...]]:
    """The pieces of units that were cut so far, by the kind of the unit and the degrees."""
    return {}


@once
def micro_ways(graph: OperatorGraph, micro_batches: int) -> Ints:
    """[units, splits] how many ways micro-batches cut a split."""
    ways = np.ones((len(units(graph)), MOST_SPLITS), np.int64)
    for number, unit in enumerate(units(graph)):
        for split in range(len(unit.splits)):
            ways[number, split] = unit.micro_ways(split, micro_batches)
    return ways


@once
def inventory(graph: OperatorGraph) -> SavedTensors:
    """What the members of all units handle."""
    return _Draft(graph).finished()


class _Draft:
    """The roots and layers of a graph."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.graph, self.units = graph, units(graph)
        self.operators = {operator.name: operator for operator in graph.operators}
        self.roots, self.layers = view_bases(graph), layer_of(graph)
        self.maker = {
            tensor.name: number
            for number, unit in enumerate(self.units)
            for member in unit.members
            for tensor in self.operators[member.operator].outputs
        }
        produced = dict.fromkeys(root for t in self.maker if (root := self.roots[t]) in self.maker)
        self.number = {root: number for number, root in enumerate(produced)}
        self.staying = self._staying()

    def _staying(self) -> set[str]:
        """What is read outside of the layer that makes it, and so does not come from a rerun."""
        staying = {self.roots[name] for name in self.graph.outputs}
        maker = {
            t.name: producer.name for producer in self.graph.operators for t in producer.outputs
        }
        for operator in self.graph.operators:
            layer = self.layers.get(operator.name)
            for root in {self.roots[name] for name in operator.inputs if name is not None}:
                if root in maker and self.layers.get(maker[root]) != layer:
                    staying.add(root)
        return staying

    def finished(self) -> SavedTensors:
        layers = [self.layers.get(unit.name) for unit in self.units]
        number_of = {layer: number for number, layer in enumerate(dict.fromkeys(layers))}
        boundaries = [boundary for unit in self.units for boundary in unit.outputs]
        passed = [boundary.tensor for boundary in boundaries]
        roots = [self.roots[name] for name in passed]
        views = [
            self.maker.get(root) != self.maker[name]
            for name, root in zip(passed, roots, strict=True)
        ]
        return SavedTensors(
            handled=tuple(tuple(self._handled(unit)) for unit in self.units),
            kind=tuple(self._kinds()),
            root_bytes=tuple(int(self.graph.specs[root].bytes) for root in self.number),
            layer=np.array([number_of[layer] for layer in layers], np.int32),
            passed_root=np.array([self.number.get(r, FOREIGN) for r in roots], np.int32),
            passed_view=np.array(views, np.bool_),
            passed_back=np.array(
                [boundary.backward is not None for boundary in boundaries], np.bool_
            ),
        )

    def _kinds(self) -> list[int]:
        numbers: dict[object, int] = {}
        alike = (tuple((m.call, m.wanted, m.splits) for m in unit.members) for unit in self.units)
        return [numbers.setdefault(signature, len(numbers)) for signature in alike]

    def _handled(self, unit: OpGroup) -> list[HandledTensors]:
        leaving = {boundary.tensor for boundary in unit.outputs}
        operators = [self.operators[member.operator] for member in unit.members]
        inside = {
            t.name for operator in operators for t in operator.outputs if t.name not in leaving
        }
        inside = {name for name in inside if self.roots[name] == name}
        return [
            self._of_member(member, operator, inside)
            for member, operator in zip(unit.members, operators, strict=True)
        ]

    def _of_member(self, member: Member, operator: Operator, inside: set[str]) -> HandledTensors:
        names = (*operator.inputs, *(tensor.name for tensor in operator.outputs))
        roots = [None if name is None else self.roots[name] for name in names]
        repeated = operator.name in self.layers
        produced = {tensor.name for tensor in operator.outputs}
        return HandledTensors(
            flows=any(member.wanted),
            root=tuple(FOREIGN if r is None else self.number.get(r, FOREIGN) for r in roots),
            again=tuple(repeated and root not in self.staying for root in roots),
            extra_again=repeated and not self.staying & produced,
            inside=tuple(
                (slot, self.number[name], bool(self.graph.consumers[name]))
                for slot, name in enumerate(names)
                if name is not None and name in inside
            ),
        )
