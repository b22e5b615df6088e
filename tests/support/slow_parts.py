"""How many bytes of a problem's tensors each device has, tensor by tensor: a slow twin of
`simulate.memory.shard_bytes`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

from meshwright.cost.memory import LIBRARY, STATES, UPDATE
from meshwright.graph.counts import view_bases
from meshwright.graph.families import family_of
from meshwright.graph.operator_graph import ITEM_BYTES, Call, Operator
from meshwright.lower.bundles import EdgeProducer
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import PARTIAL, State
from meshwright.sharding.unit import SAMPLE, Member, OpGroup
from meshwright.simulate.collective_table import COMPUTE
from meshwright.simulate.memory.shard_bytes import ResidentBytes
from meshwright.simulate.problem import StepModel
from meshwright.simulate.resources import subcube
from support.slow_layers import recomputed


class Parts:
    """What devices hold of a problem's tensors under given roles."""

    def __init__(self, problem: StepModel, roles: Codes) -> None:
        self.problem, self.roles = problem, roles
        count = len(problem.units)
        self.kept = [0.0] * count
        """For each unit what it keeps from its forward to its backward pass."""
        self.rerun = [0.0] * count
        """For each unit what it has again when its layer runs again."""
        self.forward, self.backward = [0.0] * count, [0.0] * count
        """For each unit what passes inside of it, in each pass."""
        self.parameters = [0.0] * count
        """For each unit its part of the parameters that lie with it."""
        self.optimizer = [0.0] * count
        self.gradients: dict[str, float] = {}
        """Of each parameter, before gradients are summed over devices."""
        self.summed: dict[str, float] = {}
        """The same afterwards."""
        self.update = [0.0] * count
        self.fetched: dict[str, float] = {}
        """What comes besides when a sharded parameter is put together."""
        """For each unit what the optimizer holds on the way."""
        self._kept: set[str] = set()
        """The roots that some unit keeps."""
        self._roots = view_bases(problem.graph)
        self._layer_of = recomputed(problem.graph, problem.options)
        """The layers that run again, by the names of their operators."""
        self._together: dict[object, list[int]] = defaultdict(list)
        for number, unit in enumerate(problem.units):
            self._together[self._layer_of.get(unit.name)].append(number)
        self._operators = {operator.name: operator for operator in problem.graph.operators}
        self._maker = {t: n for n, unit in enumerate(problem.units) for t in self._made(unit)}
        self._weigh()
        self._weigh_parameters()

    def devices(self) -> Iterator[tuple[str, list[int]]]:
        """Every device that stands for its class, with the units that work on it."""
        places = self.problem.places
        cubes = [int(subcube(unit_roles, places.radix)) for unit_roles in self.roles]
        inside = [
            set(places.set_resource[places.set_start[cube] : places.set_start[cube + 1]].tolist())
            for cube in cubes
        ]
        for resource, kind in enumerate(places.kind):
            if kind == COMPUTE:
                yield (
                    places.names[resource],
                    [unit for unit, resources in enumerate(inside) if resource in resources],
                )

    def standing(self, units: list[int]) -> ResidentBytes:
        """What a device holds all the time."""
        return ResidentBytes(
            parameters=sum(self.parameters[unit] for unit in units),
            optimizer=sum(self.optimizer[unit] for unit in units),
            inputs=self._inputs,
            libraries=LIBRARY,
        )

    def layer_of(self, unit: int) -> list[int]:
        """The units of the layer with which a unit runs again; all that run once if it does."""
        return self._together[self._layer_of.get(self.problem.units[unit].name)]

    def is_kept(self, tensor: str) -> bool:
        """Whether some unit keeps a tensor, or what it is a view of."""
        return self._roots[tensor] in self._kept

    def is_view_of_another(self, tensor: str) -> bool:
        """Whether a tensor is a view of one that another unit made."""
        return self._maker.get(self._roots[tensor]) != self._maker[tensor]

    def share(self, unit: int, source: EdgeProducer) -> float:
        """Bytes of what a unit makes, as it makes it."""
        return source.bytes / self.ways(unit, source.boundary.forward)

    def _weigh_parameters(self) -> None:
        options = self.problem.options
        for bundle in self.problem.bundles:
            if not bundle.parameters:
                continue
            for number, source in enumerate(bundle.sources):
                unit = source.maker
                consumer = next(
                    consumer for consumer in bundle.consumers if consumer.tensor == number
                )
                piece_bytes = source.bytes / self.ways(unit, source.boundary.forward)
                copies = self._copies(unit, consumer.boundary.backward)
                dtype = self.problem.graph.specs[source.name].dtype
                wide = piece_bytes * max(1.0, 4 / ITEM_BYTES[dtype])
                numbers, copy = (wide, wide) if options.mixed else (piece_bytes, 0.0)
                rows = self._rows(unit, source)
                sharded = options.zero and source.trained
                cut = rows / math.ceil(rows / copies) if sharded else 1.0
                whole = options.zero < 3
                self.parameters[unit] += piece_bytes if whole else piece_bytes / cut
                self.fetched[source.name] = 0.0 if whole else piece_bytes - piece_bytes / cut
                self.gradients[source.name] = piece_bytes if source.trained else 0.0
                self.summed[source.name] = 0.0
                if source.trained:
                    self.summed[source.name] = piece_bytes / cut
                    state = STATES[options.optimizer] * numbers + copy
                    self.optimizer[unit] += state / cut
                    self.update[unit] += UPDATE[options.optimizer] * numbers / cut

    def _rows(self, unit: int, source: EdgeProducer) -> int:
        """Rows of the largest piece of a parameter, which are what ZeRO deals to devices."""
        shape = list(self.problem.graph.specs[source.name].shape)
        for split, state in enumerate(source.boundary.forward):
            if state >= 0:
                shape[state] = math.ceil(shape[state] / self._degree(unit, split))
        graph = self.problem.graph
        if any(
            parameter.stacked
            for parameter in graph.parameters
            if parameter.tensor.name == source.name
        ):
            return shape[0] * shape[1]
        return next((size for size in shape if size > 1), 1)

    @cached_property
    def _inputs(self) -> float:
        """Buffers, and the share of the inputs that the samples of a device take."""
        graph, micro = self.problem.graph, self.problem.options.micro_batches
        ways = max(
            (self._sample_ways(number, unit) for number, unit in enumerate(self.problem.units)),
            default=1,
        )
        fed = sum(tensor.spec.bytes for tensor in graph.inputs)
        return sum(tensor.spec.bytes for tensor in graph.buffers) + fed / ways / micro

    def _sample_ways(self, number: int, unit: OpGroup) -> int:
        samples = [s for s, split in enumerate(unit.splits) if split.name == SAMPLE]
        return self._degree(number, samples[0]) if samples else 1

    def _weigh(self) -> None:
        micro = self.problem.options.micro_batches
        seen: set[object] = set()
        pieces: list[list[tuple[Member, Operator, Call]]] = []
        for number, unit in enumerate(self.problem.units):
            degrees = {
                split: self._degree(number, split) * unit.micro_ways(split, micro)
                for split in range(len(unit.splits))
            }
            pieces.append(
                [(m, self._operators[m.operator], m.piece(degrees)) for m in unit.members]
            )
            for member, operator, piece in pieces[-1]:
                if any(member.wanted):
                    self._weigh_kept(number, member, operator, piece, seen)
        for number, unit in enumerate(self.problem.units):
            leaving = {boundary.tensor for boundary in unit.outputs}
            inside = {t for t in self._made(unit) if t not in leaving and self._roots[t] == t}
            for member, operator, piece in pieces[number]:
                self._weigh_passing(number, member, operator, piece, inside)

    def _weigh_kept(
        self, number: int, member: Member, operator: Operator, piece: Call, seen: set[object]
    ) -> None:
        """Count what a member keeps."""
        whole = self.problem.graph.specs
        saved = family_of(piece).saved(piece, member.wanted)
        specs = [(operator.inputs[i], piece.inputs[i]) for i in saved.inputs]
        specs += [(operator.outputs[i].name, piece.outputs[i]) for i in saved.outputs]
        self._keep(number, operator, None, saved.extra)
        for name, spec in specs:
            if name is None or spec is None:
                continue
            root = self._roots[name]
            key = (root, self.roles[number].tobytes())
            if root in self._maker and key not in seen:
                seen.add(key)
                share = spec.elements / max(1, whole[name].elements)
                self._keep(number, operator, root, whole[root].bytes * share)

    def _weigh_passing(
        self, number: int, member: Member, operator: Operator, piece: Call, inside: set[str]
    ) -> None:
        """Count what a member reads and makes that stays in its unit, and what it needs besides."""
        read = [
            (n, s) for n, s in zip(operator.inputs, piece.inputs, strict=True) if n in inside and s
        ]
        written = [(t.name, s) for t, s in zip(operator.outputs, piece.outputs, strict=True)]
        touched = {n: s.bytes for n, s in (*read, *written) if n in inside}
        forward = sum(size for name, size in touched.items() if name not in self._kept)
        self.forward[number] = max(self.forward[number], forward)
        if any(member.wanted):
            readers = self.problem.graph.consumers
            handed = sum(size for name, size in touched.items() if readers[name])
            backward = handed + family_of(piece).scratch(piece)
            self.backward[number] = max(self.backward[number], backward)

    def _keep(self, number: int, operator: Operator, root: str | None, size: float) -> None:
        """Count what a member keeps: as kept, or as there again when its layer runs again."""
        names = [root] if root is not None else [tensor.name for tensor in operator.outputs]
        if operator.name in self._layer_of and not self._staying.intersection(names):
            self.rerun[number] += size
            return
        self.kept[number] += size
        if root is not None:
            self._kept.add(root)

    @cached_property
    def _staying(self) -> set[str]:
        """What is read outside of the layer that makes it, and so does not come from a rerun."""
        graph = self.problem.graph
        roots = {self._roots[name] for name in graph.outputs}
        maker = {t.name: producer.name for producer in graph.operators for t in producer.outputs}
        for operator in graph.operators:
            layer = self._layer_of.get(operator.name)
            for root in {self._roots[name] for name in operator.inputs if name is not None}:
                if root in maker and self._layer_of.get(maker[root]) != layer:
                    roots.add(root)
        return roots

    def _made(self, unit: OpGroup) -> Iterator[str]:
        for member in unit.members:
            yield from (tensor.name for tensor in self._operators[member.operator].outputs)

    def _degree(self, number: int, split: int) -> int:
        return math.prod(
            factor.size
            for factor, role in zip(self.problem.factors, self.roles[number], strict=True)
            if role == split
        )

    def ways(self, number: int, states: tuple[State, ...]) -> int:
        """Into how many parts a tensor is cut, given its state under each split of a unit."""
        return math.prod(self._degree(number, s) for s, state in enumerate(states) if state >= 0)

    def _copies(self, number: int, grad_states: tuple[State, ...] | None) -> int:
        """How many devices make parts of the same gradient, of those among which ZeRO shards."""
        summed = {split for split, state in enumerate(grad_states or ()) if state == PARTIAL}
        within, copies, devices = self.problem.options.shard_within, 1, 1
        for factor, role in reversed(
            list(zip(self.problem.factors, self.roles[number], strict=True))
        ):
            devices *= factor.size
            if role in summed and (not within or devices <= within):
                copies *= factor.size
        return copies
