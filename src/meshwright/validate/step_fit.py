"""Fitting the constants of training steps. Enters: rows, a seed. Leaves: `StepConstants`.

Half of the rows, drawn by the seed inside a node and across nodes apart, is fitted. With x the
logarithms of the constants, m and s their expected values and spreads (`step_constants`) and
e_i = log(predicted / given) of row i, the fit lessens
    Σ w_i |e_i|  +  λ Σ w_i · mean over constants of ((x - m) / s)²                      `_cost`
where rows across nodes, of which there are few, weigh ACROSS times as much. Absolute errors, since
a few runs across nodes are far slower than their neighbours. Each step solves the least squares
that touches |e| at the current point (weights 1 / |e|, at most 1 / FLOOR), damped as Levenberg and
Marquardt do and held inside the plausible bounds; slopes are differences of whole simulations. It
starts at the expected values and at a host four times as slow, and keeps the lower end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.validate.step_constants import KNOWN, StepConstants
from meshwright.validate.step_rows import IterationRow
from meshwright.validate.steps import StepPredictor

Floats = NDArray[np.float64]

ACROSS = 6.0
"""How much more a row across nodes counts."""

PULL = 0.0025
"""λ: how much leaving the expected values costs, as a share of error."""

FLOOR = 0.01
"""Errors below this are as good as none."""

STEP = 1e-3
"""The difference of logarithms by which slopes are taken."""

ROUNDS = 40

_NAMES = tuple(KNOWN)
_EXPECTED = np.log([getattr(StepConstants(), name) for name in _NAMES])
_SPREAD = np.array([KNOWN[name].spread for name in _NAMES])
_SLOW_HOST = np.array([math.log(4) if name.endswith("_s") else 0.0 for name in _NAMES])
"""Where the host sets the pace: its times matter there, and not where the device is slower."""
_LOW = np.log([KNOWN[name].low for name in _NAMES])
_HIGH = np.log([KNOWN[name].high for name in _NAMES])


def halves(
    rows: Sequence[IterationRow], seed: int
) -> tuple[list[IterationRow], list[IterationRow]]:
    """The rows to fit and those held out, drawn inside a node and across nodes apart."""
    fitted: list[IterationRow] = []
    held: list[IterationRow] = []
    for across in (False, True):
        own = [row for row in rows if row.across_nodes == across]
        drawn = set(random.Random(seed).sample(range(len(own)), (len(own) + 1) // 2))
        fitted += (row for i, row in enumerate(own) if i in drawn)
        held += (row for i, row in enumerate(own) if i not in drawn)
    return fitted, held


def fit(rows: Sequence[IterationRow], seed: int) -> StepConstants:
    """The constants that predict a half of the rows best."""
    fitted, _ = halves(rows, seed)
    if not fitted:
        raise InputError("there are no rows to fit", "give some")
    weights = np.array([ACROSS if row.across_nodes else 1.0 for row in fitted])
    found = [_descend(fitted, weights, _EXPECTED + start) for start in (0.0, _SLOW_HOST)]
    _, x = min(found, key=lambda one: one[0])
    return _constants(x)


def _descend(rows: Sequence[IterationRow], weights: Floats, x: Floats) -> tuple[float, Floats]:
    """The lowest cost that is found from a start, and where."""
    damping = 1e-2
    errors = _errors(rows, x)
    cost = _cost(errors, weights, x)
    for _ in range(ROUNDS):
        slopes = np.array([_errors(rows, x + STEP * unit) - errors for unit in np.eye(len(x))])
        tried = _improve(rows, weights, x, errors, slopes.T / STEP, damping, cost)
        if tried is None:
            break
        gain = cost - tried[2]
        x, errors, cost, damping = tried
        if gain < 1e-5 * cost:
            break
    return cost, x


def _improve(
    rows: Sequence[IterationRow],
    weights: Floats,
    x: Floats,
    errors: Floats,
    slopes: Floats,
    damping: float,
    cost: float,
) -> tuple[Floats, Floats, float, float] | None:
    """A better point, its errors, cost and damping; None if no damping finds one."""
    sharp = weights / np.maximum(np.abs(errors), FLOOR)
    pull = _pull(weights)
    curvature = slopes.T @ (sharp[:, None] * slopes) + np.diag(pull)
    downhill = slopes.T @ (sharp * errors) + pull * (x - _EXPECTED)
    # What lies on a bound and would leave it takes no part, lest the others answer to its step.
    free = np.flatnonzero(~((x <= _LOW) & (downhill > 0)) & ~((x >= _HIGH) & (downhill < 0)))
    own = curvature[np.ix_(free, free)]
    for _ in range(10):
        stride = np.zeros(len(x))
        stride[free] = np.linalg.solve(own + damping * np.diag(np.diag(own)), downhill[free])
        moved = np.clip(x - np.clip(stride, -0.3, 0.3), _LOW, _HIGH)
        found = _errors(rows, moved)
        lower = _cost(found, weights, moved)
        if lower < cost:
            return moved, found, lower, max(damping / 4, 1e-6)
        damping *= 4
    return None


def _cost(errors: Floats, weights: Floats, x: Floats) -> float:
    return float(weights @ np.abs(errors) + _pull(weights) @ (x - _EXPECTED) ** 2 / 2)


def _pull(weights: Floats) -> Floats:
    """The curvature of what leaving the expected values costs."""
    return np.asarray(2 * PULL * weights.sum() / len(_NAMES) / _SPREAD**2)


def _errors(rows: Sequence[IterationRow], x: Floats) -> Floats:
    predictor = StepPredictor(_constants(x))
    return np.array([np.log(predictor.seconds(row) / row.reference_s) for row in rows])


def _constants(x: Floats) -> StepConstants:
    return StepConstants(**{name: float(np.exp(own)) for name, own in zip(_NAMES, x, strict=True)})
