"""The synthesizer by level against literal enumeration, the theorem, the judges, the cheapest."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appendix import Configuration, configurations
from meshwright.cluster.cluster import Cluster
from meshwright.collectives.check import check
from meshwright.collectives.execute import run
from meshwright.collectives.hierarchy import HIERARCHY_KINDS, Hierarchy, HierarchyKind
from meshwright.collectives.lowering import LoweredStep, lower_program, reduction_groups
from meshwright.collectives.predict import cheapest, predict, predict_all
from meshwright.collectives.synthesize import count_programs, synthesize
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import ALGORITHMS, BACKENDS
from meshwright.cost.collective import Collective
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Matrix, Placement, matrices, placements
from meshwright.validate.p2_rows import embedded_rows
from support import literal
from support.strategies import clusters

Lowered = frozenset[tuple[tuple[Collective, frozenset[tuple[int, ...]]], ...]]


def lowered(hierarchy: Hierarchy, limit: int = 5) -> Lowered:
    return frozenset(
        tuple(
            (step.collective, frozenset(step.groups)) for step in lower_program(hierarchy, program)
        )
        for program in synthesize(hierarchy, limit=limit)
    )


def one_axis(sizes: tuple[int, ...]) -> Hierarchy:
    placement = Placement((Axis("all", math.prod(sizes)),), (sizes,))
    return Hierarchy(placement, [f"level{i}" for i in range(len(sizes))], ["all"])


LITERAL = [
    *(((n,), 5) for n in (2, 3, 4)),
    *((sizes, 7) for sizes in ((2, 2), (3, 2), (2, 3))),
    *((sizes, 4) for sizes in ((2, 3, 2), (3, 2, 2), (2, 2, 3), (3, 3, 2))),
    ((2, 2, 2), 5),
    ((2, 2, 2, 2), 4),
]


@pytest.mark.parametrize(("sizes", "limit"), LITERAL)
def test_by_level_equals_device_by_device(sizes: tuple[int, ...], limit: int) -> None:
    expected = frozenset(
        tuple((collective, frozenset(groups)) for collective, groups in program)
        for program in literal.programs(sizes, limit)
    )
    assert lowered(one_axis(sizes), limit) == expected


SMALL = [
    (matrix, row)
    for hierarchy, axes in (
        ((2, 2), (2, 2)),
        ((2, 4), (4, 2)),
        ((4, 2), (2, 4)),
        ((2, 2, 2), (4, 2)),
        ((2, 2, 2), (2, 4)),
        ((2, 3), (2, 3)),
    )
    for matrix in matrices(hierarchy, axes)
    for row in range(len(axes))
]
KINDS: tuple[HierarchyKind, ...] = ("reduction", "row", "column", "system")
"""P²'s hierarchies (d), (c), (b) and (a)."""


def of_matrix(matrix: Matrix, row: int, kind: HierarchyKind) -> Hierarchy:
    axes = tuple(Axis(str(i), math.prod(factors)) for i, factors in enumerate(matrix))
    names = [f"level{i}" for i in range(len(matrix[0]))]
    return Hierarchy(Placement(axes, matrix), names, [str(row)], kind)


@pytest.mark.parametrize(("matrix", "row"), SMALL)
def test_theorem_3_2_without_master(matrix: Matrix, row: int) -> None:
    """(d) >= (c) >= (b) >= (a), every set enumerated literally, device by device."""
    d, c, b, a = (literal.programs_of_matrix(matrix, row, kind, 4, masters=False) for kind in KINDS)
    assert d >= c >= b >= a


@pytest.mark.parametrize(("matrix", "row"), SMALL)
def test_theorem_3_2_with_master(matrix: Matrix, row: int) -> None:
    """(d) >= all and (b) >= (a); what is left of the theorem with Master in the language."""
    d, c, b, a = (lowered(of_matrix(matrix, row, kind), 4) for kind in KINDS)
    assert d >= c
    assert d >= b >= a
    assert lowered(of_matrix(matrix, row, "hardware"), 4) == d


def test_theorem_3_2_fails_with_master() -> None:
    """In (c) the other axes lie below the reduction axis, and so below every Master's groups."""
    matrix = ((1, 2, 2), (2, 1, 1))
    _, c, b, _ = (lowered(of_matrix(matrix, 0, kind), 4) for kind in KINDS)
    assert (len(c), len(b)) == (39, 71)
    assert c < b


@pytest.mark.parametrize(("matrix", "row"), SMALL)
def test_hierarchies_by_level_equal_device_by_device(matrix: Matrix, row: int) -> None:
    """Literally there are also programs whose Master serves some reduction groups only."""
    for kind in KINDS:
        hierarchy = of_matrix(matrix, row, kind)
        together = reduction_groups(hierarchy)
        expected = frozenset(
            tuple((collective, frozenset(groups)) for collective, groups in program)
            for program in literal.programs_of_matrix(matrix, row, kind, 4)
            if all(treats_all_alike(groups, together) for _, groups in program)
        )
        assert lowered(hierarchy, 4) == expected


def treats_all_alike(groups: literal.Groups, together: literal.Groups) -> bool:
    """Whether the groups look the same inside every reduction group."""
    views = {
        frozenset(
            tuple(whole.index(device) for device in group) for group in groups if group[0] in whole
        )
        for whole in together
    }
    return len(views) == 1


@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
def test_every_program_of_appendix_a_passes_both_judges(configuration: Configuration) -> None:
    cluster = Cluster.named(configuration.cluster, node=configuration.nodes)
    names = tuple(map(str, configuration.reduce_axes))
    axes = [Axis(str(i), n) for i, n in enumerate(configuration.axes)]
    orders: tuple[HierarchyKind, ...] = ("hardware", "axis") if len(axes) > 2 else ("hardware",)
    for placement in placements(cluster, axes):
        for kind in orders:
            hierarchy = Hierarchy(placement, cluster.level_names, names, kind)
            groups = reduction_groups(hierarchy)
            programs = list(synthesize(hierarchy))
            assert len(programs) == (93 if len(hierarchy.levels) == 2 else 3)
            for program in programs:
                steps = lower_program(hierarchy, program)
                assert check(steps, groups) is None
                assert run(steps, groups)


def test_appendix_a_is_what_the_table_says() -> None:
    every = list(configurations())
    assert len(every) == 42
    on_a100 = [it[1:] for it in every if it.cluster == "gcp-a100"]
    rows = embedded_rows()
    assert set(on_a100) == {(row.nodes, row.axes, row.reduce_axes) for row in rows}
    for nodes, axes, reduce_axes in on_a100:
        case = (nodes, axes, reduce_axes)
        printed = {r.matrix for r in rows if (r.nodes, r.axes, r.reduce_axes) == case}
        assert printed == set(matrices((nodes, 16), axes))


def test_published_totals_of_appendix_a() -> None:
    """The paper's number of programs for each configuration, with its rules."""
    totals: Counter[tuple[int, tuple[int, ...], tuple[int, ...]]] = Counter()
    for row in embedded_rows():
        cluster = Cluster.named("gcp-a100", node=row.nodes)
        hierarchy = Hierarchy(row.placement, cluster.level_names, list(map(str, row.reduce_axes)))
        count = count_programs(hierarchy, rules="paper")
        totals[row.nodes, row.axes, row.reduce_axes] += count
    assert sorted(set(totals.values())) == [6, 47, 50, 53, 94, 97, 188, 235]
    assert totals[4, (8, 2, 4), (0, 2)] == 235
    assert totals[4, (16, 2, 2), (0, 2)] == 188
    assert totals[2, (2, 16), (0,)] == 6


@pytest.mark.parametrize("kind", HIERARCHY_KINDS)
def test_programs_of_every_hierarchy_pass_both_judges(kind: HierarchyKind) -> None:
    names = ("rack", "node", "gpu")
    chosen = random.Random(0)
    for matrix in matrices((2, 2, 4), (4, 2, 2)):
        axes = tuple(Axis(name, size) for name, size in zip("abc", (4, 2, 2), strict=True))
        for reduce in (["a"], ["a", "c"], ["b", "c"]):
            hierarchy = Hierarchy(Placement(axes, matrix), names, reduce, kind)
            groups = reduction_groups(hierarchy)
            programs = list(synthesize(hierarchy, limit=4))
            for program in chosen.sample(programs, min(15, len(programs))):
                steps = lower_program(hierarchy, program)
                assert check(steps, groups) is None
                assert run(steps, groups)


def test_idle_devices_take_no_part() -> None:
    cluster = Cluster.named("gcp-a100", node=2, gpu=4)
    for placement in placements(cluster, {"data": 4}, idle=True):
        hierarchy = Hierarchy(placement, cluster.level_names, ["data"])
        working = {d for d in range(8) if placement.works(placement.shard(d))}
        assert len(working) == 4
        for program in synthesize(hierarchy):
            steps = lower_program(hierarchy, program)
            assert {d for step in steps for g in step.groups for d in g} <= working
            assert check(steps, reduction_groups(hierarchy)) is None


@given(st.data())
def test_judges_agree_on_broken_programs(data: st.DataObject) -> None:
    """A step dropped, repeated, or given another collective: the judges say the same."""
    hierarchy = one_axis(data.draw(st.sampled_from(((2, 2), (2, 3), (2, 2, 2)))))
    groups = reduction_groups(hierarchy)
    programs = list(synthesize(hierarchy, limit=4))
    steps = list(lower_program(hierarchy, data.draw(st.sampled_from(programs))))
    place = data.draw(st.integers(0, len(steps) - 1))
    match data.draw(st.sampled_from(("drop", "repeat", "change"))):
        case "drop":
            del steps[place]
        case "repeat":
            steps.insert(place, steps[place])
        case _:
            steps[place] = LoweredStep(data.draw(st.sampled_from(Collective)), steps[place].groups)
    if check(steps, groups) is None:
        assert run(steps, groups)
    elif run(steps, groups):
        # Only a useless step may be wrong by the rules and still leave the right sums.
        assert "learns" in str(check(steps, groups)) or "nothing" in str(check(steps, groups))


@given(st.data())
def test_cheapest_equals_the_best_of_all(data: st.DataObject) -> None:
    cluster = data.draw(clusters(most=3))
    devices = cluster.devices
    placement = Placement((Axis("all", devices),), (cluster.hierarchy,))
    hierarchy = Hierarchy(placement, cluster.level_names, ["all"])
    backend = BACKENDS[data.draw(st.sampled_from(sorted(BACKENDS)))]
    pricer = Pricer(cluster, backend, data.draw(st.sampled_from(ALGORITHMS)))
    payload = data.draw(st.sampled_from((1.0, 1e4, 1e9)))
    limit = data.draw(st.integers(1, 5))
    every = [predict(hierarchy, p, pricer, payload) for p in synthesize(hierarchy, limit=limit)]
    assert list(predict_all(hierarchy, pricer, payload, limit=limit)) == every
    best = cheapest(hierarchy, pricer, payload, limit=limit)
    assert best is not None
    assert best.seconds == pytest.approx(min(p.seconds for p in every), rel=1e-12)
    assert best.program in {priced.program for priced in every}
