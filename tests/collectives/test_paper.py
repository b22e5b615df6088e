"""What P² prints: groups of Table 2, rules of figure 8, rejected programs of figure 4, counts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwright.base.errors import InputError
from meshwright.collectives.check import Chunks, check
from meshwright.collectives.dsl import (
    Form,
    InsideGroup,
    Master,
    Parallel,
    Program,
    ReductionInstruction,
)
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.lowering import instruction_groups, lower_program, reduction_groups
from meshwright.collectives.synthesize import Rules, count_programs, synthesize
from meshwright.cost.collective import Collective
from meshwright.sharding.axes import Axis
from meshwright.sharding.placement import Placement

LEVELS = ("rack", "server", "cpu", "gpu")
AR, RS, AG, RD, BC = Collective


def letters(groups: tuple[tuple[int, ...], ...]) -> str:
    """Devices as the paper names them: A0 to D3."""
    return " ".join(
        "{" + ",".join(f"{'ABCD'[d // 4]}{d % 4}" for d in group) + "}" for group in sorted(groups)
    )


TABLE_2: list[tuple[str, Form, str]] = [
    ("cpu", InsideGroup(), "{A0,A1,A2,A3} {B0,B1,B2,B3} {C0,C1,C2,C3} {D0,D1,D2,D3}"),
    (
        "cpu",
        Parallel("server"),
        "{A0,B0} {A1,B1} {A2,B2} {A3,B3} {C0,D0} {C1,D1} {C2,D2} {C3,D3}",
    ),
    ("cpu", Parallel("rack"), "{A0,B0,C0,D0} {A1,B1,C1,D1} {A2,B2,C2,D2} {A3,B3,C3,D3}"),
    ("cpu", Master("rack"), "{A0,B0,C0,D0}"),
    ("server", InsideGroup(), "{A0,A1,A2,A3,B0,B1,B2,B3} {C0,C1,C2,C3,D0,D1,D2,D3}"),
    (
        "server",
        Parallel("rack"),
        "{A0,C0} {A1,C1} {A2,C2} {A3,C3} {B0,D0} {B1,D1} {B2,D2} {B3,D3}",
    ),
    ("rack", InsideGroup(), "{A0,A1,A2,A3,B0,B1,B2,B3,C0,C1,C2,C3,D0,D1,D2,D3}"),
]


@pytest.mark.parametrize(("slice_", "form", "expected"), TABLE_2)
def test_groups_of_table_2(slice_: str, form: Form, expected: str) -> None:
    placement = Placement((Axis("all", 16),), ((1, 2, 2, 4),))
    hierarchy = Hierarchy(placement, LEVELS, ["all"], "system")
    groups = instruction_groups(hierarchy, ReductionInstruction(slice_, form, AR))
    assert letters(groups) == expected


def state(rows: dict[int, set[int]]) -> int:
    """A 4 x 4 state from rows given as sets of columns."""
    return sum(1 << (4 * row + column) for row, columns in rows.items() for column in columns)


FULL, PART = {0, 1, 2, 3}, {1, 2, 3}
START = ({0: {0, 2}, 2: {2}}, {0: {1, 3}, 2: {1, 3}})
SUM = {0: FULL, 2: PART}
FIG_8 = [
    (AR, START, (SUM, SUM)),
    (RS, START, ({0: FULL}, {2: PART})),
    (RD, START, (SUM, {})),
    (
        AG,
        ({0: {0, 2}, 2: {0, 2}}, {1: {1, 3}, 3: {1, 3}}),
        ({0: {0, 2}, 1: {1, 3}, 2: {0, 2}, 3: {1, 3}},) * 2,
    ),
    (BC, (SUM, {0: {1, 3}, 2: {1, 3}}), (SUM, SUM)),
]


@pytest.mark.parametrize(("collective", "before", "after"), FIG_8)
def test_rules_of_figure_8(
    collective: Collective,
    before: tuple[dict[int, set[int]], ...],
    after: tuple[dict[int, set[int]], ...],
) -> None:
    states = dict(enumerate(map(state, before)))
    assert Chunks(4).apply(collective, (0, 1), states) is None
    assert states == dict(enumerate(map(state, after)))


FIG_2D = Placement((Axis("data", 4), Axis("shard", 4)), ((1, 1, 2, 2), (1, 2, 1, 2)))

FIG_4 = [
    (
        "server.InsideGroup.ReduceScatter; root.InsideGroup.AllReduce",
        "step 2, AllReduce over [0, 1, 8, 9]: the members hold different chunks",
    ),
    (
        "server.Master(root).AllReduce; server.Parallel(root).AllReduce",
        "step 2, AllReduce over [0, 8]: a contribution is added twice",
    ),
]


@pytest.mark.parametrize(("program", "problem"), FIG_4)
def test_rejected_programs_of_figure_4(program: str, problem: str) -> None:
    hierarchy = Hierarchy(FIG_2D, LEVELS, ["shard"])
    parsed = Program.parse(program)
    assert check(lower_program(hierarchy, parsed), reduction_groups(hierarchy)) == problem
    assert parsed not in set(synthesize(hierarchy))


def test_reduction_groups_of_figure_3() -> None:
    hierarchy = Hierarchy(FIG_2D, LEVELS, ["shard"])
    assert letters(reduction_groups(hierarchy)) == (
        "{A0,A1,C0,C1} {A2,A3,C2,C3} {B0,B1,D0,D1} {B2,B3,D2,D3}"
    )


def over(*sizes: int) -> Hierarchy:
    product = 1
    for size in sizes:
        product *= size
    names = [f"level{i}" for i in range(len(sizes))]
    return Hierarchy(Placement((Axis("all", product),), (sizes,)), names, ["all"])


@pytest.mark.parametrize("sizes", [(2,), (3,), (16,), (1, 8), (8, 1)])
def test_one_level_has_three_programs(sizes: tuple[int, ...]) -> None:
    assert [str(program).count(".") // 2 for program in synthesize(over(*sizes))] == [1, 2, 2]


@pytest.mark.parametrize("sizes", [(2, 2), (2, 8), (4, 16), (3, 5), (64, 1024)])
@pytest.mark.parametrize(
    ("rules", "by_size"), [("literal", [1, 4, 24, 42, 22]), ("paper", [1, 4, 20, 22, 0])]
)
def test_two_levels_have_93_programs_or_47(
    sizes: tuple[int, ...], rules: Rules, by_size: list[int]
) -> None:
    counts = [count_programs(over(*sizes), limit=limit, rules=rules) for limit in range(8)]
    assert [b - a for a, b in pairwise(counts)] == [*by_size, 0, 0]
    assert len(set(synthesize(over(*sizes), rules=rules))) == sum(by_size)


def test_programs_come_in_increasing_size() -> None:
    sizes = [len(program) for program in synthesize(over(2, 2, 2))]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "text", ["", "node.AllReduce", "node.Parallel.AllReduce", "node.InsideGroup.Allreduce"]
)
def test_text_that_is_no_program(text: str) -> None:
    with pytest.raises(InputError):
        Program.parse(text)


def test_program_text_reads_back() -> None:
    for program in synthesize(over(2, 2, 2)):
        assert Program.parse(str(program)) == program
