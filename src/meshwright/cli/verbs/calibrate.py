"""The verb `calibrate`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.console import new_console, print_json, progress
from meshwright.cli.shared_options import BatchOption, JsonOption, chosen
from meshwright.cli.verbs.calibrate_links import calibrate_links
from meshwright.cli.verbs.calibrate_steps import calibrate_steps

if TYPE_CHECKING:
    from meshwright.calibrate.profile_calls import CallCalibration
    from meshwright.cluster.cluster import Cluster
    from meshwright.graph.operator_graph import Call


def calibrate(
    model: Annotated[
        str | None, typer.Argument(help="Whose operators: zoo:NAME, file.py:function, ...")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="The table of prices; goes on where it stopped. Or the cluster file."),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    batch: BatchOption = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    largest: Annotated[int, typer.Option(help="Most pieces an operator is cut into.")] = 8,
    budget: Annotated[
        float | None, typer.Option(help="Seconds in all; no limit by default.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Measure one CPU rank of so many that compute at once.")
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Measure the links of --cluster instead.")
    ] = False,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            help="Fit the rates of --cluster to measured steps instead: a CSV file with columns "
            "plan and seconds.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            "-c",
            help="Whose links; with a model: the .toml file to name prices in.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Measure a model's operators, whole and in the pieces a search may cut them into; or links; or
    fit rates to measured steps.

    Example:  meshwright calibrate zoo:mlp/tiny --device cpu --budget 5 --out prices.jsonl
    """
    from meshwright.base.errors import InputError
    from meshwright.report.text.measurements import calibration_document

    if steps is not None:
        if model is not None or links:
            raise InputError(
                "--steps fits rates to steps and measures nothing",
                "leave out the model and --links",
            )
        calibrate_steps(steps, cluster, out, json=json)
        return
    if links:
        if model is not None or cluster is None:
            raise InputError(
                "--links measures a cluster and no model",
                "write it as 'meshwright calibrate --links --cluster FILE.toml'",
            )
        calibrate_links(cluster, out, json=json)
        return
    if model is None or out is None:
        raise InputError(
            "operators are measured of a model, into a file",
            "write it as 'meshwright calibrate MODEL --out FILE.jsonl', or give --links",
        )
    described = None if cluster is None else _described(cluster, out)
    for name, value in (("--largest", largest), ("--budget", budget), ("--ranks", ranks)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value:g}", "give 1 or more")
    kind = _device(device, ranks)
    calls = _calls(model, batch, chosen(dtype, _DTYPES, "--dtype"), largest)
    outcome = _measure_operators(calls, kind, Path(out), budget, ranks)
    for failure in outcome.failures:
        typer.echo(f"meshwright: {failure}", err=True)
    if cluster is not None and described is not None:
        _name_prices(described, out, cluster)
    if json:
        print_json(calibration_document(outcome, len(calls), out))
        return
    new_console().print(
        f"{outcome.measured} calls measured, {outcome.known} known before, "
        f"{len(outcome.failures)} failed, of {len(calls)}; {outcome.stopped}. Prices in {out}."
    )


def _described(file: str, out: str) -> Cluster:
    """The cluster of a file that shall name the prices."""
    from meshwright.base.errors import InputError
    from meshwright.cluster.toml import load_cluster

    for option, text, ending in (("--cluster", file, ".toml"), ("--out", out, ".jsonl")):
        if not text.endswith(ending):
            raise InputError(
                f"{option} is {text!r}", f"give a {ending} file, so that the cluster names prices"
            )
    return load_cluster(file)


def _name_prices(cluster: Cluster, prices: str, file: str) -> None:
    """Write a cluster's file so that its device is priced by what was measured."""
    import msgspec

    from meshwright.base.files import write_atomically
    from meshwright.cluster.toml import dump_cluster

    device = msgspec.structs.replace(cluster.device, prices=str(Path(prices).resolve()))
    write_atomically(file, dump_cluster(msgspec.structs.replace(cluster, device=device)).encode())


_DTYPES = ("float32", "bfloat16", "float16")


def _device(device: str, ranks: int | None) -> str:
    import torch

    from meshwright.base.errors import InputError

    kind = chosen(device, ("cpu", "cuda"), "--device")
    if kind == "cuda" and ranks is not None:
        raise InputError("--ranks is about cores that ranks share", "leave it out for a GPU")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("PyTorch sees no CUDA device here", "give --device cpu")
    return kind


def _calls(model: str, batch: int | None, dtype: str, largest: int) -> tuple[Call, ...]:
    from meshwright.calibrate.calls import calls_to_measure
    from meshwright.capture.load import load_model

    degrees = tuple(d for d in (1, 2, 4, 8, 16, 32, 64) if d <= largest)
    narrower = None if dtype == "float32" else dtype
    return calls_to_measure(load_model(model, batch).graph, degrees, narrower, largest=largest)


def _measure_operators(
    calls: tuple[Call, ...], device: str, out: Path, budget: float | None, ranks: int | None
) -> CallCalibration:
    import torch

    from meshwright.base.quantities import Seconds
    from meshwright.calibrate.background_load import company
    from meshwright.calibrate.profile_calls import calibrate as measure

    total = None if budget is None else Seconds(budget)
    command = shlex.join(["meshwright", *sys.argv[1:]])
    with progress(f"of {len(calls)} calls") as tick, company(ranks) as accompany:

        def next_call(done: int, wanted: int, call: Call) -> None:
            accompany(call)
            tick()

        return measure(
            calls, torch.device(device), out, command, next_call, total=total, ranks=ranks
        )
