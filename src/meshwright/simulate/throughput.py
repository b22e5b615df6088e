"""Throughput and utilisation of a plan: tokens/s, MFU (Chowdhery et al. 2022), HFU. Enters: a plan
and what is predicted of it. Leaves: a `Throughput`: tokens/s, samples/s, MFU, HFU, device-hours.

With T the step, n devices of peak rate P (dense, in the dtype of most products), M the model FLOPs
(`graph.workload`) and E all that devices execute: copies of units that are replicated, layers run
again, what fused attention computes anew:
    MFU = M / (T n P)        model FLOPs utilisation (Chowdhery et al. 2022)       `Throughput.mfu`
    HFU = E / (T n P)        hardware FLOPs utilisation                            `Throughput.hfu`
Every figure is as right as the predicted step.
"""

from __future__ import annotations

import math

import msgspec

from meshwright.base.quantities import OpsPerSecond, Seconds
from meshwright.cost.operator import PEAKS
from meshwright.graph.counts import backward, forward
from meshwright.graph.families import family_of
from meshwright.graph.workload import Workload, workload
from meshwright.plan.plan import Plan, Prediction
from meshwright.sharding.layout import REPLICA
from meshwright.sharding.unit import OpGroup

HOUR, DAY = 3600.0, 86400.0


class Throughput(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine gets done by a plan. Predicted."""

    workload: Workload
    step: Seconds
    devices: int
    executed_flops: int
    """By all devices in a step, products and convolutions alone."""
    peak: OpsPerSecond | None
    """Of a device in the dtype of most products; None if its description has none."""

    @property
    def samples_per_s(self) -> float:
        """0 where the graph does not tell its samples."""
        return self.workload.samples / self.step

    @property
    def tokens_per_s(self) -> float | None:
        """None where a sample is no sequence of tokens."""
        return self.workload.tokens / self.step if self.workload.tokens else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation, as a share."""
        return self._share(self.workload.model_flops)

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation, as a share."""
        return self._share(self.executed_flops)

    def _share(self, flops: int) -> float | None:
        return None if self.peak is None else flops / (self.step * self.devices * self.peak)

    def device_hours(self, amount: float) -> float:
        """Hours of devices for so many tokens, or samples where there are no tokens."""
        return self.days(amount) * self.devices * DAY / HOUR

    def days(self, amount: float) -> float:
        """Days on this machine for so many tokens, or samples where there are no tokens."""
        rate = self.tokens_per_s or self.samples_per_s
        return amount / rate / DAY if rate else math.inf


def throughput(plan: Plan, prediction: Prediction) -> Throughput:
    """What a plan gets done, by its predicted step.

    >>> from meshwright.cluster.cluster import Cluster
    >>> from meshwright.graph.text import parse_graph
    >>> from meshwright.sharding.layout import Layout
    >>> from meshwright.simulate.simulation import simulate
    >>> graph = parse_graph('''graph one layer
    ... input x: float32[batch=4, in=8]
    ... parameter w: float32[out=2, in=8]
    ... operator fc: y: float32[batch=4, out=2] = linear(x, w)
    ... output y''')
    >>> plan = Plan.of("twice", graph, Cluster.named("laptop", process=2), [Layout(("replica",))])
    >>> achieved = throughput(plan, simulate(plan).prediction)
    >>> achieved.workload.model_flops, achieved.executed_flops
    (256, 512)
    """
    work = workload(plan.graph)
    device = plan.cluster.device
    return Throughput(
        workload=work,
        step=prediction.step,
        devices=plan.cluster.devices,
        executed_flops=executed_flops(plan),
        peak=dict(device.peak).get(PEAKS.get(work.dtype, "")),
    )


def executed_flops(plan: Plan) -> int:
    """FLOPs of products and convolutions that all devices execute in a step."""
    again = plan.options.runs_again(plan.graph)
    total = 0
    for unit in plan.units:
        roles = plan.layout[unit.name].roles
        sizes = [f.size for f, role in zip(plan.factors, roles, strict=True) if role == REPLICA]
        total += math.prod(sizes) * _flops(unit, unit.name in again)
    return total


def _flops(unit: OpGroup, again: bool) -> int:
    total = 0
    for member in unit.members:
        if family_of(member.call).products:
            once = forward(member.call).flops
            total += once * (1 + again) + backward(member.call, member.wanted).flops
    return total
