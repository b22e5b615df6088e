"""The verb `calibrate`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.console import new_console, progress
from meshwright.cli.options import BatchOption, chosen


def calibrate(
    model: Annotated[str, typer.Argument(help="Whose operators: zoo:NAME, file.py:function, ...")],
    out: Annotated[str, typer.Option(help="The table of prices; goes on where it stopped.")],
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    batch: BatchOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    largest: Annotated[int, typer.Option(help="Most pieces an operator is cut into.")] = 8,
    budget: Annotated[
        float | None, typer.Option(help="Seconds in all; no limit by default.")
    ] = None,
) -> None:
    """Measure a model's operators, whole and in the pieces a search may cut them into.

    Example:  meshwright calibrate zoo:bert-large/tiny --device cpu --out prices.jsonl
    """
    import torch

    from meshwright.capture.load import load_model
    from meshwright.foundation.errors import InputError
    from meshwright.foundation.units import Seconds
    from meshwright.run.calibrate import calibrate as measure
    from meshwright.run.calls import calls_to_measure

    kind = chosen(device, ("cpu", "cuda"), "--device")
    wanted = chosen(dtype, ("float32", "bfloat16", "float16"), "--dtype")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch sees no CUDA device here", "give --device cpu")
    for name, value in (("--largest", largest), ("--budget", budget)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value:g}", "give 1 or more")
    degrees = tuple(d for d in (1, 2, 4, 8, 16, 32, 64) if d <= largest)
    graph = load_model(model, batch).graph
    narrower = None if wanted == "float32" else wanted
    calls = calls_to_measure(graph, degrees, narrower, largest=largest)
    total = None if budget is None else Seconds(budget)
    command = shlex.join(["meshwright", *sys.argv[1:]])
    with progress(f"of {len(calls)} calls") as tick:
        found = measure(
            calls, torch.device(kind), Path(out), command, lambda *_: tick(), total=total
        )
    for failure in found.failures:
        typer.echo(f"meshwright: {failure}", err=True)
    new_console().print(
        f"{found.measured} calls measured, {found.known} known before, "
        f"{len(found.failures)} failed, of {len(calls)}; {found.stopped}. Prices in {out}."
    )
