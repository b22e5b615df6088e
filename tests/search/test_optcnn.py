"""OptCNN: eliminations keep the minimum, costs are a slow twin's, the whole is brute force's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.baselines import BASELINES
from meshwright.baselines.additive_graph import space
from meshwright.baselines.choices import choices
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.operator import OperatorPricer
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.lower.bundles import EdgeConsumer, TensorEdge, bundles
from meshwright.sharding.layout import Layout, factors, layouts
from meshwright.sharding.reshard import ALL_REDUCE, MOST, SHIFT, resharding
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import BoundaryTensor, OpGroup, SharedStatistics
from meshwright.sharding.units import units
from meshwright.simulate.collective_table import NANO, CollectivePrices
from meshwright.solvers.variable_elimination import CostGraph, cheapest, cost

FOUR = Cluster.named("flexflow-p100", node=2, gpu=2)
SIX = Cluster.named("flexflow-p100", node=2, gpu=3)
FLAT = Cluster.named("laptop")


@st.composite
def cost_graphs(draw: st.DrawFn, shape: str) -> CostGraph:
    """Whole costs, so that sums in any order are equal."""
    count = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 3)) for _ in range(count)]
    pairs = list(pairwise(range(count)))
    if shape == "any":
        pairs = [(i, j) for j in range(count) for i in range(j) if draw(st.booleans())]
    if shape == "branches" and count > 2:
        pairs = [(0, i) for i in range(1, count)] + [(i, count - 1) for i in range(1, count - 1)]

    def drawn(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        n = math.prod(shape)
        numbers = draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
        return np.array(numbers, np.float64).reshape(shape)

    return CostGraph(
        [drawn(size) for size in sizes],
        {(i, j): drawn(sizes[i], sizes[j]) for i, j in pairs},
    )


def brute(graph: CostGraph) -> float:
    return min(cost(graph, choice) for choice in product(*(range(len(w)) for w in graph.nodes)))


@pytest.mark.parametrize("shape", ["chain", "branches"])
@given(data=st.data())
def test_chains_and_branches_that_meet_are_exact(shape: str, data: st.DataObject) -> None:
    graph = data.draw(cost_graphs(shape))
    answer = cheapest(graph)
    assert answer.left == 0
    assert answer.cost == cost(graph, answer.choice) == brute(graph)


@given(cost_graphs("any"))
def test_what_is_left_is_told_and_never_below_the_minimum(graph: CostGraph) -> None:
    answer = cheapest(graph)
    assert answer.cost == cost(graph, answer.choice)
    assert answer.cost >= brute(graph)
    if not answer.left:
        assert answer.cost == brute(graph)


def test_four_nodes_joined_each_with_each_are_left() -> None:
    edges = {(i, j): np.zeros((2, 2)) for j in range(4) for i in range(j)}
    nodes = [np.array([0.0, 1.0])] * 3 + [np.array([1.0, 0.0])]
    assert cheapest(CostGraph(nodes, edges)) == ((0, 0, 0, 1), 0.0, 4)


def test_choices_use_all_devices_and_sum_nothing() -> None:
    (unit, *_) = units(dense(8, [(6, 4)]))
    assert list(map(str, choices(unit, FOUR))) == [
        "sample sample", "sample channel", "sample replica",
        "channel sample", "channel replica",
        "replica sample", "replica channel", "replica replica",
    ]  # fmt: skip


def test_choices_name_splits_in_the_order_of_dims() -> None:
    """A convolution lists its channels last, a normalisation second; their layouts agree."""
    conv, norm, _ = units(NORMED)
    for unit in (conv, norm):
        texts = set(map(str, choices(unit, FLAT)))
        assert "channel height" in texts
        assert "height channel" not in texts


def test_of_too_many_layouts_those_with_few_roles_are_kept() -> None:
    graph = load_model("zoo:alexnet").graph
    large = Cluster.named("flexflow-k80")
    (unit, *_) = units(graph)
    kept = choices(unit, large)
    assert len(kept) <= 400
    assert {len(set(layout.roles)) for layout in kept} == {1, 2}


def dense(batch: int, sizes: Sequence[tuple[int, int]], relu: bool = False) -> OperatorGraph:
    """Linear layers one after the other."""
    lines = ["graph dense", f"input x: float32[n={batch}, d={sizes[0][1]}]"]
    lines += [f"parameter w{i}: float32[o={o}, i={k}]" for i, (o, k) in enumerate(sizes)]
    before = "x"
    for i, (o, _) in enumerate(sizes):
        lines.append(f"operator l{i}: y{i}: float32[n={batch}, d={o}] = linear({before}, w{i})")
        before = f"y{i}"
        if relu:
            lines.append(f"operator r{i}: z{i}: float32[n={batch}, d={o}] = relu(y{i})")
            before = f"z{i}"
    return parse_graph("\n".join([*lines, f"output {before}"]))


def image(batch: int, size: int, features: int) -> OperatorGraph:
    """A convolution, whose parts read of each other, and a linear layer."""
    n, h = f"n={batch}", f"h={size}, w={size}"
    flat = 4 * size * size
    return parse_graph(
        f"""graph image
        input x: float32[{n}, c=2, {h}]
        parameter k: float32[o=4, i=2, kh=3, kw=3]
        parameter w: float32[o={features}, i={flat}]
        operator conv: c: float32[{n}, c=4, {h}] = conv2d(x, k) {{padding=[1, 1]}}
        operator flat: f: float32[{n}, d={flat}] = flatten(c) {{start_dim=1}}
        operator top: y: float32[{n}, o={features}] = linear(f, w)
        output y"""
    )


NORMED = parse_graph(
    """graph normed
    input x: float32[n=4, c=2, h=8, w=8]
    parameter k: float32[o=4, i=2, kh=3, kw=3]
    parameter s: float32[o=4]
    parameter m: float32[o=6, i=4, kh=3, kw=3]
    operator conv: c: float32[n=4, c=4, h=8, w=8] = conv2d(x, k) {padding=[1, 1]}
    operator norm: d: float32[n=4, c=4, h=8, w=8] = batch_norm(c, s) {training=true}
    operator again: e: float32[n=4, c=6, h=8, w=8] = conv2d(d, m) {padding=[1, 1]}
    output e"""
)
"""Parts of the batch sum their statistics, parts of an image read of each other."""

TIED = parse_graph(
    """graph tied
    input x: float32[n=8, d=6]
    parameter w: float32[o=6, i=6]
    operator a: a: float32[n=8, d=6] = linear(x, w)
    operator b: b: float32[n=8, d=6] = linear(a, w)
    output b"""
)
"""Two layers with one weight."""


class Slow:
    """The costs of layouts, from the definitions, one at a time."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster) -> None:
        self.parts = units(graph)
        self.bundles = bundles(graph, self.parts)
        self.factors = factors(cluster)
        self.prices = CollectivePrices(Pricer(cluster, algorithm="best"))
        self.pricer = OperatorPricer(cluster.device)

    def unit(self, number: int, layout: Layout) -> float:
        unit = self.parts[number]
        degrees = layout.degrees(self.factors)
        cut = {n: degrees.get(split.name, 1) for n, split in enumerate(unit.splits)}
        forward = backward = 0.0
        for member in unit.members:
            priced = self.pricer.price(member.piece(cut), member.wanted)
            forward += priced.forward.seconds
            backward += priced.backward.seconds
        total = float(max(1, round(forward * NANO)) + max(1, round(backward * NANO)))
        for boundary in unit.inputs:
            for n, split in enumerate(unit.splits):
                total += self._halo(unit, boundary, n, split.name, layout)
        return total

    def _halo(
        self, unit: OpGroup, boundary: BoundaryTensor, n: int, name: str, layout: Layout
    ) -> float:
        rows = boundary.halo[n] if boundary.halo else 0
        statistics = boundary.statistics[n] if boundary.statistics else None
        statistics = statistics or SharedStatistics(0, 0, 0, ())
        inside = sum(1 << f for f, role in enumerate(layout.roles) if role == name)
        if not inside:
            return 0.0
        total, others, shares = 0.0, 1, 1
        for number, split in enumerate(unit.splits):
            ways = layout.degrees(self.factors).get(split.name, 1)
            if number != n and boundary.forward[number] >= 0:
                others *= ways
            shares *= ways if number in statistics.cut_by else 1
        every = (1 << len(layout.roles)) - 1 - inside
        flows = boundary.backward is not None
        for operation, held, rounds in (
            (SHIFT, rows / others, 1 + flows),
            (
                ALL_REDUCE,
                statistics.bytes / shares,
                statistics.forward + statistics.backward * flows,
            ),
        ):
            if held:
                way = self.prices.way(operation, inside, every, held)
                total += (way.fixed + way.slope * held) * NANO * rounds
        return total

    def moved(self, layouts: Sequence[Layout]) -> float:
        total = 0.0
        for bundle in self.bundles:
            for consumer in bundle.consumers:
                source = bundle.sources[consumer.tensor]
                maker, reader = layouts[bundle.maker], layouts[consumer.unit]
                home = self._states(bundle.maker, source.boundary.forward, maker)
                read = self._states(consumer.unit, consumer.boundary.forward, reader)
                total += self._resharded(home, read, source.bytes)
                if consumer.boundary.backward is not None and source.boundary.backward is not None:
                    gradient = self._states(consumer.unit, consumer.boundary.backward, reader)
                    wanted = self._states(bundle.maker, source.boundary.backward, maker)
                    if not self._summed_at_home(bundle, consumer, layouts, home == read, gradient):
                        total += self._resharded(gradient, wanted, source.bytes)
        return total

    def _summed_at_home(
        self,
        bundle: TensorEdge,
        consumer: EdgeConsumer,
        layouts: Sequence[Layout],
        alike: bool,
        gradient: list[int],
    ) -> bool:
        """Whether a gradient of a shared weight is added to the first one before it is summed."""
        first = next(other for other in bundle.consumers if other.tensor == consumer.tensor)
        if not bundle.parameters or first.unit == consumer.unit or first.boundary.backward is None:
            return False
        return alike and gradient == self._states(
            first.unit, first.boundary.backward, layouts[first.unit]
        )

    def _states(self, unit: int, states: Sequence[int], layout: Layout) -> list[int]:
        number = {split.name: n for n, split in enumerate(self.parts[unit].splits)}
        return [states[number[role]] if role in number else WHOLE for role in layout.roles]

    def _resharded(self, source: list[int], needed: list[int], size: int) -> float:
        operation, held = np.zeros((MOST, 3), np.int64), np.zeros(MOST)
        sizes = np.array([factor.size for factor in self.factors])
        count = resharding(
            np.array(source, np.int8), np.array(needed, np.int8), sizes, float(size),
            np.zeros(len(source), np.int8), operation, held,
        )  # fmt: skip
        total = 0.0
        for n in range(count):
            kind, inside, every = operation[n].tolist()
            way = self.prices.way(kind, inside, every, float(held[n]))
            total += (way.fixed + way.slope * held[n]) * NANO
        return total


CASES = [
    (dense(8, [(6, 4)]), FOUR),
    (dense(4096, [(2048, 1024), (16, 2048)]), FOUR),
    (dense(64, [(4096, 4096), (4096, 4096)], relu=True), FOUR),
    (dense(6, [(300, 2000), (600, 300)], relu=True), SIX),
    (dense(512, [(1024, 256), (256, 1024)]), FLAT),
    (image(4, 32, 64), FOUR),
    (image(2, 64, 16), SIX),
    (TIED, SIX),
]


@pytest.mark.parametrize(
    ("graph", "cluster"), [*CASES, (NORMED, FOUR), (NORMED, SIX), (TIED, FOUR)]
)
def test_costs_are_those_of_the_slow_twin(graph: OperatorGraph, cluster: Cluster) -> None:
    fast, slow = space(graph, cluster), Slow(graph, cluster)
    sizes = [len(layouts) for layouts in fast.layouts]
    for seed in range(20):
        choice = [(7 * seed + 3 * n * seed) % size for n, size in enumerate(sizes)]
        chosen = fast.chosen(choice)
        expected = sum(slow.unit(n, layout) for n, layout in enumerate(chosen)) + slow.moved(chosen)
        assert cost(fast.costs, choice) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("graph", "cluster"), CASES)
def test_optcnn_is_brute_force(graph: OperatorGraph, cluster: Cluster) -> None:
    """Over all layouts without idle and sums, also those that exchanging factors makes equal."""
    slow = Slow(graph, cluster)
    every = []
    for unit in slow.parts:
        names = {split.name for split in unit.splits if split.role != "reduction"}
        extents = {name: extent for name, extent in unit.extents.items() if name in names}
        legal = layouts(extents, cluster, symmetric=False)
        every.append(
            [layout for layout in legal if not any(r.startswith("@") for r in layout.roles)]
        )
    nodes = [[slow.unit(n, layout) for layout in chosen] for n, chosen in enumerate(every)]
    best = math.inf
    for numbers in product(*(range(len(chosen)) for chosen in every)):
        if graph is TIED and len(set(numbers)) > 1:
            continue  # Units that share a weight are laid out alike.
        computed = sum(nodes[n][x] for n, x in enumerate(numbers))
        if computed < best:
            best = min(best, computed + slow.moved([every[n][x] for n, x in enumerate(numbers)]))
    plan = BASELINES["optcnn"](graph, cluster)
    assert plan.origin == "optcnn (exact)"
    plan_layouts = [plan.layout[unit.name] for unit in plan.units]
    total = sum(slow.unit(n, layout) for n, layout in enumerate(plan_layouts)) + slow.moved(
        plan_layouts
    )
    assert total == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("name", ["alexnet", "resnet-101", "inception-v3", "bert-large", "dlrm"])
def test_optcnn_is_exact_on_the_zoo_and_no_worse_than_data_parallelism(name: str) -> None:
    graph = load_model(f"zoo:{name}/tiny").graph
    search_space = space(graph, FOUR)
    answer = cheapest(search_space.costs)
    assert answer.left == 0
    data = BASELINES["data parallel"](graph, FOUR)
    named = zip(search_space.node, data.units, strict=True)
    choice = {
        node: search_space.layouts[node].index(data.layout[unit.name]) for node, unit in named
    }
    assert answer.cost <= cost(search_space.costs, list(choice.values()))


def test_a_graph_that_does_not_reduce_says_so() -> None:
    graph = load_model("zoo:nmt/tiny").graph
    plan = BASELINES["optcnn"](graph, FOUR)
    assert plan.origin.startswith("optcnn (beam over ")


def test_steps_of_a_layer_are_laid_out_alike() -> None:
    plan = BASELINES["optcnn"](load_model("zoo:rnntc/tiny").graph, FOUR)
    for layer in range(4):
        steps = {layout for name, layout in plan.layouts if f"layers.{layer}.lstm" in name}
        assert len(steps) == 1


@pytest.mark.parametrize("cluster", [FOUR, SIX])
def test_many_samples_are_cut_and_so_are_large_weights(cluster: Cluster) -> None:
    samples = BASELINES["optcnn"](dense(1 << 18, [(64, 64)] * 3), cluster)
    assert [layout for _, layout in samples.layouts] == ["sample sample"] * 3
    weights = BASELINES["optcnn"](dense(6, [(12288, 12288)]), cluster)
    assert [layout for _, layout in weights.layouts] == ["channel channel"]


def test_one_device() -> None:
    one = Cluster.named("flexflow-p100", node=1, gpu=1)
    assert BASELINES["optcnn"](dense(8, [(6, 4)]), one).layouts == (("l0", ""),)
