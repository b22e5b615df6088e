"""How long the joint search takes, beside its goals and the times of other planners.

    python benchmarks/joint_times.py [PART OF A NAME ...]

Each row is a new process. A search uses its budget while the gap is above its goal (5 %), so
"found" tells when the plan was found that it answers with. Times of others:
shared/reference/peers.md, measured on 2 cores; published: Unity reports under 20
minutes for its models on 192 devices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from joint_cases import Case, Row, measured

HERE = Path(__file__).parent

SUMMIT = "summit node=32"
PAPERS = (
    ("bert-large", 4), ("inception-v3", 64), ("resnext-50", 64), ("mlp", 256), ("dlrm", 1024),
    ("xdl", 1024), ("candle-uno", 256), ("alexnet", 256), ("resnet-101", 64), ("rnntc", 64),
    ("rnnlm", 64), ("nmt", 64),
)  # fmt: skip
"""Models of the papers, and samples for each of 192 devices."""

LLAMA_2_7B = (
    "zoo:llama3-8b?layers=32&hidden=4096&heads=32&key_value_heads=32&inner=11008"
    "&vocabulary=32000&sequence=2048&rotary_base=10000"
)


class Goal(NamedTuple):
    """A search, how long it may take, and how long others take for it."""

    name: str
    case: Case
    seconds: float
    others: str = ""


def goals() -> Iterator[Goal]:
    """All rows."""
    for name, samples in PAPERS:
        case = Case(model=f"zoo:{name}", batch=192 * samples, cluster=SUMMIT)
        yield Goal(f"{name}, 192 V100", case, 30)
    yield Goal(
        "Llama-3 70B, 1,024 H100",
        Case(model="zoo:llama3-70b", batch=1024, cluster="dgx-h100 node=128", half=True),
        60,
    )
    yield Goal(
        "GPT-3 175B, 4,096 A100",
        Case(model="zoo:gpt3-175b", batch=1536, cluster="dgx-a100 node=512", half=True),
        60,
    )
    small = Case(
        model=f"{HERE / 'two_blocks.py'}:mlp",
        batch=1024,
        cluster=str(HERE / "three_levels.toml"),
    )
    yield Goal("2-block MLP, 2 x 2 x 2", small, 1, "autoparallel 1,373 s")
    yield Goal(
        "Llama-3 8B, 8 x 8 H100",
        Case(model="zoo:llama3-8b", batch=64, cluster="dgx-h100 node=8", half=True),
        10,
        "autoparallel 376 s",
    )
    yield Goal(
        "LLaMA-2-7B, 2 x 8 A100, 38 GB",
        Case(model=LLAMA_2_7B, batch=64, cluster="dgx-a100 node=2", half=True, memory="38 GB"),
        10,
        "autoparallel 138 s, Galvatron 275 CPU s",
    )


def line(goal: Goal, row: Row) -> str:
    """One line of the table."""
    reached = "" if row.seconds <= goal.seconds else " missed"
    held = "" if row.fits else " does not fit"
    return (
        f"{goal.name:30} {row.operators:9} {row.seconds:8.1f} {row.cpu:8.1f} {row.found:7.1f} "
        f"{goal.seconds:6.0f}"
        f"{row.step * 1e3:11.3f} {row.gap:7.1%}  {row.stopped}{reached}{held}"
        f"{f'; {goal.others}' if goal.others else ''}"
    )


def main() -> None:
    """Print a table of all rows, or of those whose names contain one of the words."""
    words = sys.argv[1:]
    print(
        "search                         operators  seconds      CPU   found   goal    step ms"
        "     gap"
    )
    for goal in goals():
        if not words or any(word.lower() in goal.name.lower() for word in words):
            print(line(goal, measured(goal.case)), flush=True)


if __name__ == "__main__":
    main()
