"""Reduction plans: choosing, checking, text and JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.predict import predict_all
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.collectives.synthesize import synthesize
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import BACKENDS
from meshwright.sharding.placement import placements
from support.machines import machine


@st.composite
def reduction_plans(draw: st.DrawFn) -> ReductionPlan:
    cluster = machine(*draw(st.sampled_from([(4,), (2, 4), (2, 3), (2, 2, 2)])))
    axes = draw(st.sampled_from([{"data": 2}, {"data": cluster.devices}, {"t": 2, "data": 1}]))
    placement = draw(st.sampled_from(list(placements(cluster, axes, idle=True))))
    programs = synthesize(Hierarchy(placement, cluster.level_names, ["data"]), limit=3)
    program = draw(st.sampled_from(list(programs)))
    return ReductionPlan(cluster=cluster, placement=placement, reduce=("data",), program=program)


@given(reduction_plans())
def test_text_and_json_read_back(plan: ReductionPlan) -> None:
    assert ReductionPlan.parse(str(plan), plan.cluster) == plan
    assert ReductionPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_chosen_plan_is_the_cheapest_of_all(backend: str) -> None:
    cluster, payload = machine(2, 4), 1 << 22
    plan = ReductionPlan.chosen(
        cluster, bytes=payload, axes={"tensor": 2, "data": 4}, reduce=["data"], backend=backend
    )
    pricer = Pricer(cluster, BACKENDS[backend])
    seconds = {
        (placement, priced.program): priced.seconds
        for placement in placements(cluster, {"tensor": 2, "data": 4})
        for priced in predict_all(
            Hierarchy(placement, cluster.level_names, ["data"]), pricer, payload
        )
    }
    assert seconds[plan.placement, plan.program] == min(seconds.values())


def test_a_matrix_settles_the_placement() -> None:
    given_one = ReductionPlan.chosen(
        machine(2, 4), bytes=1024, axes={"data": 4, "tensor": 2}, matrix="[[2 2] [1 2]]"
    )
    assert str(given_one).startswith("sum over data of data=4,tensor=2 as [[2 2] [1 2]] by ")


FLAT = "sum over data of data=8 as [[2 4]] by "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("all of it", "'all of it' is not a reduction plan; write 'sum over"),
        (f"{FLAT}root.InsideGroup.Reduce", "does not sum over data"),
        (f"{FLAT}level1.InsideGroup.AllReduce", "the hierarchy has no level 'level1'"),
        (
            "sum over data of data=4 as [[2 2]] by root.InsideGroup.AllReduce",
            "make them multiply to [2, 4]",
        ),
        ("sum over dat of data=8 as [[2 4]] by root.InsideGroup.AllReduce", "no axis 'dat'"),
    ],
)
def test_what_is_no_plan_is_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        ReductionPlan.parse(text, machine(2, 4))
    assert said in str(error.value)


def test_json_of_something_else_is_a_sentence() -> None:
    plan = ReductionPlan.chosen(machine(2, 4), bytes=1024)
    broken = plan.to_json().replace(b"AllReduce", b"Broadcast")
    for content, said in ((b"{", "no reduction plan"), (broken, "does not sum over data")):
        with pytest.raises(InputError, match=said):
            ReductionPlan.from_json(content)
