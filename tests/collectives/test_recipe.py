"""What devices send by a program, held against what the simulator says moves."""

from __future__ import annotations

import pytest

from meshwright.collectives.hierarchy import Hierarchy
from meshwright.collectives.predict import predict_all
from meshwright.collectives.recipe import DeviceStep
from meshwright.collectives.reduction_plan import ReductionPlan
from meshwright.collectives.synthesize import MoveSpace
from meshwright.cost.alpha_beta import Pricer
from meshwright.cost.backend import RINGS
from meshwright.cost.collective import Collective
from meshwright.sharding.placement import placements
from meshwright.simulate.collective_implementations import way_of_program
from support.machines import machine


@pytest.mark.parametrize(("sizes", "axes"), [((2, 4), {"data": 8}), ((2, 3), {"data": 3, "t": 2})])
def test_devices_together_send_what_the_simulator_says(
    sizes: tuple[int, ...], axes: dict[str, int]
) -> None:
    cluster, elements, item = machine(*sizes), 4800, 4
    for placement in placements(cluster, axes):
        hierarchy = Hierarchy(placement, cluster.level_names, ["data"])
        space = MoveSpace(hierarchy)
        for priced in predict_all(hierarchy, Pricer(cluster, RINGS), elements * item):
            plan = ReductionPlan(
                cluster=cluster, placement=placement, reduce=("data",), program=priced.program
            )
            sent = [plan.recipe(d).sent(elements, item) for d in range(cluster.devices)]
            moved = way_of_program(space, priced, elements * item).moved * elements * item
            assert sum(sent) == pytest.approx(moved, rel=1e-12), str(priced.program)


def test_a_device_s_steps_as_a_whole() -> None:
    text = "node.InsideGroup.ReduceScatter; node.Parallel(root).AllReduce; "
    text += "node.InsideGroup.AllGather"
    plan = ReductionPlan.parse(f"sum over data of data=4 as [[2 2]] by {text}", machine(2, 2))
    assert plan.recipe(3).steps == (
        DeviceStep(Collective.REDUCE_SCATTER, (2, 3), ((0, 1, 2, 3),) * 2, ((0, 1), (2, 3))),
        DeviceStep(Collective.ALL_REDUCE, (1, 3), ((2, 3),) * 2, ((2, 3),) * 2),
        DeviceStep(Collective.ALL_GATHER, (2, 3), ((0, 1), (2, 3)), ((0, 1, 2, 3),) * 2),
    )
    assert plan.recipe(3).lengths(10) == (2, 3, 2, 3)
    assert plan.recipe(3).sent(10, 4) == 20 + 20 + 20
