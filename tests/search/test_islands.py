"""The search over islands: equal to enumeration where that can be done, never slower than dropping
an island or equal shares; laws of shares and cuts.
"""

from __future__ import annotations

import math
from itertools import combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.cost.backend import NCCL
from meshwright.graph.cast import cast_graph
from meshwright.graph.text import parse_graph
from meshwright.graph.workload import workload
from meshwright.plan.island_plan import (
    IslandPart,
    IslandPlan,
    island_plan_bytes,
    parse_island_plan,
    weights,
)
from meshwright.search.budget import Budget
from meshwright.search.islands.cuts import cuts_of, partition
from meshwright.search.islands.island_planner import _Search, split_islands
from meshwright.search.islands.island_question import IslandPlanned, IslandQuestion
from meshwright.search.islands.merged import merged
from meshwright.search.islands.shares import balanced_shares, min_max_shares, proportional_shares
from meshwright.sharding.loss_law import loss_law
from meshwright.simulate.island_step import predicted
from support.islands import island, machine_of, two_layers

BATCH = 6


def searched(machine: IslandCluster, batch: int = BATCH) -> tuple[_Search, IslandPlanned]:
    question = IslandQuestion(graph=two_layers(batch), cluster=machine)
    search = _Search(question, Budget(proposals=1), NCCL, 0, 1, False, lambda _share, _doing: None)
    # Every inner search is short: what is compared is the choice among them.
    search.inner._budget = Budget(proposals=10)
    return search, search.planned()


def enumerated(search: _Search) -> float:
    """The least step of all shares of all subsets, and of all pipelines."""
    machine, batch = search.machine, search.batch
    before = len(search.found)
    for size in range(2, len(machine.islands) + 1):
        for chosen in combinations(machine.islands, size):
            for shares in product(range(1, batch), repeat=size):
                if sum(shares) == batch:
                    search._share("enumerated", chosen, shares)
    split = split_islands(machine)
    for size in range(2, len(split) + 1):
        for chosen in {*permutations(machine.islands, size), *permutations(split, size)}:
            cuts = [cut.position for cut in cuts_of(search.question.graph)]
            for micro in divisors(batch):
                for ends in combinations(cuts, size - 1):
                    search._pipeline(chosen, micro, batch // micro, ends)
    assert len(search.found) > before
    return min(candidate.rank for candidate in search.found)[1]


SMALL = {
    "2+1": (island("fast", 2), island("slow", 1, speed=0.5)),
    "2x2+3": (island("fast", 2, 2), island("slow", 3, speed=0.5)),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_search_equals_enumeration(name: str) -> None:
    search, outcome = searched(machine_of(*SMALL[name]))
    most = max(len(candidate.plan.parts) for candidate in search.found)
    assert most == len(split_islands(search.machine)), "nodes are stages by themselves, too"
    assert outcome.best.prediction.step == enumerated(search)
    steps = {candidate.plan.origin: candidate.prediction.step for candidate in outcome.alternatives}
    assert {"fast alone", "slow alone", "equal shares", "shares", "stages"} <= steps.keys()
    assert outcome.best.prediction.step == min(steps.values())
    assert steps["shares"] <= steps["equal shares"]
    assert 0 < outcome.bound <= outcome.best.prediction.step
    assert predicted(outcome.best.plan) == outcome.best.prediction
    assert parse_island_plan(island_plan_bytes(outcome.best.plan)) == outcome.best.plan


def test_nodes_of_an_island_are_stages_by_themselves() -> None:
    """AMP's winner: three nodes of one kind and one of another follow each other."""
    machine = machine_of(island("v", 3, 2), island("t", 1, 2, speed=0.5))
    split = split_islands(machine)
    assert [part.name for part in split] == ["v", "v", "v", "t"]
    assert {part.cluster.hierarchy for part in split} == {(1, 2)}
    question = IslandQuestion(graph=two_layers(BATCH), cluster=machine)
    nothing = Budget(proposals=1)
    search = _Search(question, nothing, NCCL, 0, 1, False, lambda _share, _doing: None)
    orders = [[part.name for part in order] for order in search._orders()]
    assert orders.count(["v", "v", "v", "t"]) == 1
    assert orders.count(["t", "v", "v", "v"]) == 1
    whole = [order for order in search._orders() if order[0].cluster.hierarchy == (3, 2)]
    assert [[part.name for part in order] for order in whole] == [["v", "t"]]


def test_fast_links_make_islands_share_and_slow_ones_leave_one_out() -> None:
    # With little to compute and much to reduce the second island is not worth its link.
    _, near = searched(machine_of(island("a", 1), island("b", 1, speed=0.5), rate="20 GB/s"))
    _, far = searched(machine_of(island("a", 1), island("b", 1, speed=0.5), rate="0.1 MB/s"))
    assert near.best.plan.origin == "shares"
    assert [part.share for part in near.best.plan.parts] == [4, 2]
    assert weights(near.best.plan.parts) == (4 / 6, 2 / 6)
    assert far.best.plan.idle == ("b",)
    assert far.best.plan.origin == "a alone"


def test_shares_are_the_best_by_enumeration() -> None:
    def timing(number: int, share: int) -> float:
        return (1.0, 2.5, 0.8)[number] * share + number

    best, shares = balanced_shares(timing, [1.0, 0.4, 1.25], 8, lambda: False)
    every = [
        max(timing(0, a), timing(1, b), timing(2, 8 - a - b))
        for a in range(1, 7)
        for b in range(1, 8 - a)
    ]
    assert best == min(every)
    assert sum(shares) == 8


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=4), st.integers(16, 500))
def test_shares_add_up(speeds: list[float], batch: int) -> None:
    assert sum(proportional_shares(speeds, batch)) == batch
    best, shares = balanced_shares(lambda n, share: share / speeds[n], speeds, batch, lambda: False)
    assert sum(shares) == batch
    # No split into whole samples is faster than work over speed, and this one is near.
    assert best >= batch / sum(speeds) * (1 - 1e-9)
    assert math.isfinite(best)


def test_least_max_says_when_nothing_adds_up() -> None:
    assert min_max_shares([{2: 1.0}, {2: 1.0}], 5) == (math.inf, ())


@given(st.lists(st.integers(1, 9), min_size=4, max_size=8), st.integers(1, 3))
def test_cuts_are_the_best_by_enumeration(loads: list[int], slower: int) -> None:
    speeds = [[float(load) for load in loads], [float(load * slower) for load in loads]]
    cuts = list(range(1, len(loads)))
    chosen = partition(speeds, cuts, len(loads))
    assert chosen is not None
    every = [max(sum(speeds[0][:cut]), sum(speeds[1][cut:])) for cut in cuts]
    assert max(sum(speeds[0][: chosen[0]]), sum(speeds[1][chosen[0] :])) == min(every)


def loss(text: str) -> str:
    return loss_law(parse_graph(f"graph g\ninput x: float32[n=4, i=2]\n{text}"))


def test_the_law_of_a_loss() -> None:
    mean, total = "m: float32[] = mean(x)", "s: float32[] = sum(x)"
    assert loss(f"operator m: {mean}\nloss m") == "mean"
    assert loss(f"operator s: {total}\nloss s") == "sum"
    assert loss(f"operator m: {mean}\noperator d: d: float32[] = mul(m) {{other=2}}\nloss d") == (
        "mean"
    )
    with pytest.raises(InputError, match="applied to the loss"):
        loss(f"operator m: {mean}\noperator d: d: float32[] = sqrt(m)\nloss d")
    with pytest.raises(InputError, match="different kinds"):
        loss(
            f"operator m: {mean}\noperator s: {total}\noperator d: d: float32[] = add(m, s)\nloss d"
        )


def test_plans_over_islands_check_themselves() -> None:
    _, outcome = searched(machine_of(island("a", 1), island("b", 1, speed=0.5)))
    best = outcome.best.plan
    first, second = best.parts
    for parts, said in (
        ((first,), "share 4 samples, and a step has 6"),
        ((), "has no part"),
        ((first, IslandPart(islands=("c",), plan=second.plan, share=2)), "no island 'c'"),
        (
            (first, IslandPart(islands=("a",), plan=second.plan, share=2)),
            "want more than its 1 device",
        ),
        (
            (first, IslandPart(islands=("b",), plan=first.plan, share=2)),
            "share of 2 and a plan for 4",
        ),
        ((first, IslandPart(islands=("b",), plan=second.plan, share=2, stage=2)), "numbered"),
    ):
        with pytest.raises(InputError, match=said):
            IslandPlan(origin="x", cluster=best.cluster, batch=6, parts=parts)
    with pytest.raises(InputError, match="not what it should be"):
        parse_island_plan(b'{"meshwright_island_plan": 1}')
    newer = island_plan_bytes(best).replace(b'island_plan": 1', b'island_plan": 2')
    with pytest.raises(InputError, match="version 2"):
        parse_island_plan(newer)


def test_islands_that_links_join_are_one_regular_machine_too() -> None:
    # Each gives what the smallest has, and the join is the links of the level above.
    machine = machine_of(island("a", 2, 2), island("b", 1, 3, speed=0.5))
    ((names, cluster),) = merged(machine)
    assert names == ("a", "b")
    assert [(level.name, level.cardinality) for level in cluster.levels] == [
        ("island", 2),
        ("node", 1),
        ("gpu", 2),
    ]
    assert [link.name for link in cluster.levels[0].links] == ["spine", "node-link"]
    assert cluster.device == machine.island("b").cluster.device
    unlike = machine_of(island("a", 2, 2), island("b", 2, speed=0.5))
    assert not list(merged(unlike))


def test_a_dtype_that_a_device_has_no_rate_for_is_bounded_by_its_largest() -> None:
    """As it is priced; the bound of clusters with V100s was 0 s in bf16."""
    machine = machine_of(island("a", 2), island("b", 1))
    peaks = [dict(each.cluster.device.peak) for each in machine.islands]
    assert all("bf16" not in known for known in peaks)
    graph = cast_graph(two_layers(BATCH), "bfloat16")
    question = IslandQuestion(graph=graph, cluster=machine)
    search = _Search(question, Budget(proposals=1), NCCL, 0, 1, False, lambda _share, _doing: None)
    rate = 2 * max(peaks[0].values()) + max(peaks[1].values())
    assert search.bound() == pytest.approx(workload(graph).model_flops / rate)


def test_plans_that_run_already_are_candidates_for_islands_like_theirs() -> None:
    """As `replan` knows them: what is left of a cluster is never worse than what ran on it."""
    machine = machine_of(island("a", 2), island("b", 1, speed=0.5))
    _, outcome = searched(machine)
    (alone,) = [entry for entry in outcome.alternatives if entry.plan.origin == "a alone"]
    left = machine_of(island("other", 2), island("c", 1, speed=0.25))
    question = IslandQuestion(graph=two_layers(BATCH), cluster=left)
    search = _Search(question, Budget(proposals=1), NCCL, 0, 1, False, lambda _share, _doing: None)
    search.inner._search = lambda *_: None  # type: ignore[method-assign]
    search.inner.learn(alone.plan.parts[0].plan)
    found = search.planned()
    assert found.best.plan.origin == "other alone"
    assert found.best.prediction.step == alone.prediction.step
    unlike = alone.plan.parts[0].plan.changed(graph=two_layers(BATCH))
    other = _Search(
        IslandQuestion(graph=two_layers(BATCH), cluster=machine_of(island("d", 3), island("e", 1))),
        Budget(proposals=1), NCCL, 0, 1, False, lambda _share, _doing: None,
    )  # fmt: skip
    other.inner._search = lambda *_: None  # type: ignore[method-assign]
    other.inner.learn(unlike)
    with pytest.raises(InputError, match="no island can run"):
        other.planned()


def test_no_answer_is_slower_than_one_regular_machine() -> None:
    search, outcome = searched(machine_of(island("a", 2), island("b", 2, speed=0.9)))
    ((names, cluster),) = merged(search.machine)
    regular = search.inner.best(cluster, search.inner.whole, search.batch)
    steps = {candidate.plan.origin: candidate.prediction.step for candidate in outcome.alternatives}
    assert regular is not None
    assert steps["one regular machine"] == regular.prediction.step
    assert outcome.best.prediction.step <= regular.prediction.step
    (one,) = [
        candidate
        for candidate in outcome.alternatives
        if candidate.plan.origin == "one regular machine"
    ]
    assert one.plan.parts[0].islands == names
    assert parse_island_plan(island_plan_bytes(one.plan)) == one.plan
