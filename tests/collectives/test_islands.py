"""Programs over unequal groups: against literal enumeration, both judges, the cheapest of all."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.cluster.island_cluster import IslandCluster
from meshwright.cluster.island_toml import named_machine
from meshwright.collectives.check import check
from meshwright.collectives.dsl import Program
from meshwright.collectives.execute import run
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.islands.cheapest_island_program import IslandPredictor
from meshwright.collectives.islands.island_lowering import common_chunks, lower_island_program
from meshwright.collectives.islands.island_program import IslandProgram
from meshwright.collectives.islands.island_reduction_plan import IslandReductionPlan
from meshwright.collectives.islands.island_synthesis import (
    count_island_programs,
    inner_hierarchy,
    synthesize_islands,
)
from meshwright.collectives.islands.island_verification import island_problem, judged
from meshwright.collectives.lowering import LoweredStep, SharedStep, instruction_groups
from meshwright.collectives.predict import predict
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import ALGORITHMS, BACKENDS, NCCL
from meshwright.cost.collective import Collective
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement
from support.islands import island, machine_of
from support.slow_islands import SlowIslands, Step

Sizes = tuple[tuple[int, ...], ...]


@lru_cache
def islands(sizes: Sizes, rate: str = "20 GB/s") -> IslandCluster:
    names = "abcdefgh"
    return machine_of(*(island(names[i], *shape) for i, shape in enumerate(sizes)), rate=rate)


@lru_cache
def every(sizes: Sizes, limit: int) -> tuple[IslandProgram, ...]:
    return tuple(synthesize_islands(islands(sizes), limit=limit))


def hierarchies(cluster: IslandCluster) -> list[Hierarchy]:
    return [inner_hierarchy(island.cluster) for island in cluster.islands]


def in_the_twins_words(cluster: IslandCluster, program: IslandProgram) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number, phase in enumerate(program.phases):
        if number:
            crossing = program.crossings[number - 1]
            steps.append((crossing.form, crossing.collective, ()))
        first = 0
        for place, (island_program, hierarchy) in enumerate(
            zip(phase, hierarchies(cluster), strict=True)
        ):
            for instruction in island_program.instructions:
                groups = instruction_groups(hierarchy, instruction)
                moved = sorted(tuple(d + first for d in group) for group in groups)
                steps.append((str(place), instruction.collective, tuple(moved)))
            first += hierarchy.placement.devices
    return tuple(steps)


LITERAL: list[tuple[Sizes, int, int]] = [
    (((2,), (1,)), 6, 51),
    (((3,), (2,)), 5, 260),
    (((2,), (3,)), 4, 108),
    (((2,), (2,)), 5, 332),
    (((1,), (1,), (1,)), 4, 3),
    (((2,), (1,), (3,)), 4, 108),
    (((2, 2), (2,)), 4, 305),
    (((2, 2), (3,)), 4, 287),
]


@pytest.mark.parametrize(("sizes", "limit", "count"), LITERAL)
def test_by_island_equals_device_by_device(sizes: Sizes, limit: int, count: int) -> None:
    cluster, programs = islands(sizes), every(sizes, limit)
    mine = {in_the_twins_words(cluster, program) for program in programs}
    assert mine == SlowIslands(sizes).programs(limit)
    assert len(mine) == len(programs) == count_island_programs(cluster, limit=limit) == count


@pytest.mark.parametrize(
    ("sizes", "limit"),
    [(((2,), (1,)), 6), (((3,), (2,)), 4), (((2, 2), (3,)), 4), (((4,), (6,), (5,)), 4)],
)
def test_every_program_passes_both_judges(sizes: Sizes, limit: int) -> None:
    for program in every(sizes, limit):
        assert island_problem(islands(sizes), program) is None, str(program)


def test_eight_and_seven() -> None:
    """Fourteen groups of two share devices: 1/8 and 1/7 have 14 common pieces, and 56 of equal size
    would be needed.
    """
    text = (
        "[a: root.InsideGroup.ReduceScatter | b: root.InsideGroup.ReduceScatter]; "
        "across.AllReduce; [a: root.InsideGroup.AllGather | b: root.InsideGroup.AllGather]"
    )
    cluster = islands(((8,), (7,)))
    program = IslandProgram.parse(text, ("a", "b"))
    steps, weights = lower_island_program(hierarchies(cluster), program)
    assert (len(weights), sum(weights)) == (14, 56)
    crossing = steps[2]
    assert isinstance(crossing, SharedStep)
    assert crossing.groups == (
        *((0, 8), (1, 8), (1, 9), (2, 9), (2, 10), (3, 10), (3, 11)),
        *((4, 11), (4, 12), (5, 12), (5, 13), (6, 13), (6, 14), (7, 14)),
    )
    assert island_problem(cluster, program) is None
    plan = IslandReductionPlan(cluster=cluster, program=program)
    assert sum(plan.recipe(1).lengths(56)) == 56
    # Of 56 elements device 1 sends 49 to scatter, its 7 across, and 49 to gather, at 4 bytes.
    assert plan.recipe(1).sent(56, 4) == 4 * (49 + 49) + sum(
        amount for amount in across_bytes(plan, 1)
    )


def across_bytes(plan: IslandReductionPlan, device: int) -> list[int]:
    recipe = plan.recipe(device)
    return [
        recipe._replace(steps=(step,)).sent(56, 4)
        for step in recipe.steps
        if step.collective is Collective.ALL_REDUCE
    ]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_common_chunks_are_few_and_refine_every_cut(sizes: list[int]) -> None:
    chunks = common_chunks(sizes)
    whole, ends, at = sum(chunks), {0}, 0
    for chunk in chunks:
        at += chunk
        ends.add(at)
    assert whole == math.lcm(*sizes)
    assert len(chunks) <= sum(sizes)
    assert all(whole // size * i in ends for size in sizes for i in range(size))


SMALL: list[tuple[Sizes, int]] = [
    (((2,), (1,)), 5),
    (((3,), (2,)), 4),
    (((2, 2), (3,)), 4),
    (((2,), (2,), (3,)), 4),
]


@given(st.data())
def test_judges_agree_on_broken_programs(data: st.DataObject) -> None:
    """A step dropped, repeated, or given another collective or chunks: the judges say the same."""
    sizes, limit = data.draw(st.sampled_from(SMALL))
    program = data.draw(st.sampled_from(every(sizes, limit)))
    lowered, weights = lower_island_program(hierarchies(islands(sizes)), program)
    steps = list(lowered)
    place = data.draw(st.integers(0, len(steps) - 1))
    match data.draw(st.sampled_from(("drop", "repeat", "change", "less"))):
        case "drop":
            del steps[place]
        case "repeat":
            steps.insert(place, steps[place])
        case "less":
            step = steps[place]
            if isinstance(step, SharedStep):
                less = step.groups[:-1], step.chunks[:-1]
                steps[place] = SharedStep(step.collective, *less)
        case _:
            collective = data.draw(st.sampled_from(Collective))
            steps[place] = steps[place]._replace(collective=collective)
    groups = (tuple(range(islands(sizes).devices)),)
    said = check(steps, groups, weights)
    if said is None:
        assert run(steps, groups, weights)
    elif run(steps, groups, weights):
        # Only a useless step may be wrong by the rules and still leave the right sums, or one whose
        # wrong sums a Broadcast writes over.
        rewritten = any(
            later_step.collective is Collective.BROADCAST for later_step in steps[place:]
        )
        assert "learns" in said or "nothing" in said or rewritten


@given(st.data())
def test_cheapest_equals_the_best_of_all(data: st.DataObject) -> None:
    sizes, limit = data.draw(st.sampled_from(SMALL))
    cluster = islands(sizes, data.draw(st.sampled_from(("20 GB/s", "1 Gb/s"))))
    backend = BACKENDS[data.draw(st.sampled_from(sorted(BACKENDS)))]
    way = data.draw(st.sampled_from(ALGORITHMS))
    payload = data.draw(st.sampled_from((1.0, 1e4, 1e9)))
    predictor = IslandPredictor(
        cluster, lambda subcluster: Pricer(subcluster, backend, way), payload, limit=limit
    )
    least: dict[object, float] = {}
    for program in every(sizes, limit):
        seconds = predictor.predict(program).seconds
        least[program.crossings] = min(seconds, least.get(program.crossings, math.inf))
    cheapest = predictor.cheapest_of_each()
    assert {priced.program.crossings: priced.seconds for priced in cheapest} == pytest.approx(
        least, rel=1e-12
    )
    assert predictor.cheapest().seconds == pytest.approx(min(least.values()), rel=1e-12)
    assert all(priced.program in every(sizes, limit) for priced in cheapest)


@pytest.mark.parametrize("form", ["island.Parallel(root)", "root.InsideGroup"])
def test_islands_that_are_alike_cost_what_a_regular_cluster_does(form: str) -> None:
    """No price is new: two islands of 2 x 2 are a cluster of 2 x 2 x 2."""
    cluster = islands(((2, 2), (2, 2)), "1 Gb/s")
    regular = cluster.like(cluster.islands[0], 2, mixed=form.startswith("root"))
    scatter, gather = "node.InsideGroup.ReduceScatter", "node.InsideGroup.AllGather"
    across = "node.Parallel({}).ReduceScatter", "node.Parallel({}).AllGather"
    if form.startswith("root"):
        mine, theirs = "everybody.AllReduce", "root.InsideGroup.AllReduce"
    else:
        before, after = (f"{scatter}; {across[0]}", f"{across[1]}; {gather}")
        first, last = before.format("root"), after.format("root")
        mine = f"[a: {first} | b: {first}]; across.AllReduce; [a: {last} | b: {last}]"
        theirs = "; ".join((before.format("island"), f"{form}.AllReduce", after.format("island")))
    placement = Placement((Axis("data", 8),), (regular.hierarchy,))
    hierarchy = Hierarchy(placement, regular.level_names, ["data"])
    pricer = Pricer(regular, NCCL)
    expected = predict(hierarchy, Program.parse(theirs), pricer, 1e9).seconds
    predictor = IslandPredictor(cluster, lambda subcluster: Pricer(subcluster, NCCL), 1e9)
    prediction = predictor.predict(IslandProgram.parse(mine, ("a", "b")))
    assert prediction.seconds == pytest.approx(expected, rel=1e-12)


def test_transfers_inside_and_between_islands_share_the_cards() -> None:
    """A tree over everybody sends inside islands and between them at once, through one card a node;
    as a card for each it would be twice as fast as it can be (1.6 s of 3.07 s).
    """
    machine = named_machine("mixed-v100-t4")
    assert isinstance(machine, IslandCluster)
    predictor = IslandPredictor(machine, lambda subcluster: Pricer(subcluster, NCCL, "best"), 1e9)
    single = IslandProgram.parse("everybody.AllReduce", ("v100", "t4"))
    assert predictor.predict(single).seconds == pytest.approx(3.0673, rel=1e-3)
    best = predictor.cheapest()
    assert str(best.program) == (
        "[v100: node.InsideGroup.ReduceScatter; node.Parallel(root).ReduceScatter | "
        "t4: root.InsideGroup.ReduceScatter]; across.AllReduce; "
        "[v100: node.Parallel(root).AllGather; node.InsideGroup.AllGather | "
        "t4: root.InsideGroup.AllGather]"
    )
    assert best.seconds == pytest.approx(2.9179, rel=1e-3)


def test_many_devices() -> None:
    """Of 1984 devices the judges see a small copy; a wrong program is still wrong."""
    cluster = islands(((128, 8), (120, 8)))
    plan = IslandReductionPlan.chosen(cluster, bytes=1 << 30)
    assert IslandReductionPlan.parse(str(plan), cluster) == plan
    text = "[a: root.InsideGroup.AllReduce | b: root.InsideGroup.AllReduce]; across.AllReduce"
    # The small copies of both have four devices, and the islands 1024 and 960.
    assert island_problem(cluster, IslandProgram.parse(text, ("a", "b"))) == (
        "across.AllReduce joins the holders of each piece, and islands have 960 and 1024 of them"
    )


def test_many_islands() -> None:
    cluster = machine_of(*(island(f"i{n}", 2 + n % 3, 8) for n in range(12)))
    assert count_island_programs(cluster) > 10**15
    best = IslandReductionPlan.chosen(cluster, bytes=1 << 30)
    assert island_problem(cluster, best.program) is None


@given(st.data())
def test_text_and_json_read_back(data: st.DataObject) -> None:
    sizes, limit = data.draw(st.sampled_from(SMALL))
    program = data.draw(st.sampled_from(every(sizes, limit)))
    plan = IslandReductionPlan(cluster=islands(sizes), program=program)
    assert IslandProgram.parse(str(program), program.islands) == program
    assert IslandReductionPlan.parse(str(plan), plan.cluster) == plan
    assert IslandReductionPlan.from_json(plan.to_json()) == plan
    assert len(program) >= max(program.of_island(number) for number in range(len(sizes)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("across.AllReduce", "joins the holders of each piece, and islands have 1 and 2 of them"),
        ("across.Broadcast", "across.Broadcast of island 'a' crosses with what is not the"),
        ("leaders.AllReduce", "leaders.AllReduce of island 'a' crosses with what is not the"),
        ("everybody.Reduce", "does not finish the reduction"),
        ("everybody.Sum", "'Sum' is not a collective"),
        ("sideways.Reduce", "'sideways.Reduce' is not a crossing between islands; write FORM"),
        ("[c: root.InsideGroup.Reduce]", "there is no island 'c'"),
        ("[a root.InsideGroup.Reduce]", "'a root.InsideGroup.Reduce' is not what one island does"),
        ("[a: root.InsideGroup.Reduce", "is no part of a program over islands; write it as"),
        (
            "[a: root.InsideGroup.Reduce]; [b: root.InsideGroup.Reduce]",
            "follows what islands do without a crossing between them",
        ),
        ("everybody.AllReduce; everybody.Broadcast", "everybody.Broadcast teaches nobody anything"),
    ],
)
def test_what_is_no_program_is_a_sentence(text: str, said: str) -> None:
    cluster = islands(((2,), (1,)))
    if text == "across.AllReduce":
        text = f"[a: root.InsideGroup.AllReduce]; {text}"
    with pytest.raises(InputError) as error:
        IslandReductionPlan(cluster=cluster, program=IslandProgram.parse(text, ("a", "b")))
    assert said in str(error.value)


def test_what_is_no_plan_is_a_sentence() -> None:
    cluster = islands(((2,), (1,)))
    for text, said in (
        ("all of it", "'all of it' is not a reduction plan over islands; write 'sum over"),
        ("sum over 4 devices of a, b by everybody.AllReduce", "has 3 of a, b"),
    ):
        with pytest.raises(InputError) as error:
            IslandReductionPlan.parse(text, cluster)
        assert said in str(error.value)
    plan = IslandReductionPlan.parse("sum over 3 devices of a, b by everybody.AllReduce", cluster)
    broken = plan.to_json().replace(b"AllReduce", b"Reduce")
    for content, said in ((b"{", "no reduction plan over islands"), (broken, "does not sum over")):
        with pytest.raises(InputError, match=said):
            IslandReductionPlan.from_json(content)


def test_judges_refuse_what_the_laws_never_saw() -> None:
    """Partial sums of unlike islands: each of the two devices is added twice."""
    steps = [
        LoweredStep(Collective.ALL_REDUCE, ((0, 4), (1, 5), (2,), (3,))),
        LoweredStep(Collective.ALL_REDUCE, ((0, 1, 2, 3), (4, 5))),
    ]
    groups = (tuple(range(6)),)
    assert check(steps, groups, (1,) * 12) is not None
    assert not run(steps, groups, (1,) * 12)
    overlap = [SharedStep(Collective.ALL_REDUCE, ((0, 1), (1, 2)), ((0,), (0,)))]
    assert check(overlap, ((0, 1, 2),), (1, 2)) == "step 1, AllReduce: the groups overlap"
    assert judged(hierarchies(islands(((2,), (1,)))), every(((2,), (1,)), 4)[0]) is None


def test_a_single_cluster_is_priced_as_before() -> None:
    """`like` without `mixed` is what it was."""
    machine = named_machine("mixed-v100-t4")
    assert isinstance(machine, IslandCluster)
    like = machine.like(machine.islands[0], 2)
    assert [link.outward for link in like.levels[1].links] == [False]
    assert like.levels[0].links[0].latency == like.levels[1].links[0].latency > 0
