"""Resolves the graph, cluster and memory limit of a plan request from names or objects. Enters:
names, sizes or nouns. Leaves: the graph, the cluster, the memory limit. `configs.find_plan` asks
with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import overload

from meshwright.base.errors import InputError
from meshwright.base.quantities import Bytes, parse_bytes
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph


def graph_of(
    model: str | OperatorGraph,
    batch: int | None,
    dtype: str | None,
    operators: str | Path | None,
) -> OperatorGraph:
    """The graph itself, or what a model's text is captured as."""
    if isinstance(model, OperatorGraph):
        if batch is not None or dtype is not None:
            raise InputError(
                f"graph {model.name!r} has its batch and dtype built in",
                "leave them out, or give them to capture_model",
            )
        return model
    # Only here is PyTorch needed.
    from meshwright.capture.capture_model import capture_model

    return capture_model(model, batch=batch, dtype=dtype, operators=operators)


def cluster_of(cluster: str | Cluster) -> Cluster:
    """The cluster itself, of that file, or of that name in the catalogue."""
    if isinstance(cluster, Cluster):
        return cluster
    return Cluster.load(cluster) if cluster.endswith(".toml") else Cluster.named(cluster)


def memory_limit(limit: str | Bytes | None, cluster: Cluster) -> Bytes:
    """What a device may hold: as given, or all that it has."""
    if limit is None:
        return cluster.device.memory
    return parse_bytes(limit) if isinstance(limit, str) else limit


@overload
def with_sequence(model: str, sequence: int | None) -> str: ...


@overload
def with_sequence(model: str | OperatorGraph, sequence: int | None) -> str | OperatorGraph: ...


def with_sequence(model: str | OperatorGraph, sequence: int | None) -> str | OperatorGraph:
    """The text of a model with so many tokens a sample; a graph has its own.

    >>> with_sequence("zoo:gpt2-xl/tiny?layers=1&sequence=8", 16)
    'zoo:gpt2-xl/tiny?layers=1&sequence=16'
    """
    if sequence is None:
        return model
    if isinstance(model, OperatorGraph):
        raise InputError(
            f"graph {model.name!r} has the length of its samples built in",
            "leave seq out, or give it to capture_model as '?sequence=N'",
        )
    if not model.startswith(("zoo:", "hf:")):
        raise InputError(
            f"--seq is {sequence}, and {model!r} decides the length of its samples itself",
            "give it to your function, as file.py:function?sequence=4096",
        )
    name, _, options = model.partition("?")
    kept = [
        option for option in options.split("&") if option and not option.startswith("sequence=")
    ]
    return f"{name}?{'&'.join((*kept, f'sequence={sequence}'))}"
