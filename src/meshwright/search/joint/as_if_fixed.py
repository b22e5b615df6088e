"""The free search does what a constrained one would: a `--fix` never finds a better plan. Enters:
sketches of all frames. Leaves: global decisions, each with the sketches that keep to it.

A search with `--fix zero=1`, say, looks at its best sketches, which a search without may never come
to. So while the bound is far each value of an option is taken for a while as if it were fixed:
sketches with it are simulated and laid out finer, and plans with it climb by their options.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.search.joint.candidates import CandidateEntry
from meshwright.search.joint.global_config import GlobalConfig, stages_of
from meshwright.search.joint.graph_context import CoarseSolution

NAMES = ("zero", "recompute", "stages", "micro_batches")


class FixedDecision(NamedTuple):
    """A value of an option of the whole graph, or the factors of the stages."""

    name: str
    value: object

    def of(self, frame: GlobalConfig) -> bool:
        """Whether a frame keeps to it."""
        return _value(frame, self.name) == self.value

    def kept_by(self, entry: CandidateEntry) -> bool:
        """Whether a plan does."""
        return self.of(GlobalConfig(stages_of(entry.roles), entry.candidate.plan.options))


def decisions(
    sketched: Sequence[CoarseSolution],
) -> Iterator[tuple[FixedDecision, list[CoarseSolution]]]:
    """What may be fixed, ZeRO first, and each with what has the best sketch first."""
    for name in NAMES:
        groups: dict[object, list[CoarseSolution]] = {}
        for sketch in sketched:
            groups.setdefault(_value(sketch.frame, name), []).append(sketch)
        if len(groups) > 1:
            yield from ((FixedDecision(name, value), own) for value, own in groups.items())


def zero_stages(entries: Sequence[CandidateEntry]) -> list[FixedDecision]:
    """The stages of ZeRO that some plans have."""
    stages = sorted({own.candidate.plan.options.zero for own in entries})
    return [FixedDecision("zero", zero) for zero in stages]


def _value(frame: GlobalConfig, name: str) -> object:
    return frame.stages if name == "stages" else getattr(frame.options, name)
