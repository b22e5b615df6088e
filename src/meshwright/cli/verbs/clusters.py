"""The verb `clusters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli.console import new_console, print_json
from meshwright.cli.shared_options import (
    GpusOption,
    JsonOption,
    NodesOption,
    ResizeOption,
    SlowOption,
    WithoutOption,
    chosen_machine,
)

if TYPE_CHECKING:
    from meshwright.cluster.island_cluster import Machine


def clusters(
    name: Annotated[
        str | None, typer.Argument(help="Draw this one.", autocompletion=completion.clusters)
    ] = None,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
    without: WithoutOption = None,
    slow: SlowOption = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="Only those whose name, device or text has this word."),
    ] = None,
    toml: Annotated[bool, typer.Option("--toml", help="Print it as a cluster file.")] = False,
    json: JsonOption = False,
) -> None:
    """List the catalogue of clusters, or draw one.

    Example:  meshwright clusters gcp-v100
    """
    from meshwright.base.errors import InputError
    from meshwright.cluster.catalogue import catalogue_names, catalogued, irregular_names
    from meshwright.cluster.island_toml import dump_machine, named_machine

    if name is None:
        if toml or resize or without or slow or nodes is not None or gpus is not None:
            raise InputError(
                "--nodes, --gpus, --resize, --without, --slow and --toml are about one cluster",
                "name it, as 'meshwright clusters gcp-a100 --nodes 2'",
            )
        everything: list[Machine] = [catalogued(known) for known in catalogue_names()]
        everything += [named_machine(known) for known in irregular_names()]
        if like is not None:
            everything = _alike(everything, like)
        if json:
            from meshwright.report.documents import machine_document

            print_json({"clusters": [machine_document(cluster) for cluster in everything]})
        else:
            from meshwright.report.terminal_tables import table_of_clusters

            new_console().print(table_of_clusters(everything))
        return
    from meshwright.report.documents import machine_document
    from meshwright.report.text.drawing import draw_machine

    cluster = chosen_machine(name, nodes, gpus, resize, without, slow)
    if toml:
        print(dump_machine(cluster), end="")
    elif json:
        print_json(machine_document(cluster))
    else:
        source = cluster.source and f"Source: {cluster.source}"
        print(*filter(None, (draw_machine(cluster), cluster.description, source)), sep="\n")


def _alike(everything: list[Machine], word: str) -> list[Machine]:
    """The clusters that a word is said of; refuses a word that is said of none."""
    from meshwright.base.errors import InputError, nearest
    from meshwright.cluster.island_cluster import regular_parts

    def said(machine: Machine) -> str:
        devices = (part.device.name for part in regular_parts(machine))
        return f"{machine.name} {' '.join(devices)} {machine.description} {machine.source}".lower()

    matching = [machine for machine in everything if word.lower() in said(machine)]
    if not matching:
        raise InputError(
            f"no cluster of the catalogue is like {word!r}",
            f"{nearest(word, [machine.name for machine in everything])}; or describe yours "
            "(docs/clusters.md)",
        )
    return matching
