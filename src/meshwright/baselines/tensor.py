"""Megatron's column- and row-parallel layers (TP), found from how a graph is wired. Enters: units.
Leaves: for each unit that takes part, the number of its split.

A linear layer is cut along its outputs ("channel") if all that reads it can take the pieces as they
come, operator after operator, until a second linear layer sums over them ("inner") and gives back
as many features as the first one took: one sum in the forward pass, one in the backward pass.
Queries, keys and values up to the projection of their attention are found in this way, and both
halves of a feed-forward block; what a norm reads is not.

A head (`head_splits`) is cut along its outputs too, and so is all up to the loss, of which every
device has the terms of its classes: vocabulary-parallel cross-entropy.

Where queries, keys and values come out of one product and are cut apart afterwards, the pieces do
not fit the heads: product and attention are cut each by itself, and what lies between is gathered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from meshwright.baselines.roles import follower, named_split
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.sharding.states import State
from meshwright.sharding.unit import Member, OpGroup

ATTENTION, EXPERTS = "scaled_dot_product_attention", "routed_experts"


def tensor_splits(graph: OperatorGraph, parts: Sequence[OpGroup]) -> dict[int, int]:
    """The units that are cut inside layers, with their splits, both by number."""
    wiring = _Wiring(graph, parts)
    splits: dict[int, int] = {}
    for number in range(len(parts)):
        if wiring.is_linear(number) and number not in splits:
            splits |= wiring.path(number, "channel")
    for number, unit in enumerate(parts):
        if unit.members[0].call.kind == ATTENTION and number not in splits:
            path = wiring.path(number, "head")
            if path:
                splits |= path | wiring.linears_before(number)
        inner = named_split(unit, "inner")
        if unit.members[0].call.kind == EXPERTS and inner is not None:
            splits[number] = inner
    return splits


def head_splits(graph: OperatorGraph, parts: Sequence[OpGroup]) -> dict[int, int]:
    """The units from the last linear layer to the loss, with their splits along classes."""
    wiring = _Wiring(graph, parts)
    for number in reversed(range(len(parts))):
        if wiring.is_linear(number):
            return wiring.path(number, "channel", to_loss=True)
    return {}


class _Wiring:
    """Who makes and who reads what, by the numbers of units."""

    def __init__(self, graph: OperatorGraph, parts: Sequence[OpGroup]) -> None:
        self._parts, self._graph = parts, graph
        self._parameters = {parameter.tensor.name for parameter in graph.parameters}
        self._maker: dict[str, int] = {}
        self._readers: dict[str, list[int]] = defaultdict(list)
        for number, unit in enumerate(parts):
            self._maker.update((boundary.tensor, number) for boundary in unit.outputs)
            for boundary in unit.inputs:
                self._readers[boundary.tensor].append(number)

    def is_linear(self, number: int) -> bool:
        """Whether a unit begins with a product with a weight."""
        unit = self._parts[number]
        cuts = {"channel", "inner"} <= {split.name for split in unit.splits}
        return cuts and self._reads_parameters(number)

    def path(self, first: int, name: str, *, to_loss: bool = False) -> dict[int, int]:
        """The splits from a unit to the linear layers that sum over its pieces, or to the loss; or
        nothing.
        """
        start = named_split(self._parts[first], name)
        if start is None:
            return {}
        splits, cut = {first: start}, dict(self._made(first, start))
        waiting = {reader for tensor in cut for reader in self._readers[tensor]}
        while waiting:
            # In the order of the graph, so that all that a unit reads is known.
            number = min(waiting)
            waiting.remove(number)
            split = follower(self._parts[number], cut)
            if split is None:
                return {}
            splits[number] = split
            if to_loss and self._makes_loss(number):
                return {} if waiting else splits
            if self.is_linear(number):
                if to_loss or not self._closes(first, number, split):
                    return {}
                continue
            states = self._made(number, split)
            if any(state < 0 for state in states.values()):
                return {}
            cut |= states
            waiting.update(reader for tensor in states for reader in self._readers[tensor])
        return splits if any(map(self.is_linear, splits.keys() - {first})) else {}

    def linears_before(self, number: int) -> dict[int, int]:
        """The linear layers that a unit reads, directly or after operators without parameters."""
        splits: dict[int, int] = {}
        waiting = [number]
        while waiting:
            for boundary in self._parts[waiting.pop()].inputs:
                maker = self._maker.get(boundary.tensor)
                if maker is None:
                    continue
                channel = named_split(self._parts[maker], "channel")
                if self.is_linear(maker) and channel is not None:
                    splits[maker] = channel
                elif not self._reads_parameters(maker):
                    waiting.append(maker)
        return splits

    def _makes_loss(self, number: int) -> bool:
        """Whether a unit ends with the loss, which nobody reads."""
        outputs = {name for member in self._parts[number].members for name in self._outputs(member)}
        return self._graph.loss in outputs

    def _outputs(self, member: Member) -> list[str]:
        return [tensor.name for tensor in self._graph.named[member.operator].outputs]

    def _made(self, number: int, split: int) -> dict[str, State]:
        return {
            boundary.tensor: boundary.forward[split] for boundary in self._parts[number].outputs
        }

    def _reads_parameters(self, number: int) -> bool:
        return any(boundary.tensor in self._parameters for boundary in self._parts[number].inputs)

    def _closes(self, first: int, last: int, split: int) -> bool:
        """Whether a linear layer sums over pieces, to as many features as the first unit took."""
        taken = {dim.name: dim.extent for dim in self._parts[first].splits}
        produced = {dim.name: dim.extent for dim in self._parts[last].splits}
        summed = self._parts[last].splits[split].name == "inner"
        return summed and taken.get("inner", produced["channel"]) == produced["channel"]
