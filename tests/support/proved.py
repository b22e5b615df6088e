"""Plans held against one device. Enters: plans of tiny models. Leaves: for each how far its numbers
are from those of one device, and whether the bytes that it sent are those that were predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from meshwright.base.quantities import Seconds
from meshwright.lower.script import Script
from meshwright.lower.traffic import sent_bytes_of
from meshwright.run.launch.ranks import Home, run_ranks
from support.drawn_plans import Drawn, one_device
from support.executed import (
    OPTIMIZERS,
    Array,
    Arrays,
    Trained,
    Training,
    errors,
    tiny,
    trained_each,
    whole,
)

PATIENCE = Seconds(900.0)
STEPS = 5

TOLERANCE = {"float64": 1e-9, "float32": 2e-3}
"""Of losses, gradients and parameters, relative to the largest number of each tensor."""


DRIFTS = 10
"""How many times further than the measured drift of one device a plan's numbers may be: a plan adds
in another order in every step, the drift is that of other weights at the beginning. Momentum and
the large gradients of a tiny normalised Inception make 1e-15 become 1e-6 in five steps, and a
maximum that is taken from a neighbour makes 1e-5 become 1e-2."""

NUDGES = tuple((seed, bits) for bits in (1, 10) for seed in (1, 2, 3))
"""Seeds of other weights, and by how many last bits they differ."""


class Verdict(NamedTuple):
    """What became of a plan."""

    drawn: Drawn
    loss: float
    """The largest relative error of any step's loss."""
    gradient: float
    """Of any gradient of the first step."""
    parameter: float
    """Of any parameter after all steps."""
    sent: tuple[tuple[int, ...], ...]
    """For each rank the bytes of every step."""
    predicted: tuple[int, ...]
    drift: float = 0.0
    """How far one device gets from itself if the last bits of its weights are others; measured only
    where numbers after several steps are further off than the tolerance."""

    @property
    def error(self) -> float:
        """The largest of all."""
        return max(self.loss, self.gradient, self.parameter)

    @property
    def exact(self) -> bool:
        """Whether the first step is that of one device, and bytes are as predicted."""
        return self.gradient <= TOLERANCE[self.drawn.dtype] and all(
            set(sent) == {predicted}
            for sent, predicted in zip(self.sent, self.predicted, strict=True)
        )

    @property
    def strict(self) -> bool:
        """Whether numbers and bytes are as they should be, after the last step too."""
        return self.exact and self.error <= TOLERANCE[self.drawn.dtype]

    @property
    def right(self) -> bool:
        """The same, but of what several steps have grown no more is asked than one device gives."""
        grown = max(self.loss, self.parameter)
        return self.strict or (self.exact and grown <= DRIFTS * self.drift)

    def __str__(self) -> str:
        drawn, options = self.drawn, self.drawn.plan.options
        shape = "x".join(map(str, drawn.plan.cluster.hierarchy))
        return (
            f"{drawn.key} on {shape}, {options.micro_batches} micro-batches, ZeRO {options.zero}: "
            f"loss {self.loss:.1e}, gradient {self.gradient:.1e}, parameter {self.parameter:.1e}"
            f"{f' (one device drifts {self.drift:.1e})' if self.drift else ''}, "
            f"sent {sum(sent[0] for sent in self.sent)} B, predicted {sum(self.predicted)} B"
        )


def verdicts(
    all_: Sequence[Drawn],
    timeout: Seconds = PATIENCE,
    home: Home | None = None,
    backend: str = "operators",
) -> list[Verdict]:
    """Of plans for equally many devices, which run one after the other on the same ranks; what one
    device does is computed on a CPU.
    """
    models = {sample.key: tiny(sample.model, sample.batch, sample.dtype).values for sample in all_}
    (devices,) = {sample.plan.cluster.devices for sample in all_}
    trainings = [
        Training(sample.plan, sample.key, tuple(OPTIMIZERS)[number % len(OPTIMIZERS)], STEPS)
        for number, sample in enumerate(all_)
    ]
    alone = [t._replace(plan=one_device(d)) for t, d in zip(trainings, all_, strict=True)]
    (expected,) = run_ranks(trained_each, alone, models, ranks=1, timeout=timeout)
    asked = [training._replace(backend=backend) for training in trainings]
    by_rank = run_ranks(trained_each, asked, models, ranks=devices, home=home, timeout=timeout)
    assert isinstance(expected, list)
    by_plan = zip(*by_rank, strict=True)
    judged = [
        _verdict(sample, one, ranks)
        for sample, one, ranks in zip(all_, expected, by_plan, strict=True)
    ]
    return [
        verdict._replace(drift=_drift(alone[number], models, expected[number], timeout))
        if verdict.exact and not verdict.strict
        else verdict
        for number, verdict in enumerate(judged)
    ]


def _drift(
    alone: Training, models: Mapping[str, Arrays], expected: Trained, timeout: Seconds
) -> float:
    """How far one device gets from itself with other last bits in its weights, at most."""
    drifts = []
    for seed, bits in NUDGES:
        nudged = {alone.model: _nudged(models[alone.model], seed, bits)}
        ((outcome,),) = cast(
            "list[list[Trained]]",
            run_ranks(trained_each, [alone], nudged, ranks=1, timeout=timeout),
        )
        losses = [abs(a - b) / abs(b) for a, b in zip(outcome.losses, expected.losses, strict=True)]
        parameters = errors(whole(expected.parameters), [outcome.parameters])
        drifts.append(max(*losses, *parameters.values()))
    return max(drifts)


def _nudged(values: Arrays, seed: int, bits: int) -> Arrays:
    """The same numbers, half of them more by so many times their last bit."""
    rng = np.random.default_rng(seed)

    def nudge(array: Array) -> Array:
        if not np.issubdtype(array.dtype, np.floating):
            return array
        return np.where(
            rng.random(array.shape) < 0.5, array, array + bits * np.spacing(np.abs(array))
        )

    return {name: nudge(array) for name, array in values.items()}


def _verdict(drawn: Drawn, one: Trained, ranks: Sequence[Trained]) -> Verdict:
    script = Script(drawn.plan)
    losses = [
        abs(a - b) / abs(b) for rank in ranks for a, b in zip(rank.losses, one.losses, strict=True)
    ]
    gradients = errors(whole(one.gradients), [rank.gradients for rank in ranks])
    parameters = errors(whole(one.parameters), [rank.parameters for rank in ranks])
    return Verdict(
        drawn=drawn,
        loss=max(losses),
        gradient=max(gradients.values()),
        parameter=max(parameters.values()),
        sent=tuple(tuple(rank.sent) for rank in ranks),
        predicted=tuple(sent_bytes_of(script, device) for device in range(len(ranks))),
    )
