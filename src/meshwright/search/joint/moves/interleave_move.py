"""Interleaved 1F1B (Narayanan et al. 2021) of pipelines that were found. Enters: a plan of a global
config with stages. Leaves: the same layouts with several runs of units (virtual stages) on every
stage.

Units in a row are cut into v p pieces by `chain_partition`, as into p stages before; piece k sits
on stage k mod p. The bubble is v times shorter, and v times as much crosses between stages.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.search.joint.trials.evaluate import Evaluator

RUNS = (2, 3, 4, 6)
"""Virtual stages of a device, the fewest first."""

PIPELINES = 3
"""Plans with stages that are interleaved, the best first."""


def simulate_interleaved(trials: Evaluator, enough: Callable[[], bool]) -> None:
    """Simulate the best pipelines with virtual stages, more and more while they get faster."""
    for entry in _pipelines(trials)[:PIPELINES]:
        assert entry.solution is not None
        context, options = entry.context, entry.candidate.plan.options
        if options.micro_batches % entry.solution.global_config.degree(context.factors):
            continue
        before = entry
        for runs in RUNS:
            if enough():
                return
            roles = context.virtual(entry.solution, runs)
            tried = trials.relaid(entry, replace(options, schedule="interleaved"), roles)
            if tried is None or trials.kept.score(tried) >= trials.kept.score(before):
                break
            before = tried


def _pipelines(trials: Evaluator) -> list[CandidateEntry]:
    return [
        entry
        for entry in trials.kept.ranked()
        if entry.solution is not None
        and entry.solution.global_config.stages
        and entry.candidate.plan.options.micro_batches > 1
    ]
