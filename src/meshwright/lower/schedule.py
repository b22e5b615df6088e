"""Pipeline schedules: GPipe, 1F1B, interleaved 1F1B. Enters: a kind of schedule and sizes. Leaves:
for each stage its slots, one after the other. What a slot costs is not known here.

A model cut into v = stages · chunks parts lies part i on stage i mod stages, as its chunk
i div stages. With m micro-batches and stage s (0 is the first),
    gpipe        m forwards, then m backwards
    1f1b         min(m, stages - s - 1) forwards; then one forward and one backward in turn, as
                 long as there are forwards; then the backwards left. At most stages - s
                 micro-batches wait for their backward pass (PipeDream-Flush).
    interleaved  1f1b over m · chunks slots, which go through the chunks in rounds of `stages`
                 micro-batches, forwards from the first chunk, backwards from the last; it begins
                 with 2 (stages - s - 1) + (chunks - 1) stages forwards, or with all of them if
                 m = stages (Narayanan et al. 2021, Megatron-LM's `schedules.py`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never

from meshwright.base.errors import InputError
from meshwright.base.integers import require_whole

Schedule = Literal["gpipe", "1f1b", "interleaved"]
Pass = Literal["forward", "backward"]


class Slot(NamedTuple):
    """One micro-batch going through one chunk of a stage, there or back."""

    pass_: Pass
    chunk: int
    micro_batch: int


def order(
    kind: Schedule, stages: int, stage: int, micro_batches: int, chunks: int = 1
) -> tuple[Slot, ...]:
    """The slots of a stage in the order in which it works through them.

    >>> for slot in order("1f1b", stages=2, stage=0, micro_batches=2):
    ...     print(slot.pass_, slot.micro_batch)
    forward 0
    forward 1
    backward 0
    backward 1
    """
    _refuse(kind, stages, stage, micro_batches, chunks)
    slots = micro_batches * chunks
    forwards = [_nth("forward", i, stages, chunks) for i in range(slots)]
    backwards = [_nth("backward", i, stages, chunks) for i in range(slots)]
    ahead = _ahead(kind, stages, stage, micro_batches, chunks)
    turns = [
        slot
        for pair in zip(forwards[ahead:], backwards[: slots - ahead], strict=True)
        for slot in pair
    ]
    return (*forwards[:ahead], *turns, *backwards[slots - ahead :])


def _ahead(kind: Schedule, stages: int, stage: int, micro_batches: int, chunks: int) -> int:
    """How many forwards come before the first pair of a forward and a backward."""
    behind, slots = stages - stage - 1, micro_batches * chunks
    match kind:
        case "gpipe":
            return slots
        case "1f1b":
            return min(behind, slots)
        case "interleaved":
            if micro_batches == stages:
                return slots
            return min(2 * behind + (chunks - 1) * stages, slots)
        case _:
            assert_never(kind)


def _nth(pass_: Pass, index: int, stages: int, chunks: int) -> Slot:
    """The slot that is the index-th of its pass; with one chunk, micro-batch after micro-batch."""
    if chunks == 1:
        return Slot(pass_, 0, index)
    round_, within = divmod(index, stages * chunks)
    chunk, place = divmod(within, stages)
    return Slot(pass_, chunk if pass_ == "forward" else chunks - 1 - chunk, round_ * stages + place)


def _refuse(kind: Schedule, stages: int, stage: int, micro_batches: int, chunks: int) -> None:
    require_whole(stages, "the number of stages is")
    require_whole(micro_batches, "the number of micro-batches is")
    require_whole(chunks, "the number of chunks is")
    if not 0 <= stage < stages:
        raise InputError(f"there is no stage {stage} of {stages}", f"give 0 to {stages - 1}")
    if kind != "interleaved" and chunks > 1:
        raise InputError(
            f"schedule {kind!r} has {chunks} chunks a stage", "give 1, or take 'interleaved'"
        )
    if chunks > 1 and micro_batches % stages:
        raise InputError(
            f"{micro_batches} micro-batches are interleaved over {stages} stages",
            f"give a multiple of {stages}",
        )
