"""Numerical parity check of a run by a plan against one device. Enters: the same steps twice, by a
plan and by plain PyTorch. Leaves: `OneDevice`: how far apart they are, and up to where that counts
as equal.

In float64 two orders of the same sums differ by 1e-15 or so, and a wrong gradient by far more, so
that nothing between them is left to judgement; hence a plan in float32 is compared in float64 where
it fits. In float32 and below Adam makes steps of full length of gradients that are mere rounding,
so that there parameters are told and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import torch
from torch import Tensor

from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.cast import cast_graph
from meshwright.graph.counts import is_differentiable
from meshwright.plan.plan import OneDevice, Plan, Tolerance
from meshwright.run.single_device import Trained

EXACT = "float64"
MOST = 50_000_000
"""Parameters of a model that is trained in float64 for a comparison."""

TOLERANCES: Mapping[str, Tolerance] = {
    "float64": Tolerance(loss=1e-9, gradient=1e-7, parameter=1e-6),
    "float32": Tolerance(loss=1e-5, gradient=1e-3, parameter=None),
    "bfloat16": Tolerance(loss=3e-2, gradient=2e-1, parameter=None),
    "float16": Tolerance(loss=1e-2, gradient=1e-1, parameter=None),
}
ROUNDING: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 1e-5,
    "bfloat16": 1e-2,
    "float16": 1e-2,
}
"""A gradient below this share of the largest of the model is taken for rounding."""

HALVES = {"bfloat16", "float16"}

SMALL = 1e-4
"""A gradient's error is relative to its largest number, or to this share of the largest of all:
sums from which a small gradient is left over carry the rounding of what cancelled."""


def compared_plan(plan: Plan) -> Plan:
    """The plan in which a run is compared with one device: in float64 where that can be."""
    dtypes = {
        tensor.dtype for tensor in plan.graph.definitions() if is_differentiable(tensor.dtype)
    }
    if plan.graph.parameter_count > MOST or not dtypes <= {"float32", "complex64"}:
        return plan
    return msgspec.structs.replace(plan, graph=cast_graph(plan.graph, EXACT))


def least_exact_dtype(plan: Plan) -> str:
    """The dtype that says how exact a plan is: the least exact of its parameters, or of what it
    computes in less than float32 (`torch.autocast`).
    """
    computed = {definition.dtype for definition in plan.graph.definitions()} & HALVES
    dtypes = {parameter.tensor.dtype for parameter in plan.graph.parameters} & set(
        TOLERANCES
    ) | computed
    return max(dtypes, key=lambda dtype: TOLERANCES[dtype].loss, default="float32")


def verdict(dtype: str, run: Trained, alone: Trained) -> OneDevice:
    """How far a run is from one device.

    >>> one = Trained((2.0,), {"w": torch.ones(1)}, {"w": torch.tensor([4.0])})
    >>> run = Trained((2.0,), {"w": torch.ones(1)}, {"w": torch.tensor([5.0])})
    >>> judged = verdict("float64", run, one)
    >>> judged.equal, judged.parameter_error, judged.parameter
    (False, 0.25, 'w')
    """
    gradients = {
        name: (run.gradients[name], reference)
        for name, reference in alone.gradients.items()
        if name in run.gradients
    }
    largest = max((_largest(tensor) for pair in gradients.values() for tensor in pair), default=0.0)
    least = ROUNDING[dtype] * largest
    if largest < _least_telling(dtype, alone):
        least = largest
    still = [
        n for n, pair in gradients.items() if all(_largest(tensor) <= least for tensor in pair)
    ]
    judged = [name for name in gradients if name not in still]
    errors = {name: _error(*gradients[name], SMALL * largest) for name in judged}
    moved = {name: _error(run.parameters[name], alone.parameters[name]) for name in judged}
    gradient, parameter = _worst(errors), _worst(moved)
    pairs = zip(run.losses, alone.losses, strict=True)
    return OneDevice(
        dtype=dtype,
        loss=alone.losses,
        here=run.losses,
        loss_error=max(_error(_exact(run_loss), _exact(one)) for run_loss, one in pairs),
        gradient_error=errors.get(gradient, 0.0),
        gradient=gradient,
        parameter_error=moved.get(parameter, 0.0),
        parameter=parameter,
        compared=len(judged),
        still=tuple(still),
        tolerance=TOLERANCES[dtype],
    )


def _least_telling(dtype: str, alone: Trained) -> float:
    """Below this a gradient is no more than rounding, whatever the others are: a step as long as
    the largest parameter would change no digit of the loss.
    """
    eps = torch.finfo(torch_dtype(dtype)).eps
    loss = max(map(abs, alone.losses))
    return eps * loss / (max(map(_largest, alone.parameters.values()), default=0.0) or 1.0)


def _worst(errors: Mapping[str, float]) -> str:
    return max(errors, key=lambda name: errors[name], default="")


def _exact(number: float) -> Tensor:
    return torch.tensor(number, dtype=torch.float64)


def _largest(tensor: Tensor) -> float:
    """The largest number by its size; infinite if something is no number."""
    if not tensor.numel():
        return 0.0
    largest = float(
        tensor.detach()
        .to(torch.complex128 if tensor.is_complex() else torch.float64)
        .abs()
        .max()
        .item()
    )
    return math.inf if math.isnan(largest) else largest


def _error(actual: Tensor, expected: Tensor, floor: float = 0.0) -> float:
    """Infinite where there is no number: that compares with nothing."""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (actual.detach().cpu().to(wide) - expected.detach().cpu().to(wide)).abs()
    if not difference.numel():
        return 0.0
    error = float(difference.max().item()) / (max(_largest(expected), floor) or 1.0)
    return math.inf if math.isnan(error) else error
