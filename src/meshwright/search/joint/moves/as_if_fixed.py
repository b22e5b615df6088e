"""Restricted searches: one global decision at a time held fixed, as by `--fix`. Enters: a question,
coarse solutions of all global configs. Leaves: decisions, and the questions in which one is fixed.

A search with `--fix zero=1`, say, looks at its best coarse solutions, which a search without may
never come to. So while the bound is far
    decisions  each value of an option is taken for a while as if it were fixed: coarse solutions
               with it are simulated and laid out finer, and plans with it climb by their options
    questions  where nothing is fixed, every question with a single `--fix` is searched as if the
               user had asked it, and its answer is one of the candidates: with a budget of
               proposals in full, so that the law holds by construction
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.graph.layers import layer_count
from meshwright.search.budget import Budget
from meshwright.search.joint.coarse.global_config import GlobalConfig, micro_batches, stages_of
from meshwright.search.joint.coarse.graph_context import CoarseSolution
from meshwright.search.joint.request.consistent import refuse_impossible
from meshwright.search.joint.request.constraints import (
    MICRO_BATCHES,
    RECOMPUTE,
    SHARD_WITHIN,
    STAGES,
    SYNC_EACH,
    ZERO,
)
from meshwright.search.joint.request.contradictions import runs
from meshwright.search.joint.request.question import PlanRequest
from meshwright.search.joint.trials.candidates import CandidateEntry
from meshwright.sharding.layout import level_group_sizes
from meshwright.sharding.units import units

NAMES = ("zero", "recompute", "stages", "micro_batches")


FIXING = 50
"""Proposals for each unit from which on questions with a `--fix` are searched too."""


def worth_fixing(question: PlanRequest, budget: Budget) -> bool:
    """Whether nothing is fixed yet and a budget has enough for questions in which something is."""
    least = FIXING * len(units(question.graph))
    enough = budget.proposals is None or budget.proposals >= least
    return enough and not question.constraints.fixed


def fixed_questions(question: PlanRequest) -> Iterator[PlanRequest]:
    """The question with each single `--fix` that can be kept."""
    for decision in _fixes(question):
        constraints = replace(question.constraints, fixed=(decision,))
        asked = replace(question, constraints=constraints)
        try:
            refuse_impossible(asked)
        except InputError:
            continue
        yield asked


def _fixes(question: PlanRequest) -> Iterator[tuple[str, str]]:
    """Options of the whole graph, then degrees of splits."""
    graph, cluster = question.graph, question.cluster
    yield from ((ZERO, str(stage)) for stage in range(4))
    if len(micro_batches(graph)) > 1:
        yield from ((SYNC_EACH, word) for word in ("no", "yes"))
    yield from ((SHARD_WITHIN, str(devices)) for devices in (0, *level_group_sizes(cluster)))
    if layer_count(graph):
        yield from ((RECOMPUTE, word) for word in ("no", "yes"))
    yield from ((STAGES, str(count)) for count in sorted({1, *map(prod, runs(cluster).values())}))
    yield from ((MICRO_BATCHES, str(count)) for count in micro_batches(graph))
    splits = dict.fromkeys(split.name for unit in units(graph) for split in unit.splits)
    for name in splits:
        yield from ((name, str(degree)) for degree in divisors(cluster.devices))


class FixedDecision(NamedTuple):
    """A value of an option of the whole graph, or the factors of the stages."""

    name: str
    value: object

    def of(self, global_config: GlobalConfig) -> bool:
        """Whether a global config keeps to it."""
        return _value(global_config, self.name) == self.value

    def kept_by(self, entry: CandidateEntry) -> bool:
        """Whether a plan does."""
        return self.of(GlobalConfig(stages_of(entry.roles), entry.candidate.plan.options))


def decisions(
    sketched: Sequence[CoarseSolution],
) -> Iterator[tuple[FixedDecision, list[CoarseSolution]]]:
    """What may be fixed, ZeRO first, and each with what has the best coarse solution first."""
    for name in NAMES:
        groups: dict[object, list[CoarseSolution]] = {}
        for solution in sketched:
            groups.setdefault(_value(solution.global_config, name), []).append(solution)
        if len(groups) > 1:
            yield from ((FixedDecision(name, value), group) for value, group in groups.items())


def zero_stages(entries: Sequence[CandidateEntry]) -> list[FixedDecision]:
    """The stages of ZeRO that some plans have."""
    stages = sorted({entry.candidate.plan.options.zero for entry in entries})
    return [FixedDecision("zero", zero) for zero in stages]


def _value(global_config: GlobalConfig, name: str) -> object:
    return global_config.stages if name == "stages" else getattr(global_config.options, name)
