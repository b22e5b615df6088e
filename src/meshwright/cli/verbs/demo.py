"""The verb `demo`: other verbs in a row, each shown as one would type it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

PLANNED = "Llama-3 8B on 2 nodes of 8 H100: which parallelism, how many tokens a second?"
TRAINED = "a tiny BERT on 4 processes of this machine, priced by measuring it"

TINY = (
    "zoo:bert-large?layers=2&hidden=256&heads=4&inner=1024&vocabulary=2000&sequence=64"
    "&positions=64&dropout=0"
)

NEXT = """\
Next:
  open {folder}/report.html             why this plan: placement, timeline, memory, reductions
  open {folder}/trace.json              the same step in https://ui.perfetto.dev
  meshwright explain {folder}/plan.json  decisions, critical path, what would help
  meshwright clusters                 machines to choose from; describe yours: docs/clusters.md
  meshwright plan model.py:build ...  your own model: docs/tutorial.md"""


def demo(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(help="Where plans, report and trace go.")] = "demo",
) -> None:
    """Plan Llama-3 8B on 16 GPUs, then train a tiny BERT on 4 processes here, by its own plan.

    About two minutes on two cores; the first time what compiles takes a minute or two more.

    Example:  meshwright demo
    """
    from meshwright.base.errors import InputError

    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(f"{folder!r} is a file", "name a folder")
    place.mkdir(parents=True, exist_ok=True)
    for heading, commands in ((PLANNED, _planning(place)), (TRAINED, _training(place))):
        typer.echo(f"\n== {heading[0].upper()}{heading[1:]} ==")
        for words in commands:
            typer.echo(f"\n$ meshwright {shlex.join(words)}\n")
            context.find_root().command.main(list(words), "meshwright", standalone_mode=False)
    typer.echo("\n" + NEXT.format(folder=folder))


def _planning(place: Path) -> tuple[tuple[str, ...], ...]:
    written = (("out", "plan.json"), ("report", "report.html"), ("trace", "trace.json"))
    files = [f"--{option}={place / name}" for option, name in written]
    question = "plan zoo:llama3-8b --cluster dgx-h100 --nodes 2 --batch 32 --seq 4096"
    return ((*f"{question} --dtype bf16 --mixed --budget 20s".split(), *files),)


def _training(place: Path) -> tuple[tuple[str, ...], ...]:
    cluster, prices, plan = (place / name for name in ("here.toml", "prices.jsonl", "tiny.json"))
    measured = f"calibrate {TINY} --batch 16 --ranks 4 --largest 4 --budget 40"
    searched = f"plan {TINY} --batch 16 --backend rings --budget 10s"
    return (
        ("calibrate", "--links", "--cluster", "laptop", f"--out={cluster}"),
        (*measured.split(), f"--cluster={cluster}", f"--out={prices}"),
        (*searched.split(), f"--cluster={cluster}", f"--out={plan}"),
        ("run", str(plan), "--against-one-device"),
    )
