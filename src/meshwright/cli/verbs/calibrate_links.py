"""What the verb `calibrate` does with --links."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import typer

from meshwright.cli.console import print_json
from meshwright.cli.exits import Exit
from meshwright.cli.shared_options import chosen_cluster, require_output_path

if TYPE_CHECKING:
    from meshwright.calibrate.link_calibration import Calibrated
    from meshwright.cluster.cluster import Cluster


def calibrate_links(cluster: str, out: str | None, *, json: bool) -> None:
    """Measure the links of a cluster here, or as one of the ranks that torchrun started."""
    from meshwright.calibrate.link_calibration import calibrate_links_locally
    from meshwright.run.launch.torchrun import started_by_torchrun

    if started_by_torchrun():
        _as_a_rank(cluster, out, json)
        return
    described, file = chosen_cluster(cluster, None, None, None), _file(cluster, out)
    words = ["meshwright", "calibrate", "--links", "--cluster", cluster]
    command = shlex.join([*words, *(["--out", out] if out is not None else [])])
    _finish(calibrate_links_locally(described, command), file, json)


def _as_a_rank(name: str, out: str | None, json: bool) -> None:
    """All ranks end alike, and the first one speaks."""
    import torch.distributed as dist

    from meshwright.base.errors import InputError
    from meshwright.calibrate.link_calibration import calibrate_links_between_ranks
    from meshwright.run.launch.torchrun import joined, together

    def load() -> Cluster:
        described = chosen_cluster(name, None, None, None)
        if first:
            _file(name, out)
        return described

    well = True
    with joined() as device:
        first = dist.get_rank() == 0
        try:
            done = calibrate_links_between_ranks(load, device)
            together(lambda: _finish(done, _file(name, out), json) if first else None)
        except InputError as error:
            well = False
            if first:
                typer.echo(f"meshwright: {error}", err=True)
            dist.barrier()
    if not well:
        raise typer.Exit(Exit.MISTAKE)


def _file(cluster: str, out: str | None) -> str:
    """Where the measured cluster is written: over the one that was given if nothing is said."""
    from meshwright.base.errors import InputError

    if out is None and not cluster.endswith(".toml"):
        raise InputError(
            f"cluster {cluster!r} is of the catalogue", "give --out FILE.toml for what is measured"
        )
    file = cluster if out is None else out
    require_output_path("--out", file)
    return file


def _finish(done: Calibrated, file: str, json: bool) -> None:
    from meshwright.base.files import write_atomically
    from meshwright.cluster.toml import dump_cluster
    from meshwright.report.documents import cluster_document
    from meshwright.report.text.drawing import draw_cluster

    write_atomically(file, dump_cluster(done.cluster).encode())
    for warning in done.warnings:
        typer.echo(f"meshwright: {warning}", err=True)
    if json:
        print_json(cluster_document(done.cluster) | {"saved": file})
    else:
        typer.echo(f"{draw_cluster(done.cluster)}\nMeasured links are in {file}.")
