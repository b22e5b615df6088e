"""Orders of pipelines: every slot once, in time, within bounds, and none waits forever."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.lower.schedule import Schedule, Slot, order


@st.composite
def shapes(draw: st.DrawFn) -> tuple[Schedule, int, int, int]:
    """A schedule, stages, micro-batches and chunks that fit together."""
    kind: Schedule = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    stages = draw(st.integers(1, 6))
    chunks = draw(st.integers(1, 3)) if kind == "interleaved" else 1
    rounds = draw(st.integers(1, 4))
    micro_batches = rounds * stages if chunks > 1 else draw(st.integers(1, 12))
    return kind, stages, micro_batches, chunks


def text(slots: Sequence[Slot]) -> str:
    return " ".join(f"{slot.pass_[0]}{slot.chunk}.{slot.micro_batch}" for slot in slots)


def test_1f1b_of_three_stages() -> None:
    orders = [text(order("1f1b", 3, stage, 4)) for stage in range(3)]
    assert orders == [
        "f0.0 f0.1 f0.2 b0.0 f0.3 b0.1 b0.2 b0.3",
        "f0.0 f0.1 b0.0 f0.2 b0.1 f0.3 b0.2 b0.3",
        "f0.0 b0.0 f0.1 b0.1 f0.2 b0.2 f0.3 b0.3",
    ]


def test_interleaved_as_megatron_publishes_it() -> None:
    """2 stages of 2 chunks, 4 micro-batches: 2 (2 - s - 1) + 2 forwards come first."""
    assert text(order("interleaved", 2, 0, 4, 2)) == (
        "f0.0 f0.1 f1.0 f1.1 f0.2 b1.0 f0.3 b1.1 f1.2 b0.0 f1.3 b0.1 b1.2 b1.3 b0.2 b0.3"
    )
    assert text(order("interleaved", 2, 1, 4, 2)) == (
        "f0.0 f0.1 f1.0 b1.0 f1.1 b1.1 f0.2 b0.0 f0.3 b0.1 f1.2 b1.2 f1.3 b1.3 b0.2 b0.3"
    )


def test_interleaved_with_as_many_micro_batches_as_stages_runs_all_forwards_first() -> None:
    passes = [slot.pass_ for slot in order("interleaved", 2, 1, 2, 2)]
    assert passes == ["forward"] * 4 + ["backward"] * 4


@given(shapes())
def test_every_slot_comes_once_and_backward_after_forward(
    shape: tuple[Schedule, int, int, int],
) -> None:
    kind, stages, micro_batches, chunks = shape
    for stage in range(stages):
        slots = order(kind, stages, stage, micro_batches, chunks)
        every = {
            Slot(pass_, chunk, micro_batch)
            for pass_ in ("forward", "backward")
            for chunk in range(chunks)
            for micro_batch in range(micro_batches)
        }
        assert set(slots) == every
        assert len(slots) == len(every)
        for number, slot in enumerate(slots):
            if slot.pass_ == "backward":
                assert slots.index(slot._replace(pass_="forward")) < number


@given(st.integers(1, 8), st.integers(1, 20))
def test_1f1b_keeps_few_micro_batches_waiting(stages: int, micro_batches: int) -> None:
    for stage in range(stages):
        waiting = most = 0
        for slot in order("1f1b", stages, stage, micro_batches):
            waiting += 1 if slot.pass_ == "forward" else -1
            most = max(most, waiting)
        assert most == min(stages - stage, micro_batches)


@given(shapes())
def test_no_schedule_waits_forever(shape: tuple[Schedule, int, int, int]) -> None:
    """Stages that run their slots as soon as the part before, or behind, has run come to an end."""
    kind, stages, micro_batches, chunks = shape
    left = [list(order(kind, stages, stage, micro_batches, chunks)) for stage in range(stages)]
    last, done = stages * chunks - 1, set[tuple[str, int, int]]()

    def ready(stage: int, slot: Slot) -> bool:
        part = slot.chunk * stages + stage
        if slot.pass_ == "forward":
            return part == 0 or ("forward", part - 1, slot.micro_batch) in done
        if part == last:
            return ("forward", part, slot.micro_batch) in done
        return ("backward", part + 1, slot.micro_batch) in done

    while any(left):
        able = [stage for stage, slots in enumerate(left) if slots and ready(stage, slots[0])]
        assert able
        for stage in able:
            slot = left[stage].pop(0)
            done.add((slot.pass_, slot.chunk * stages + stage, slot.micro_batch))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("1f1b", 4, 4, 2, 1), "there is no stage 4 of 4; give 0 to 3."),
        (("1f1b", 0, 0, 2, 1), "the number of stages is 0; give 1 or more."),
        (("1f1b", 2, 0, 0, 1), "the number of micro-batches is 0; give 1 or more."),
        (
            ("gpipe", 2, 0, 2, 2),
            "schedule 'gpipe' has 2 chunks a stage; give 1, or take 'interleaved'.",
        ),
        (
            ("interleaved", 4, 0, 6, 2),
            "6 micro-batches are interleaved over 4 stages; give a multiple of 4.",
        ),
    ],
)
def test_mistakes_get_a_sentence(
    arguments: tuple[Schedule, int, int, int, int], sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        order(*arguments)
    assert str(caught.value) == sentence
