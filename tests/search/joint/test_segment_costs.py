"""The table of a segment against brute force over all layouts of its units."""

from __future__ import annotations

from functools import cache
from itertools import product

import msgspec
import numpy as np
import pytest

from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import Operator, OperatorGraph, Parameter, Tensor
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.search.joint.algebra.graph_segments import GraphSegment
from meshwright.search.joint.algebra.segment_costs import SUMS, SegmentCosts
from meshwright.search.joint.coarse.layout_dp import LayoutDP, LayoutWeights
from meshwright.search.joint.request.question import PlanRequest
from meshwright.sharding.layout import MeshFactor, factors, layouts
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.additive import AdditiveCosts
from meshwright.simulate.additive_costs import Costs
from meshwright.simulate.collective_table import CollectivePrices
from meshwright.simulate.problem import codes_of

CLUSTERS = {
    "2x2": Cluster.named("flexflow-p100", node=2, gpu=2),
    "1x4": Cluster.named("dgx-a100", node=1, gpu=4),
    "3": Cluster.named("flexflow-p100", node=1, gpu=3),
}


@cache
def tables(name: str) -> tuple[CollectivePrices, OperatorPricer]:
    machine = CLUSTERS[name]
    return CollectivePrices(Pricer(machine, algorithm="best")), OperatorPricer(machine.device)


def segment(text: str, enters: tuple[str, ...], leaves: tuple[str, ...]) -> GraphSegment:
    return GraphSegment(graph=parse_graph(text), enters=enters, leaves=leaves, alike=0)


MIDDLE = segment(
    """graph middle
    input x: float32[n=12, d=8]
    parameter v: float32[o=6, i=8]
    parameter w: float32[o=4, i=6]
    operator a: a: float32[n=12, d=6] = linear(x, v)
    operator b: b: float32[n=12, d=6] = relu(a)
    operator c: c: float32[n=12, d=4] = linear(b, w)
    output c""",
    ("x",),
    ("c",),
)
FORK = segment(
    """graph fork
    input x: float32[n=12, d=6]
    parameter v: float32[o=6, i=6]
    operator a: a: float32[n=12, d=6] = linear(x, v)
    operator b: b: float32[n=12, d=6] = add(a, x)
    output b""",
    ("x",),
    ("b",),
)
"""What enters is read twice."""
RELU = segment(
    """graph relu
    input x: float32[n=12, d=6]
    operator b: b: float32[n=12, d=6] = relu(x)
    output b""",
    ("x",),
    ("b",),
)
"""Nothing that begins a unit by itself, had what enters not been made by another one."""
SPACE = segment(
    """graph space
    input x: float32[n=4, s=6, d=8]
    parameter v: float32[o=6, i=8]
    operator a: a: float32[n=4, s=6, d=6] = linear(x, v)
    output a""",
    ("x",),
    ("a",),
)
"""Tensors of three dims."""
HEAD = segment(
    """graph head
    input ids: int64[n=12]
    parameter w: float32[v=10, d=6]
    parameter v: float32[o=6, i=6]
    operator a: a: float32[n=12, d=6] = embedding(w, ids)
    operator b: b: float32[n=12, d=6] = linear(a, v)
    output b""",
    (),
    ("b",),
)
TAIL = segment(
    """graph tail
    input x: float32[n=12, d=6]
    input t: int64[n=12]
    parameter v: float32[o=4, i=6]
    operator a: a: float32[n=12, d=4] = linear(x, v)
    operator l: l: float32[] = cross_entropy_loss(a, t)
    output l
    loss l""",
    ("x",),
    (),
)
ALONE = segment(
    """graph alone
    input x: float32[n=12, d=6]
    parameter v: float32[o=4, i=6]
    operator a: a: float32[n=12, d=4] = linear(x, v)
    output a""",
    (),
    (),
)
SEGMENTS = (MIDDLE, FORK, RELU, SPACE, HEAD, TAIL, ALONE)


def closed(segment: GraphSegment) -> OperatorGraph:
    """A product makes what enters, another reads what leaves; what they cost is taken off."""
    graph = segment.graph
    inputs = [t for t in graph.inputs if t.name not in segment.enters]
    parameters, operators = list(graph.parameters), list(graph.operators)
    outputs = [name for name in graph.outputs if name not in segment.leaves]
    for name in segment.enters:
        tensor = graph.tensors[name]
        source = Tensor(name="in", dtype="float32", dims=(*tensor.dims[:-1], ("i", 3)))
        weight = Tensor(name="in.w", dtype="float32", dims=(("o", tensor.shape[-1]), ("i", 3)))
        inputs, parameters = [*inputs, source], [*parameters, Parameter(tensor=weight)]
        maker = Operator(name="in", kind="linear", inputs=("in", "in.w"), outputs=(tensor,))
        operators.insert(0, maker)
    for name in segment.leaves:
        tensor = graph.tensors[name]
        weight = Tensor(name="out.w", dtype="float32", dims=(("one", 1), ("i", tensor.shape[-1])))
        result = Tensor(name="out", dtype="float32", dims=(*tensor.dims[:-1], ("one", 1)))
        parameters.append(Parameter(tensor=weight))
        read = Operator(name="out", kind="linear", inputs=(name, "out.w"), outputs=(result,))
        operators.append(read)
        outputs.append("out")
    return msgspec.structs.replace(
        graph,
        inputs=tuple(inputs),
        parameters=tuple(parameters),
        operators=tuple(operators),
        outputs=tuple(outputs),
    )


class Slow:
    """All layouts of a closed segment, a role for each level."""

    def __init__(self, segment: GraphSegment, cluster: str, options: Options) -> None:
        self.segment, self.cluster = segment, CLUSTERS[cluster]
        self.graph = closed(segment)
        costing = AdditiveCosts(self.graph, self.cluster, *tables(cluster), options)
        self.costing, self.options = costing, options
        alone = range(len(costing.units))
        self.field = LayoutDP(
            costing,
            alone,
            options.zero,
            lambda *_: True,
            lambda _, roles: np.zeros(len(roles)),
            costing.kind,
        )
        self.rows = [self._rows(unit, factors(self.cluster)) for unit in costing.units]

    def _rows(self, unit: OpGroup, factors: tuple[MeshFactor, ...]) -> list[Codes]:
        every = layouts(unit.extents, self.cluster, symmetric=False)
        kept = []
        for layout in every:
            by_level = [{r for r, f in zip(layout.roles, factors, strict=True) if f.level == level}
                        for level in range(len(self.cluster.levels))]  # fmt: skip
            alike = all(len(roles) <= 1 and "@" not in "".join(roles) for roles in by_level)
            if alike and self._large_enough(unit, layout.degrees(factors)):
                kept.append(layout)
        return list(codes_of([unit] * len(kept), kept, len(factors)))

    def _large_enough(self, unit: OpGroup, degrees: dict[str, int]) -> bool:
        micro = self.options.micro_batches
        return all(
            unit.cuttable(n, degrees.get(split.name, 1) * unit.micro_ways(n, micro))
            for n, split in enumerate(unit.splits)
        )

    def table(self, sums: float) -> dict[tuple[object, object], float]:
        """The least cost for each pair of states, besides that of the two at the boundaries."""
        names = [unit.name for unit in self.costing.units]
        costs: dict[tuple[object, object], float] = {}
        weights = LayoutWeights(sums=sums, together=True)
        for chosen in product(*self.rows):
            cost = self.field.cost(np.array(chosen), weights)
            ends: list[object] = [None, None]
            for side, (name, tensors) in enumerate(
                (("in", self.segment.enters), ("out", self.segment.leaves))
            ):
                if tensors:
                    number = names.index(name)
                    cost -= self._own(number, chosen[number], sums)
                    ends[side] = self._state(number, tensors[0], chosen[number])
            key = ends[0], ends[1]
            costs[key] = min(costs.get(key, np.inf), cost)
        return costs

    def _own(self, unit: int, row: Codes, sums: float) -> float:
        costs = self.costing.unit(unit, row[None], self.options.zero)
        passes = self.options.micro_batches * float(costs.forward[0] + costs.backward[0])
        return passes + sums * float(costs.sums[0]) + float(costs.update[0])

    def _state(self, unit: int, tensor: str, row: Codes) -> tuple[int, ...]:
        group = self.costing.units[unit]
        boundary = next(p for p in (*group.inputs, *group.outputs) if p.tensor == tensor)
        return tuple(int(boundary.forward[role]) if role >= 0 else WHOLE for role in row)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("own", SEGMENTS, ids=lambda segment: segment.graph.name)
@pytest.mark.parametrize("options", [Options(), Options(zero=1, micro_batches=2)], ids=["", "z"])
def test_a_table_is_what_brute_force_finds(
    own: GraphSegment, cluster: str, options: Options
) -> None:
    if cluster == "2x2" and own in (SPACE, MIDDLE):
        pytest.skip("too many layouts to try")
    question = PlanRequest(graph=own.graph, cluster=CLUSTERS[cluster], memory=Bytes(1 << 40))
    boundaries = SegmentCosts(question, options, *tables(cluster))
    table = boundaries.table(own, own.graph)
    slow = Slow(own, cluster, options)
    rows = _states(boundaries, own.graph, own.enters)
    columns = _states(boundaries, own.graph, own.leaves)
    assert table.shape == (len(rows), len(SUMS) * len(columns))
    for n, sums in enumerate(SUMS):
        expected = slow.table(sums)
        part: Costs = table[:, n * len(columns) : (n + 1) * len(columns)]
        for x, y in np.ndindex(part.shape):
            least = expected.get((rows[x], columns[y]), np.inf)
            assert part[x, y] == pytest.approx(least, rel=1e-9, abs=1e-3)


def _states(
    boundaries: SegmentCosts, graph: OperatorGraph, names: tuple[str, ...]
) -> list[tuple[int, ...] | None]:
    if not names:
        return [None]
    return [tuple(map(int, row)) for row in boundaries.states(graph.tensors[names[0]])]


def test_states_are_a_dim_or_none_for_each_level() -> None:
    question = PlanRequest(graph=MIDDLE.graph, cluster=CLUSTERS["1x4"], memory=Bytes(1 << 40))
    boundaries = SegmentCosts(question, Options(), *tables("1x4"))
    states = boundaries.states(MIDDLE.graph.tensors["x"])
    assert sorted(set(map(tuple, states.tolist()))) == [(-1, -1), (0, 0), (1, 1)]
