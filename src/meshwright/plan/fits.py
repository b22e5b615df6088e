"""Compatibility check of a plan with a cluster or a graph. Enters: a plan and a cluster or graph.
Leaves: nothing, or a sentence that names the first thing that differs.
"""

from __future__ import annotations

import msgspec

from meshwright.base.errors import InputError, shown
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.plan import Plan


def require_cluster(plan: Plan, cluster: Cluster) -> None:
    """Refuse a plan for another cluster."""
    _require_equal(plan.cluster, cluster, "cluster")


def require_graph(plan: Plan, graph: OperatorGraph) -> None:
    """Refuse a plan for another graph, or for another version of it."""
    _require_equal(plan.graph, graph, "graph")


def _require_equal(planned: msgspec.Struct, current: msgspec.Struct, what: str) -> None:
    mismatch = difference(msgspec.to_builtins(planned), msgspec.to_builtins(current))
    if mismatch is not None:
        where, expected, actual = mismatch
        raise InputError(
            f"the plan is for another {what}: {where} is {expected} in the plan and {actual} here",
            f"give the {what} it was made for, or plan anew with 'meshwright plan'",
        )


def difference(one: object, other: object, where: str = "") -> tuple[str, str, str] | None:
    """The first place where two trees of plain values differ, and both values.

    >>> difference({"levels": [{"name": "node", "size": 2}]}, {"levels": [{"name": "node"}]})
    ('levels.node.size', '2', 'missing')
    """
    match one, other:
        case dict(), dict():
            keys = dict.fromkeys((*one, *other))
            pairs = [(str(key), one.get(key, ...), other.get(key, ...)) for key in keys]
        case ((list() | tuple()), (list() | tuple())):
            longest = max(len(one), len(other))
            pairs = [
                (_name(number, *both), *both)
                for number in range(longest)
                for both in [(_item(one, number), _item(other, number))]
            ]
        case _:
            return None if one == other else (where, _shown(one), _shown(other))
    for name, left, right in pairs:
        mismatch = difference(left, right, f"{where}.{name}" if where else name)
        if mismatch is not None:
            return mismatch
    return None


def _item(items: list[object] | tuple[object, ...], number: int) -> object:
    return items[number] if number < len(items) else ...


def _name(number: int, *both: object) -> str:
    """What an item of a list is called: by its name, if both have the same."""
    names = {value.get("name") for value in both if isinstance(value, dict)}
    name = names.pop() if len(names) == 1 else None
    return str(number) if name is None else str(name)


def _shown(value: object) -> str:
    if value is ...:
        return "missing"
    if isinstance(value, dict) and "name" in value:
        return shown(value["name"])
    return shown(value)
