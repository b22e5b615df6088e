"""The verb `clusters`."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli import completion
from meshwright.cli.console import new_console, print_json
from meshwright.cli.options import GpusOption, JsonOption, NodesOption, ResizeOption, chosen_cluster


def clusters(
    name: Annotated[
        str | None, typer.Argument(help="Draw this one.", autocompletion=completion.clusters)
    ] = None,
    nodes: NodesOption = None,
    gpus: GpusOption = None,
    resize: ResizeOption = None,
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
