"""What a segment costs between any two layouts of what enters and what leaves. Enters: a segment, a
variant of it. Leaves: a table in nanoseconds, [states of what enters, states of what leaves].

The variant gets a maker for what enters and a reader for what leaves: products, which can be cut
along every dim of the tensor. What the two cost by themselves is taken off again. Along a level all
factors do the same. All other units are eliminated (`elimination.between`). Where gradient sums
count more or less there is a table for each, one beside the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from meshwright.graph.model import Operator, OperatorGraph, Parameter, Tensor
from meshwright.parallelize.layout import factors
from meshwright.parallelize.reshard import Codes
from meshwright.parallelize.states import WHOLE
from meshwright.plan.model import Options
from meshwright.price.operator import OperatorPricer
from meshwright.search.additive import Costing, Costs
from meshwright.search.elimination import between
from meshwright.search.joint.constraints import allowed
from meshwright.search.joint.field import Field, Weights
from meshwright.search.joint.question import Question
from meshwright.search.joint.segments import Segment
from meshwright.simulate.prices import Prices

SUMS = (1.0, 0.3, 0.0)
"""How much gradient sums count."""

ENTRY, EXIT = "entry~", "exit~"


class Boundaries:
    """Tables of the segments of one question."""

    def __init__(
        self, question: Question, options: Options, prices: Prices, operators: OperatorPricer
    ) -> None:
        self._question, self._options = question, options
        self._prices, self._operators = prices, operators
        own = factors(question.cluster)
        levels = range(len(question.cluster.levels))
        self._blocks = [tuple(f for f, x in enumerate(own) if x.level == level) for level in levels]
        self._factors = len(own)
        self._alone: dict[object, tuple[Costs, Costs]] = {}

    def table(self, segment: Segment, variant: OperatorGraph) -> Costs:
        """The tables of a variant, for each of SUMS, side by side."""
        given = segment.graph.tensors
        enters = [given[name] for name in segment.enters if len(given[name].dims) > 1]
        leaves = [given[name] for name in segment.leaves if len(given[name].dims) > 1]
        graph = _closed(variant, enters, leaves)
        field = self._field(graph)
        number = {unit.name: n for n, unit in enumerate(field.costing.units)}
        choices = self._choices(field)
        first = last = 0
        rows = columns = np.ones(1, np.bool_)
        for tensor in enters:
            first = number[ENTRY + tensor.name]
            choices[first], rows = self._legal(field, first, tensor)
        for tensor in leaves:
            last = number[EXIT + tensor.name]
            choices[last], columns = self._legal(field, last, tensor)
        found = []
        for n, sums in enumerate(SUMS):
            costs = field.graph(choices, Weights(sums=sums, together=True))
            table = between(costs, first, last)
            table = table - self._own(enters[0])[0][n][:, None] if enters else table.min(0)[None]
            table = table - self._own(leaves[0])[1][n][None] if leaves else table.min(1)[:, None]
            found.append(np.where(rows[:, None] & columns, table, np.inf))
        return np.hstack(found)

    def states(self, tensor: Tensor) -> Codes:
        """All states of a tensor, a dim or none for each level."""
        rows = []
        for dims in product((WHOLE, *range(len(tensor.dims))), repeat=len(self._blocks)):
            row = np.full(self._factors, WHOLE, np.int8)
            for dim, block in zip(dims, self._blocks, strict=True):
                row[list(block)] = dim
            rows.append(row)
        return np.array(rows, np.int8)

    def _own(self, tensor: Tensor) -> tuple[Costs, Costs]:
        """What the maker and the reader of a tensor cost by themselves, for each of SUMS."""
        key = (tensor.dtype, tensor.shape)
        if key not in self._alone:
            graph = _closed(OperatorGraph(name="alone", inputs=()), [tensor], [tensor])
            field = self._field(graph)
            choices = [self._legal(field, unit, tensor)[0] for unit in range(2)]
            each = [field.graph(choices, Weights(sums=sums)).nodes for sums in SUMS]
            self._alone[key] = (
                np.array([own[0] for own in each]),
                np.array([own[1] for own in each]),
            )
        return self._alone[key]

    def _field(self, graph: OperatorGraph) -> Field:
        question = self._question
        may = allowed(question.constraints, question.cluster)
        costing = Costing(
            graph, question.cluster, self._prices, self._operators, self._options, may
        )
        alone = range(len(costing.units))
        return Field(costing, alone, self._options.zero, may.role, lambda _, r: np.zeros(len(r)))

    def _choices(self, field: Field) -> list[Codes]:
        whole = np.full(self._factors, WHOLE, np.int8)
        return [field.choices(n, whole, self._blocks) for n in range(len(field.first))]

    def _legal(self, field: Field, unit: int, tensor: Tensor) -> tuple[Codes, NDArray[np.bool_]]:
        """Roles that leave a tensor in each of its states, and which can be; copies in others."""
        own = field.costing.units[unit]
        # Not by ports: what reads the tensor may follow its maker, inside the same unit.
        made = own.name == ENTRY + tensor.name
        dims = [split.outputs[0] if made else split.inputs[0] for split in own.splits]
        roles = self._roles(dims, tensor)
        legal = field.costing.legal(unit, roles)
        return np.where(legal[:, None], roles, np.int8(WHOLE)), legal

    def _roles(self, dims: Sequence[int | None], tensor: Tensor) -> Codes:
        """The roles that leave a tensor in each of its states, given the dims that splits cut."""
        split = {dim: n for n, dim in enumerate(dims)} | {WHOLE: WHOLE}
        table = np.array([split[dim] for dim in range(WHOLE, len(tensor.dims))], np.int8)
        return table[self.states(tensor) + 1]


def _closed(
    graph: OperatorGraph, enters: Sequence[Tensor], leaves: Sequence[Tensor]
) -> OperatorGraph:
    """A graph with a maker for what enters and a reader for what leaves."""
    inputs = [tensor for tensor in graph.inputs if tensor not in enters]
    parameters, operators = list(graph.parameters), list(graph.operators)
    outputs = [name for name in graph.outputs if name not in {own.name for own in leaves}]
    for tensor in enters:
        name, (last, size) = ENTRY + tensor.name, tensor.dims[-1]
        given = _like(tensor, f"{name}x", (*tensor.dims[:-1], ("one", 1)))
        weight = _like(tensor, f"{name}w", ((last, size), ("one", 1)))
        inputs.append(given)
        parameters.append(Parameter(tensor=weight))
        made = Operator(
            name=name, kind="linear", inputs=(given.name, weight.name), outputs=(tensor,)
        )
        operators.insert(0, made)
    for tensor in leaves:
        name, (last, size) = EXIT + tensor.name, tensor.dims[-1]
        weight = _like(tensor, f"{name}w", (("one", 1), (last, size)))
        result = _like(tensor, f"{name}y", (*tensor.dims[:-1], ("one", 1)))
        parameters.append(Parameter(tensor=weight))
        read = Operator(
            name=name, kind="linear", inputs=(tensor.name, weight.name), outputs=(result,)
        )
        operators.append(read)
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
