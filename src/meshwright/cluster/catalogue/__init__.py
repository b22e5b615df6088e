"""The clusters that come with Meshwright: one TOML file each, with its source."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from meshwright.base.errors import InputError, nearest
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.toml import parse_cluster


@cache
def catalogue_names() -> tuple[str, ...]:
    """The names of all catalogued clusters, sorted.

    >>> catalogue_names()[:3]
    ('alps-gh200', 'aws-p4d', 'aws-p4de')
    """
    entries = files(__name__).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


@cache
def catalogued(name: str) -> Cluster:
    """A cluster by its name.

    >>> catalogued("dgx-h100").hierarchy
    (4, 8)
    """
    entry, _, _ = name.partition("#")
    if entry in irregular_names():
        raise InputError(
            f"{name!r} is a sum of islands, or one of them, and a regular cluster is wanted",
            "give a regular one of the catalogue, or write it to a file: meshwright clusters "
            f"'{name}' --toml",
        )
    if name not in catalogue_names():
        raise InputError(
            f"there is no cluster {name!r} in the catalogue",
            f"give a name or a .toml file: {nearest(name, catalogue_names())}",
        )
    text = files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return parse_cluster(text, f"{name}.toml")


@cache
def irregular_names() -> tuple[str, ...]:
    """The names of all catalogued sums of islands, sorted.

    >>> irregular_names()
    ('mixed-a100-h100', 'mixed-v100-t4')
    """
    entries = files(__name__).joinpath("irregular").iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def irregular_text(name: str) -> str:
    """The file of a catalogued sum of islands."""
    return files(__name__).joinpath("irregular", f"{name}.toml").read_text(encoding="utf-8")
