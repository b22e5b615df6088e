"""Kernel rates and an error band from steps measured on one's own machine. Enters: a cluster, plans
with the seconds that a step of each took there. Leaves: the cluster with rates that fit them, and
how far each step was from what the others predict.

All shares of peak rates and of the memory bandwidth are multiplied by one factor f, which minimises
    Σ |log(predicted(f) / measured)| + a little of |log f|
with log predicted linear in log f between the points of a grid: what steps do not tell stays.
A step is held out by choosing f from the others; the band is the largest error of one held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds, counted
from meshwright.cluster.cluster import Cluster, Device
from meshwright.cluster.rates import JudgedSteps, Rates
from meshwright.cost.tables import is_measured
from meshwright.plan.file import load_plan
from meshwright.plan.plan import Plan
from meshwright.simulate.simulation import simulate
from meshwright.validate.csv_table import Cells, parse_table, positive, read_table

COLUMNS = ("plan", "seconds")
LEAST = 3
"""Steps that a band rests on, at least."""
SHARES = ("best", "narrow", "narrowest", "streaming", "scanning")
"""The rates that are multiplied; all others are relative to them."""
GRID = np.geomspace(0.25, 4.0, 13)
FINE = np.geomspace(0.25, 4.0, 1201)
STAYS = 1e-3


class TimedPlan(NamedTuple):
    """A plan, and what a step of it took."""

    plan: Plan
    seconds: Seconds


class StepCalibration(NamedTuple):
    """A cluster that fits its measured steps, and what it was before."""

    cluster: Cluster
    factor: float
    before: tuple[float, ...]
    """Predicted over measured, of each step."""
    held_out: tuple[float, ...]
    """The same with a factor chosen from the others."""


def load_measured_steps(file: str) -> list[TimedPlan]:
    """The steps of a CSV file with columns `plan` (a plan's file, from where this one is) and
    `seconds`.
    """

    def row(cells: Cells) -> TimedPlan:
        seconds = Seconds(positive(cells, "seconds", "seconds"))
        return TimedPlan(load_plan(Path(file).parent / cells["plan"]), seconds)

    steps = list(parse_table(read_table(file, COLUMNS), file, COLUMNS, row))
    if len(steps) < LEAST:
        raise InputError(
            f"{file}: {counted(len(steps), 'step')}, and each is judged by the others",
            f"measure {LEAST} or more, of different plans or batches",
        )
    return steps


def calibrated_by_steps(cluster: Cluster, steps: Sequence[TimedPlan]) -> StepCalibration:
    """The cluster whose rates fit the steps, with the error of each that was held out."""
    if is_measured(cluster.device):
        raise InputError(
            f"device {cluster.device.name!r} is priced by measured operators, not by rates",
            "give a cluster without 'prices'",
        )
    for step in steps:
        _refuse_other_machine(cluster, step.plan)
    curves = np.array(
        [[_predicted(cluster, it.plan, f) / it.seconds for f in GRID] for it in steps]
    )
    of_step = [np.interp(np.log(FINE), np.log(GRID), row) for row in np.log(curves)]
    chosen = _chosen(of_step)
    if chosen in (0, len(FINE) - 1):
        raise InputError(
            f"the steps would have kernels {FINE[chosen]:g} times as fast as {cluster.name!r} says",
            "describe the device that they ran on, and what they ran",
        )
    held_out = []
    for number, errors in enumerate(of_step):
        others = [row for place, row in enumerate(of_step) if place != number]
        held_out.append(float(np.exp(errors[_chosen(others)])))
    factor = float(FINE[chosen])
    band = JudgedSteps(share=max(abs(ratio - 1) for ratio in held_out), steps=len(steps))
    device = replace(_scaled(cluster.device, factor), judged=band)
    before = tuple(float(row[len(GRID) // 2]) for row in curves)
    return StepCalibration(replace(cluster, device=device), factor, before, tuple(held_out))


def _chosen(of_step: Sequence[NDArray[np.float64]]) -> int:
    """The place of the factor that fits steps best."""
    return int((np.abs(np.array(of_step)).sum(axis=0) + STAYS * np.abs(np.log(FINE))).argmin())


def _predicted(cluster: Cluster, plan: Plan, factor: float) -> Seconds:
    device = _scaled(cluster.device, factor)
    machine = replace(cluster, device=replace(device, software=plan.cluster.device.software))
    sizes = dict(zip(plan.cluster.level_names, plan.cluster.hierarchy, strict=True))
    return simulate(replace(plan, cluster=machine.resized(sizes))).prediction.step


def _scaled(device: Device, factor: float) -> Device:
    """A device all of whose kernels are so many times as fast."""

    def faster(rates: Rates) -> Rates:
        return replace(rates, **{name: getattr(rates, name) * factor for name in SHARES})

    usual = Rates() if device.rates is UNSET else device.rates
    fusing = UNSET if device.fusing is UNSET else faster(device.fusing)
    return replace(device, rates=faster(usual), fusing=fusing)


def _refuse_other_machine(cluster: Cluster, plan: Plan) -> None:
    same = plan.cluster.level_names == cluster.level_names
    if same and plan.cluster.device.name == cluster.device.name:
        return
    raise InputError(
        f"a plan is for {plan.cluster.name!r} with {plan.cluster.device.name}, and the cluster is "
        f"{cluster.name!r} with {cluster.device.name}",
        "give plans that were made for this cluster",
    )
