"""Loops as PyTorch users write them: by every plan what one device gives, or a sentence."""

from __future__ import annotations

import itertools

import pytest
import torch

from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_of
from meshwright.plan.options import Options
from meshwright.run.launch.ranks import run_ranks
from support import loop_bodies as bodies
from support import parameter_bodies, state_dict_bodies
from support.frozen_bodies import freezing
from support.loop_plans import (
    FROZEN,
    GRAPH,
    LINES,
    any_plans,
    masking_plans,
    plan_of,
    staged,
    twisted,
)

pytestmark = pytest.mark.ranks


PLANS = {
    "dp 2": plan_of("sample"),
    "tp 2": plan_of("channel"),
    "zero 1": plan_of("sample", options=Options(zero=1)),
    "zero 2": plan_of("sample", options=Options(zero=2)),
    "zero 3": plan_of("sample", options=Options(zero=3)),
    "pp 2": staged(),
    "dp 2 x tp 2, zero 3": plan_of("sample", "channel", options=Options(zero=3)),
    "pp 2 x dp 2": staged("sample"),
}


SHARES = dict.fromkeys([name for name in PLANS if name not in ("tp 2", "pp 2")], 2)
"""Into how many parts ranks cut the samples, where into any."""


@pytest.fixture(scope="module")
def alone() -> dict[str, list[float]]:
    return bodies.looped_alone()


@pytest.mark.parametrize("ranks", [2, 4])
def test_loops_are_those_of_one_device(ranks: int, alone: dict[str, list[float]]) -> None:
    plans = {name: plan for name, plan in PLANS.items() if plan.cluster.devices == ranks}
    average = bodies.averaged_alone()
    model = bodies.Alone()
    plain = bodies.trained(model, torch.optim.SGD(model.parameters(), 0.5), clip=False)
    for results in run_ranks(bodies.looped, plans, ranks=ranks):
        assert isinstance(results, dict)
        for name, outcome in results.items():
            for loop, numbers in alone.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)
            assert all(outcome["states"].values()), (name, outcome["states"])
            assert outcome["averages"][0] == pytest.approx(average, rel=1e-9), name
            assert all(outcome["refused"].values()), (name, outcome["refused"])
            shares = SHARES.get(name, 1)
            assert outcome["shares"][:2] == (shares, 3 * bodies.BATCH // shares), name
            assert outcome["shares"][2] == pytest.approx(plain, rel=1e-9), name


def test_state_dicts_of_optimizers_go_from_plan_to_plan() -> None:
    model = bodies.Alone()
    optimizer = state_dict_bodies.grouped(model)
    plain = [loss for first in (0, 2) for loss in state_dict_bodies.steps(model, optimizer, first)]
    names = ("pp 2", "dp 2", "pp 2", "zero 3")
    pairs = [(PLANS[one], PLANS[other]) for one, other in itertools.pairwise(names)]
    for results in run_ranks(state_dict_bodies.resumed, pairs, ranks=2):
        assert isinstance(results, list)
        for outcome in results:
            for kind, losses in outcome.items():
                assert losses == pytest.approx(plain, rel=1e-9), kind


def test_loops_compute_with_parameters_as_on_one_device() -> None:
    alone = parameter_bodies.alone()
    plans = {name: PLANS[name] for name in ("dp 2", "tp 2", "zero 3")}
    for results in run_ranks(parameter_bodies.by_plans, plans, ranks=2):
        assert isinstance(results, dict)
        for name, outcome in results.items():
            for loop, numbers in alone.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)


def test_what_is_computed_with_parts_of_parameters_is_told() -> None:
    plans = {name: PLANS[name] for name in ("pp 2", "zero 3")}
    for said in run_ranks(parameter_bodies.refused, plans, ranks=2):
        assert isinstance(said, dict)
        for what, sentence in {
            "penalty": "a term of the loss is computed of parameters",
            "row": "a part of a tensor that is cut over ranks is written",
            "Adafactor": "Adafactor asks of parameters that are cut",
            "Rprop": "Rprop asks of parameters that are cut",
            "LBFGS": "LBFGS asks of parameters that are cut over ranks in unequal pieces",
            "autograd.grad": "torch.autograd.grad is asked for gradients of a plan's parameters",
            "around": "DistributedDataParallel is put around a module that runs by a plan",
        }.items():
            assert sentence in said[what], what


LINED = {
    "sequence": plan_of("sequence", graph=LINES),
    "sequence, zero 1": plan_of("sequence", options=Options(zero=1), graph=LINES),
    "sequence, zero 3": plan_of("sequence", options=Options(zero=3), graph=LINES),
}


def test_loops_of_split_sequences_are_those_of_one_device() -> None:
    alone = bodies.lined_alone()
    for results in run_ranks(bodies.lined, LINED, ranks=2):
        assert isinstance(results, dict)
        for name, outcome in results.items():
            for loop, numbers in alone.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), (name, loop)


def test_loops_of_any_plan_are_those_of_one_device_or_refused(
    alone: dict[str, list[float]],
) -> None:
    plans = [*any_plans(ranks=4, count=8), twisted(zero=0)]
    for results in run_ranks(bodies.looped_or_refused, [*plans, twisted(zero=3)], ranks=4):
        assert isinstance(results, list)
        *right, refused = results
        for outcome in right:
            assert isinstance(outcome, dict), outcome
            for loop, numbers in alone.items():
                assert outcome[loop] == pytest.approx(numbers, rel=1e-9), loop
        assert isinstance(refused, str)
        assert "'layers.1.weight'" in refused
        assert "dtensors=False" in refused


def test_workers_load_the_share_of_their_rank() -> None:
    names = ("dp 2", "tp 2", "zero 3")
    model = bodies.Alone()
    plain = bodies.trained(model, torch.optim.SGD(model.parameters(), 0.5), False)
    for results in run_ranks(bodies.fed, {name: PLANS[name] for name in names}, ranks=2):
        assert isinstance(results, dict)
        for name, (shares, read, losses) in results.items():
            assert (shares, read) == (SHARES.get(name, 1), 3 * bodies.BATCH // shares), name
            assert losses == pytest.approx(plain, rel=1e-9), name


FREEZING = {
    "dp": (("sample",), 0),
    "tp": (("channel",), 0),
    "zero 1": (("sample",), 1),
    "zero 3": (("sample",), 3),
}


def test_frozen_parameters_have_no_gradient_no_state_and_no_reduction() -> None:
    plans, learning = (
        {
            name: plan_of(*roles, options=Options(zero=zero), graph=graph)
            for name, (roles, zero) in FREEZING.items()
        }
        for graph in (FROZEN, GRAPH)
    )
    for rank, results in enumerate(run_ranks(freezing, plans, ranks=2)):
        assert isinstance(results, dict)
        for name, outcome in results.items():
            learns = {key: not key.startswith("layers.0.") for key in outcome.gradients}
            assert outcome.gradients == outcome.kept == learns, name
            assert outcome.unchanged == {key: not value for key, value in learns.items()}, name
            assert outcome.sent == sent_bytes_of(Script(plans[name]), rank), name
            less = outcome.sent < sent_bytes_of(Script(learning[name]), rank)
            assert less == (name != "tp"), "of a tensor-parallel layer nothing is reduced"


def test_masks_are_the_same_by_every_plan() -> None:
    plans = masking_plans()
    for results in run_ranks(bodies.masked, plans, ranks=2):
        assert isinstance(results, list)
        first, *others = results
        for other in others:
            assert other == pytest.approx(first, rel=1e-9)
        one, again, *rest = first
        assert one == pytest.approx(again, rel=1e-12)
        assert len({round(loss, 9) for loss in (one, *rest)}) == 1 + len(rest)
