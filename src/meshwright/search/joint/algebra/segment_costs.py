"""Segment cost tables by boundary layouts, through variable elimination. Enters: a segment, a
variant of it. Leaves: a table in nanoseconds, [states of what enters, states of what leaves].

The variant gets a maker for what enters and a reader for what leaves: products, which can be cut
along every dim of the tensor. What the two cost by themselves is taken off again. Along a level all
factors do the same. All other units are eliminated (`variable_elimination.between`). Where gradient
sums count more or less there is a table for each, one beside the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.cost.operator import OperatorPricer
from meshwright.graph.family import Split
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter, Tensor
from meshwright.plan.options import Options
from meshwright.search.joint.algebra.graph_segments import GraphSegment
from meshwright.search.joint.coarse.layout_dp import LayoutDP, LayoutWeights
from meshwright.search.joint.request.constraints import allowed
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import factors
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE, State, made, needed
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.solvers.variable_elimination import between

SUMS = (1.0, 0.3, 0.0)
"""How much gradient sums count."""

ENTRY, EXIT = "entry~", "exit~"


class SegmentCosts:
    """Tables of the segments of one question."""

    def __init__(
        self,
        question: PlanRequest,
        options: Options,
        prices: CollectivePrices,
        operators: OperatorPricer,
    ) -> None:
        self._question, self._options = question, options
        self._prices, self._operators = prices, operators
        mesh_factors = factors(question.cluster)
        levels = range(len(question.cluster.levels))
        self._blocks = [
            tuple(f for f, x in enumerate(mesh_factors) if x.level == level) for level in levels
        ]
        self._level = [factor.level for factor in mesh_factors]
        self._alone: dict[object, tuple[Costs, Costs]] = {}

    def table(self, segment: GraphSegment, variant: OperatorGraph) -> Costs:
        """The tables of a variant, for each of SUMS, side by side."""
        tensors = segment.graph.tensors
        enters, leaves = (
            [] if name is None else [tensors[name]] for name in boundary_tensors(segment)
        )
        graph = _closed(variant, enters, leaves)
        field = self._field(graph)
        number = {unit.name: n for n, unit in enumerate(field.costing.units)}
        choices = self._choices(field)
        first = last = 0
        rows = columns = np.ones(1, np.bool_)
        for tensor in enters:
            first = number[ENTRY + tensor.name]
            choices[first], rows = self._legal(field, first, tensor, made)
        for tensor in leaves:
            last = number[EXIT + tensor.name]
            choices[last], columns = self._legal(field, last, tensor, needed)
        tables = []
        for n, sums in enumerate(SUMS):
            costs = field.graph(choices, LayoutWeights(sums=sums, together=True))
            table = between(costs, first, last)
            table = table - self._own(enters[0])[0][n][:, None] if enters else table.min(0)[None]
            table = table - self._own(leaves[0])[1][n][None] if leaves else table.min(1)[:, None]
            tables.append(np.where(rows[:, None] & columns, table, np.inf))
        return np.hstack(tables)

    def states(self, tensor: Tensor) -> Codes:
        """All states of a tensor, a dim or none for each level."""
        dims = (WHOLE, *range(len(tensor.dims)))
        rows = np.array(list(product(dims, repeat=len(self._blocks))), np.int8)
        return rows[:, self._level]

    def _own(self, tensor: Tensor) -> tuple[Costs, Costs]:
        """What the maker and the reader of a tensor cost by themselves, for each of SUMS."""
        key = (tensor.dtype, tensor.shape)
        if key not in self._alone:
            graph = _closed(OperatorGraph(name="alone", inputs=()), [tensor], [tensor])
            field = self._field(graph)
            choices = [
                self._legal(field, unit, tensor, state)[0]
                for unit, state in ((0, made), (1, needed))
            ]
            each = [field.graph(choices, LayoutWeights(sums=sums)).nodes for sums in SUMS]
            self._alone[key] = (
                np.array([nodes[0] for nodes in each]),
                np.array([nodes[1] for nodes in each]),
            )
        return self._alone[key]

    def _field(self, graph: OperatorGraph) -> LayoutDP:
        question = self._question
        may = allowed(question.constraints, question.cluster)
        costing = AdditiveCosts(
            graph, question.cluster, self._prices, self._operators, self._options, may
        )
        return LayoutDP(
            costing,
            range(len(costing.units)),
            self._options.zero,
            may.role,
            lambda _, roles: np.zeros(len(roles)),
            costing.kind,
        )

    def _choices(self, field: LayoutDP) -> list[Codes]:
        whole = np.full(len(self._level), WHOLE, np.int8)
        return [field.choices(n, whole, self._blocks) for n in range(len(field.first))]

    def _legal(
        self, field: LayoutDP, unit: int, tensor: Tensor, state: Callable[[Split, int], State]
    ) -> tuple[Codes, NDArray[np.bool_]]:
        """Roles that leave a tensor in each of its states, and which can be; copies in others."""
        states = [state(split, 0) for split in field.costing.units[unit].splits]
        roles = self._roles(states, tensor)
        # A dim of one element has no split.
        cut = np.isin(self.states(tensor), [WHOLE, *states]).all(axis=1)
        legal = field.costing.legal(unit, roles) & cut
        return np.where(legal[:, None], roles, np.int8(WHOLE)), legal

    def _roles(self, states: Sequence[State], tensor: Tensor) -> Codes:
        """The roles that leave a tensor in each of its states, copies where none does."""
        split = {state: n for n, state in enumerate(states)} | {WHOLE: WHOLE}
        dims = range(WHOLE, len(tensor.dims))
        table = np.array([split.get(dim, WHOLE) for dim in dims], np.int8)
        return table[self.states(tensor) + 1]


def boundary_tensors(segment: GraphSegment) -> tuple[str | None, str | None]:
    """The tensors whose layouts a segment's table is about: what enters and what leaves.

    A vector or a number has no layouts worth a choice.
    """
    tensors = segment.graph.tensors
    several = (
        [n for n in names if len(tensors[n].dims) > 1] for names in (segment.enters, segment.leaves)
    )
    enters, leaves = (next(iter(names), None) for names in several)
    return enters, leaves


def _closed(
    graph: OperatorGraph, enters: Sequence[Tensor], leaves: Sequence[Tensor]
) -> OperatorGraph:
    """A graph with a maker for what enters and a reader for what leaves.

    The maker could be a sum of two: so nothing else joins its unit.
    """
    inputs = [tensor for tensor in graph.inputs if tensor not in enters]
    parameters, operators = list(graph.parameters), list(graph.operators)
    outputs = [name for name in graph.outputs if name not in {leaving.name for leaving in leaves}]
    for tensor in enters:
        name, (last, size) = ENTRY + tensor.name, tensor.dims[-1]
        source = _like(tensor, f"{name}x", (*tensor.dims[:-1], ("two", 2)))
        weight = _like(tensor, f"{name}w", ((last, size), ("two", 2)))
        inputs.append(source)
        parameters.append(Parameter(tensor=weight))
        operators.insert(0, _product(name, source, weight, tensor))
    for tensor in leaves:
        name, (last, size) = EXIT + tensor.name, tensor.dims[-1]
        weight = _like(tensor, f"{name}w", (("one", 1), (last, size)))
        result = _like(tensor, f"{name}y", (*tensor.dims[:-1], ("one", 1)))
        parameters.append(Parameter(tensor=weight))
        operators.append(_product(name, tensor, weight, result))
        outputs.append(result.name)
    return msgspec.structs.replace(
        graph,
        inputs=tuple(inputs),
        parameters=tuple(parameters),
        operators=tuple(operators),
        outputs=tuple(outputs),
    )


def _like(tensor: Tensor, name: str, dims: tuple[tuple[str, int], ...]) -> Tensor:
    return Tensor(name=name, dtype=tensor.dtype, dims=dims)


def _product(name: str, x: Tensor, weight: Tensor, result: Tensor) -> Operator:
    return Operator(name=name, kind="linear", inputs=(x.name, weight.name), outputs=(result,))
