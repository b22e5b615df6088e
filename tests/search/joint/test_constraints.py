"""Constraints: said wrongly they are refused with a sentence; searches keep to them; a plan that
breaks one is found out by a check of its own."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from meshwright.exact.duration_tables import choices
from meshwright.exact.exhaustive import exhaustive
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.text import parse_graph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.search.budget import Budget
from meshwright.search.joint.request.consistent import checked
from meshwright.search.joint.request.constraints import (
    OPTIONS,
    Constraints,
    allowed,
    allows,
    option,
    parse_constraints,
    rule_allowed,
    sitting,
)
from meshwright.search.joint.request.contradictions import stage_runs
from meshwright.search.joint.request.violations import violations
from meshwright.search.mcmc.metropolis import (
    COST,
    LONGEST,
    MetropolisChain,
    chain_buffers,
    run_metropolis,
)
from meshwright.search.mcmc.parallel_chains import random_roles, search
from meshwright.sharding.layout import Layout, factors, layouts
from meshwright.sharding.reshard import Codes
from meshwright.sharding.unit import OpGroup
from meshwright.sharding.units import units
from meshwright.simulate import full
from meshwright.simulate.edge_collectives import FOUND
from meshwright.simulate.layout_space import space
from meshwright.simulate.move import move_buffers, undo
from meshwright.simulate.problem import StepModel
from support.plan_strategies import plans

TWO = Cluster.named("flexflow-p100", node=1, gpu=2)
PAIRS = Cluster.named("flexflow-p100", node=2, gpu=2)
EIGHT = Cluster.named("flexflow-p100", node=2, gpu=4)


def chain(batch: int = 4096) -> OperatorGraph:
    n = f"n={batch}"
    return parse_graph(
        f"""graph chain
        input x: float32[{n}, d=32]
        input t: int64[{n}]
        parameter a: float32[o=64, i=32]
        parameter b: float32[o=16, i=64]
        operator first: p: float32[{n}, d=64] = linear(x, a)
        operator relu: q: float32[{n}, d=64] = relu(p)
        operator bent: s: float32[{n}, d=64] = exp(q)
        operator second: r: float32[{n}, d=16] = linear(s, b)
        operator loss: l: float32[] = cross_entropy_loss(r, t)
        output l
        loss l"""
    )


UNITS = units(chain())
"""first, relu (with bent), second, loss."""


def parsed(text: str) -> Constraints:
    """From one text: pins begin with "pin ", forbids have an @ and fixes do not."""
    parts = [part.strip() for part in text.split(";") if part.strip()]
    pins = [part.removeprefix("pin ") for part in parts if part.startswith("pin ")]
    rest = [part for part in parts if not part.startswith("pin ")]
    forbids = [part for part in rest if "@" in part]
    return parse_constraints(pins, forbids, [part for part in rest if "@" not in part])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("pin fisrt=sample sample sample", "names no unit; did you mean 'first'"),
        ("pin first=sample sample", "has 2 roles, 'sample sample'; give one for each of the .* 3"),
        ("pin first=rows sample sample", "cannot be split along 'rows'"),
        ("pin first=@2 sample sample", "sits at '@2' of factor 0, which has 2"),
        ("channl@node", "'channl', forbidden on 'node', is no role; did you mean 'channel'"),
        ("channel@nod", "has no level 'nod' on which to forbid 'channel'; did you mean 'node'"),
        ("sampel=4", "neither a split of any unit nor an option; did you mean 'sample'"),
        ("dp=3", "'sample=3' does not divide the 8 devices"),
        ("pp=3", "'?stages=3'? is the product of no factors in a row"),
        ("sample=3", "'sample=3' does not divide the 8 devices"),
        ("stages=3", "is the product of no factors in a row .*; give one of 1, 2, 4, 8"),
        ("stages=8", "more than the graph's 4 units"),
        ("micro-batches=3", "does not divide the 4096 samples of unit 'first'"),
        ("zero=9", "'?zero=9'? is no ZeRO stage; give 0, 1, 2 or 3"),
        ("shard-within=3", "is the product of no inner factors .*; give one of 0, 2, 4, 8; 0 is"),
        ("zero=one", "zero=one: 'one' is not a whole number"),
        ("sample=0", "sample=0 is no number of ways"),
        ("recompute=maybe", "neither yes nor no"),
        ("stages=", "'stages=' is nothing to fix; write it as"),
        ("pin =sample", "'=sample' is nothing to pin"),
        ("@node", "'@node' is nothing to forbid"),
    ],
)
def test_what_is_said_wrongly_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        checked(parsed(text), UNITS, EIGHT)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("pin first=channel sample sample; channel@node", "first=channel sample sample.*channel@n"),
        ("pin first=sample sample sample; pin f*=channel sample sample", "first=.*f\\*=channel"),
        ("pin relu=sample sample sample; pin bent=sample sample replica", "relu=.*bent="),
        ("pin first=sample sample channel; sample=8", "first=sample sample channel.*sample=8"),
        ("zero=1; sample=4; sample=2", "'sample=4' and 'sample=2'"),
        ("shard-within=4; zero=0; sample=4", "'zero=0' and 'shard-within=4'"),
        ("stages=2; stages=4", "'stages=2' and 'stages=4'"),
        ("micro-batches=2; micro-batches=4", "'micro-batches=2' and 'micro-batches=4'"),
        ("recompute=yes; recompute=no", "'recompute=yes' and 'recompute=no'"),
        ("stages=2; sample=8", "'sample=8' and 'stages=2'|'stages=2' and 'sample=8'"),
        ("stages=4; pin second=sample sample sample", "'second=sample sample sample' and 'stage"),
        ("sample@node; zero=1; sample=8", "'sample@node' and 'sample=8'"),
        ("stage@node; stage@gpu; stages=2", "'stage@node', 'stage@gpu' and 'stages=2'"),
        ("channel=4; inner=4; sample@gpu", "'channel=4' and 'inner=4'"),
    ],
)
def test_contradictions_name_the_pair(text: str, pair: str) -> None:
    with pytest.raises(InputError, match=f"({pair}).* contradict each other"):
        checked(parsed(text), UNITS, EIGHT)


def test_stages_need_factors_that_are_left() -> None:
    """Four stages on the two GPUs of a machine, where nodes are barred."""
    with pytest.raises(InputError, match="'stage@node' and 'stages=4' contradict"):
        checked(parsed("stage@node; stages=4"), UNITS, PAIRS)
    checked(parsed("stage@node; stages=4"), UNITS, EIGHT)
    assert stage_runs(parsed("stage@node; stages=4"), EIGHT) == [frozenset({1, 2})]


def test_stages_lie_along_the_same_factors_in_all_units() -> None:
    text = "pin first=stage sample sample; pin second=sample stage sample"
    with pytest.raises(InputError, match="contradict each other"):
        checked(parsed(text), UNITS, EIGHT)
    checked(parsed("pin first=stage sample sample; pin second=@1 idle sample"), UNITS, EIGHT)


def test_options_and_rules() -> None:
    constraints = parse_constraints([], [], ["stages=2", "recompute=yes", "zero=0"], ["fuse*"])
    assert [option(constraints, name) for name in OPTIONS] == [2, None, 0, None, None, True, None]
    assert [rule_allowed(constraints, name) for name in ("fuse-relu", "swap")] == [False, True]
    assert sitting(parsed("pin first=@1 sample stage; pin loss=sample idle sample"), EIGHT) == (
        True,
        True,
        True,
    )
    with pytest.raises(InputError, match="no option"):
        option(constraints, "stage")


ROLES = ("sample", "channel", "inner", "replica", "idle")


@st.composite
def constraints(draw: st.DrawFn, cluster: Cluster, parts: tuple[OpGroup, ...]) -> Constraints:
    """Constraints that name what there is, contradictory or not."""
    pinned = [
        (unit.name, str(draw(st.sampled_from(list(layouts(unit.extents, cluster))))))
        for unit in parts
        if draw(st.integers(0, 3)) == 0
    ]
    forbids = st.tuples(st.sampled_from(ROLES), st.sampled_from(cluster.level_names))
    degrees = st.tuples(st.sampled_from(ROLES[:3]), st.sampled_from(["1", "2"]))
    return Constraints(
        pinned=tuple(pinned),
        forbidden=tuple(draw(st.lists(forbids, max_size=2, unique=True))),
        fixed=tuple(draw(st.lists(degrees, max_size=2, unique_by=lambda pair: pair[0]))),
    )


def consistent(constraints: Constraints, cluster: Cluster) -> bool:
    """Whether they can be kept without stages."""
    fixed = (*constraints.fixed, ("stages", "1"))
    try:
        checked(msgspec.structs.replace(constraints, fixed=fixed), UNITS, cluster)
    except InputError:
        return False
    return True


@given(own=constraints(PAIRS, UNITS))
def test_consistent_is_what_leaves_every_unit_a_layout(own: Constraints) -> None:
    judge, machine = allowed(own, PAIRS), factors(PAIRS)
    left = [
        any(judge.layout(unit, layout, machine) for layout in layouts(unit.extents, PAIRS))
        for unit in UNITS
    ]
    assert consistent(own, PAIRS) == all(left)


@given(data=st.data(), plan=plans(st.just(Options())))
def test_the_judge_and_the_check_of_plans_agree(data: st.DataObject, plan: Plan) -> None:
    limits = data.draw(constraints(plan.cluster, plan.units))
    if data.draw(st.booleans()):
        names = [unit.name for unit in plan.units]
        name = data.draw(st.sampled_from(names))
        limits = Constraints(pinned=((name, dict(plan.layouts)[name]),), fixed=limits.fixed)
    along = [{layout.roles[f] for layout in plan.layout.values()} for f in range(len(plan.factors))]
    staged = frozenset(
        f
        for f, roles in enumerate(along)
        if len(roles) > 1 and all(role.startswith("@") for role in roles)
    )
    kept = all(
        allows(limits, unit, plan.layout[unit.name], plan.cluster, staged) for unit in plan.units
    )
    assert (violations(plan, limits) == []) == kept


def test_violations_name_what_is_broken() -> None:
    rows = ["@0 sample sample", "@0 sample sample", "@1 channel sample", "@1 sample sample"]
    plan = Plan(
        origin="mine",
        graph=chain(),
        cluster=EIGHT,
        layouts=tuple(zip((unit.name for unit in UNITS), rows, strict=True)),
        options=Options(micro_batches=2, zero=1),
    )
    kept = "pin first=stage sample sample; pin bent=@0 sample sample; stages=2; micro-batches=2"
    assert violations(plan, parsed(f"{kept}; zero=1; recompute=no; idle@node; stage@gpu")) == []
    broken = "pin second=stage sample sample; stage@node; channel@gpu; sample=4; stages=4; zero=2"
    assert violations(plan, parsed(broken)) == [
        "'second=stage sample sample': unit 'second' has layout '@1 channel sample'",
        "'stage@node': unit 'first' has layout '@0 sample sample'",
        "'stage@node': unit 'relu' has layout '@0 sample sample'",
        "'stage@node': unit 'second' has layout '@1 channel sample'",
        "'stage@node': unit 'loss' has layout '@1 sample sample'",
        "'channel@gpu': unit 'second' has layout '@1 channel sample'",
        "'sample=4': unit 'second' is cut 2 ways",
        "'stages=4': the plan has 2",
        "'zero=2': the plan has 1",
    ]


def problem_of(constraints: Constraints, cluster: Cluster) -> StepModel:
    return StepModel(chain(), cluster, allowed=allowed(constraints, cluster))


def makespan(problem: StepModel, roles: Codes) -> int:
    problem.lay(roles)
    return full.simulate(problem.tasks).makespan


@settings(max_examples=15)
@given(own=constraints(PAIRS, UNITS), seed=st.integers(0, 9))
def test_walks_visit_only_what_is_allowed(own: Constraints, seed: int) -> None:
    assume(consistent(own, PAIRS))
    problem = problem_of(own, PAIRS)
    roles = random_roles(problem, seed)
    number = np.zeros(6, np.int64)
    number[COST] = makespan(problem, roles)
    hot = np.array([1e12])
    walk = MetropolisChain(np.array([seed], np.uint64), number, hot, roles.copy())
    table, log, room = chain_buffers(problem), undo(problem, LONGEST), space(problem)
    for _ in range(30):
        plan = problem.plan("walk", problem.roles)
        assert violations(plan, own) == []
        while (status := run_metropolis(move_buffers(problem), log, room, walk, table, 3)) != FOUND:
            problem.supply(status)


@settings(max_examples=15)
@given(own=constraints(PAIRS, UNITS))
def test_searches_return_only_what_is_allowed(own: Constraints) -> None:
    assume(consistent(own, PAIRS))
    problem = problem_of(own, PAIRS)
    best = search(problem, {"random": random_roles(problem, 0)}, Budget(proposals=1500))
    assert violations(problem.plan("found", best.roles), own) == []
    assert best.nanoseconds == makespan(problem, best.roles)


@settings(max_examples=10)
@given(own=constraints(TWO, UNITS))
def test_the_optimum_is_that_of_the_allowed_plans(own: Constraints) -> None:
    assume(consistent(own, TWO))
    free, problem = StepModel(chain(), TWO), problem_of(own, TWO)
    every = [
        [
            roles
            for roles, layout in zip(rows, layouts_of(free, number, rows), strict=True)
            if allows(own, unit, layout, TWO)
        ]
        for number, (unit, rows) in enumerate(zip(free.units, choices(free), strict=True))
    ]
    least = min(makespan(free, np.array(rows, np.int8)) for rows in product(*every))
    optimum = exhaustive(problem)
    assert (optimum.proved, optimum.nanoseconds) == (True, least)
    assert optimum.roles is not None
    assert violations(problem.plan("found", optimum.roles), own) == []


def layouts_of(problem: StepModel, unit: int, rows: Codes) -> list[Layout]:
    roles = problem.roles.copy()
    of_unit: list[Layout] = []
    for row in rows:
        roles[unit] = row
        of_unit.append(problem.layouts(roles)[unit])
    return of_unit


def test_a_pinned_coordinate_is_not_renamed() -> None:
    constraints = parsed("pin first=@1; pin loss=@1")
    optimum = exhaustive(problem_of(constraints, TWO))
    assert optimum.proved
    assert optimum.roles is not None
    assert violations(problem_of(constraints, TWO).plan("found", optimum.roles), constraints) == []


def test_fixed_degrees_are_drawn_all_alike() -> None:
    """sample=2 on 2 x 4: 3 places for it, and 3 other roles for each of the two others."""
    problem = problem_of(parsed("sample=2; idle@node; idle@gpu"), EIGHT)
    room = space(problem)
    drawn = {random_roles(problem, seed)[0].tobytes() for seed in range(300)}
    assert int(room.roles[0].prod()) == 4**3
    assert len(drawn) == 3 * 3 * 3


def test_starts_outside_are_refused() -> None:
    problem = problem_of(parsed("sample=4"), EIGHT)
    whole = np.full(problem.roles.shape, -1, np.int8)
    with pytest.raises(InputError, match="start 'whole' gives unit 'first' a layout"):
        search(problem, {"whole": whole}, Budget(proposals=10))


def test_nothing_left_is_a_sentence() -> None:
    """Degrees that micro-batches leave no room for are found only with the micro-batches."""
    constraints = parsed("sample=8")
    problem = StepModel(
        chain(batch=8), EIGHT, Options(micro_batches=2), allowed=allowed(constraints, EIGHT)
    )
    with pytest.raises(InputError, match="unit 'first' may have hardly any of its layouts"):
        random_roles(problem, 0)
    with pytest.raises(InputError, match="unit 'first' may have none of its layouts"):
        choices(problem)
