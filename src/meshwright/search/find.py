"""The planner from Python. Enters: a model, a cluster, what counts. Leaves: a `Planned`.

The verb `plan` asks `best_plan` the same question, with sentences about its options.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.units import Bytes, parse_bytes
from meshwright.cluster.model import Cluster
from meshwright.cost.backend import backend_named
from meshwright.cost.memory import Optimizer
from meshwright.graph.model import OperatorGraph
from meshwright.plan.model import Options, Plan
from meshwright.rewrite.verify.user_rules import user_rules
from meshwright.search.budget import Budget
from meshwright.search.joint.constraints import parse_constraints
from meshwright.search.joint.planner import Progress, best_plan
from meshwright.search.joint.question import Minimize, Planned, Question


def find_plan(
    model: str | OperatorGraph,
    cluster: str | Cluster,
    *,
    batch: int | None = None,
    dtype: str | None = None,
    memory: str | Bytes | None = None,
    budget: str | Budget = "60s",
    seed: int = 0,
    minimize: Minimize = "time",
    optimizer: Optimizer = "adam",
    mixed: bool = False,
    pin: Iterable[str] = (),
    forbid: Iterable[str] = (),
    fix: Iterable[str] = (),
    exclude_rules: Iterable[str] = (),
    operators: str | Path | None = None,
    rules: str | Path | None = None,
    certificates: str | Path | None = None,
    start: Plan | None = None,
    backend: str = "nccl",
    programs: bool = True,
    cores: int = 1,
    progress: Progress = lambda _: None,
) -> Planned:
    """The best plan that a budget buys: graph, layouts, placement and reduction programs together.

    A model is a text that `meshwright capture` takes, with its batch and dtype, or a graph from
    `capture_model`; a cluster a name of the catalogue, a .toml file, or a `Cluster`. Operators and
    rules of your own are files (docs/rules.md). The rest is as in `meshwright plan --help`. With
    more than one core, processes are started: guard the script with `if __name__ == "__main__"`.

    >>> from meshwright import find_plan
    >>> planned = find_plan("zoo:lenet/tiny", "laptop", batch=8, budget="10")
    >>> planned.plan.cluster.devices, planned.best.fits(planned.question.memory)
    (4, True)
    """
    machine = _cluster(cluster)
    graph = _graph(model, batch, dtype, operators)
    question = Question(
        graph=graph,
        cluster=machine,
        memory=memory_limit(memory, machine),
        training=Options(optimizer=optimizer, mixed=mixed),
        minimize=minimize,
        constraints=parse_constraints(pin, forbid, fix, exclude_rules),
        added=user_rules(graph, operators, rules, certificates),
    )
    planned = best_plan(
        question,
        Budget.parse(budget) if isinstance(budget, str) else budget,
        backend=backend_named(backend),
        programs=programs,
        seed=seed,
        cores=cores,
        start=start,
        progress=progress,
    )
    named = model if isinstance(model, str) else ""
    plan = msgspec.structs.replace(planned.best.plan, model=named)
    return planned._replace(best=planned.best._replace(plan=plan))


def _graph(
    model: str | OperatorGraph,
    batch: int | None,
    dtype: str | None,
    operators: str | Path | None,
) -> OperatorGraph:
    if isinstance(model, OperatorGraph):
        if batch is not None or dtype is not None:
            raise InputError(
                f"graph {model.name!r} has its batch and dtype built in",
                "leave them out, or give them to capture_model",
            )
        return model
    # Only here is PyTorch needed.
    from meshwright.capture.model import capture_model

    return capture_model(model, batch=batch, dtype=dtype, operators=operators)


def _cluster(given: str | Cluster) -> Cluster:
    if isinstance(given, Cluster):
        return given
    return Cluster.load(given) if given.endswith(".toml") else Cluster.named(given)


def memory_limit(given: str | Bytes | None, cluster: Cluster) -> Bytes:
    """What a device may hold: as given, or all that it has."""
    if given is None:
        return cluster.device.memory
    return parse_bytes(given) if isinstance(given, str) else given
