"""The verb `clusters`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli import completion
from meshwright.cli.console import new_console, print_json
from meshwright.cli.options import GpusOption, JsonOption, NodesOption, ResizeOption, chosen_cluster

if TYPE_CHECKING:
    from meshwright.cluster.model import Cluster


def clusters(
    name: Annotated[
        str | None, typer.Argument(help="Draw this one.", autocompletion=completion.clusters)
    ] = None,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
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
    from meshwright.cluster.catalogue import catalogue_names, catalogued
    from meshwright.cluster.toml import dump_cluster
    from meshwright.report.documents import cluster_document
    from meshwright.report.drawing import draw_cluster
    from meshwright.report.tables import table_of_clusters

    if name is None:
        if toml or resize or nodes is not None or gpus is not None:
            raise InputError(
                "--nodes, --gpus, --resize and --toml are about one cluster",
                "name it, as 'meshwright clusters gcp-a100 --nodes 2'",
            )
        everything = [catalogued(known) for known in catalogue_names()]
        if like is not None:
            everything = _alike(everything, like)
        if json:
            print_json({"clusters": [cluster_document(cluster) for cluster in everything]})
        else:
            new_console().print(table_of_clusters(everything))
        return
    cluster = chosen_cluster(name, nodes, gpus, resize)
    if toml:
        print(dump_cluster(cluster), end="")
    elif json:
        print_json(cluster_document(cluster))
    else:
        source = cluster.source and f"Source: {cluster.source}"
        print(*filter(None, (draw_cluster(cluster), cluster.description, source)), sep="\n")


def _alike(everything: list[Cluster], word: str) -> list[Cluster]:
    """The clusters that a word is said of; refuses a word that is said of none."""
    from meshwright.base.errors import InputError, nearest

    def said(own: Cluster) -> str:
        return f"{own.name} {own.device.name} {own.description} {own.source}".lower()

    found = [own for own in everything if word.lower() in said(own)]
    if not found:
        raise InputError(
            f"no cluster of the catalogue is like {word!r}",
            f"{nearest(word, [own.name for own in everything])}; or describe yours "
            "(docs/clusters.md)",
        )
    return found
