"""Sweep jobs: many models on many clusters, read from TOML. Enters: a TOML file. Leaves: jobs for
`sweep`, and a row for each.

Every model is planned on every cluster with every batch, with the same options:

    models = ["zoo:alexnet", "zoo:bert-large"]
    clusters = ["dgx-h100 node=2", "mine.toml"]
    batches = [64, 256]                             # without it the model's own
    [plan]                                          # all of it may be left out
    budget = "20s"
"""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.integers import parse_whole, require_whole
from meshwright.base.quantities import Bytes, parse_bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cost.backend import backend_named
from meshwright.cost.memory import Optimizer
from meshwright.graph.cast import cast_graph
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.request.question import Minimize, PlanRequest, PlanResult


class SweepOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `meshwright plan` that all jobs of a sweep share."""

    budget: str = "60s"
    seed: int = 0
    memory: str = ""
    """What a plan may hold on a device; empty: all that a device has."""
    minimize: Minimize = "time"
    optimizer: Optimizer = "adam"
    mixed: bool = False
    dtype: str = ""
    """What the models are cast to; empty: as they are."""
    backend: str = "nccl"

    def __post_init__(self) -> None:
        Budget.parse(self.budget)
        backend_named(self.backend)
        if self.memory:
            parse_bytes(self.memory)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One search."""

    model: str
    cluster: str
    """A name of the catalogue or a file, and cardinalities, as "dgx-h100 node=2"."""
    batch: int | None
    plan: SweepOptions

    def __str__(self) -> str:
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.model} on {self.cluster}{batch}"


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found: all times predicted, but for its own."""

    devices: int
    step_s: float
    bound_s: float
    gap: float
    memory_bytes: int
    graphs: int
    """Graphs that were looked at."""
    rewrites: int
    """Rules that made the plan's graph of the model's."""
    micro_batches: int
    zero: int
    recompute: bool
    search_s: float
    stopped: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: tuple[str, ...]
    clusters: tuple[str, ...]
    batches: tuple[int, ...] = ()
    plan: SweepOptions = SweepOptions()

    def __post_init__(self) -> None:
        for what, entries in (("models", self.models), ("clusters", self.clusters)):
            if not entries:
                raise InputError(f"there are no {what}", "name at least one")
        for batch in self.batches:
            require_whole(batch, "a batch is")
        for cluster in self.clusters:
            cluster_of(cluster)


def load_jobs(path: str) -> tuple[Job, ...]:
    """The jobs of a file: model by model, cluster by cluster, batch by batch."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot read sweep {path!r} ({getattr(error, 'strerror', None) or error})",
            "give the path of a TOML file, see docs/sweeps.md",
        ) from None
    try:
        return parse_jobs(text)
    except InputError as error:
        raise error.at(path) from None


def parse_jobs(text: str) -> tuple[Job, ...]:
    r"""The jobs of a text in TOML; every cluster and option is checked, models are not loaded.

    >>> jobs = parse_jobs('models = ["zoo:mlp"]\nclusters = ["laptop", "summit node=2"]')
    >>> [str(job) for job in jobs]
    ['zoo:mlp on laptop', 'zoo:mlp on summit node=2']
    """
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"not valid TOML ({error})", "correct the line it names") from None
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise InputError(str(error), "see docs/sweeps.md for what a sweep may say") from None
    every = product(file.models, file.clusters, file.batches or (None,))
    jobs = (Job(model=m, cluster=c, batch=b, plan=file.plan) for m, c, b in every)
    return tuple(dict.fromkeys(jobs))


def cluster_of(text: str) -> Cluster:
    """A cluster from its name or file, and cardinalities.

    >>> cluster_of("dgx-h100 node=2").hierarchy
    (2, 8)
    """
    name, *sizes = text.split() or [""]
    counts: dict[str, int] = {}
    for size in sizes:
        level, mark, number = size.partition("=")
        if not mark:
            raise InputError(f"cluster {text!r}: {size!r} is no LEVEL=N", "write it as 'node=2'")
        try:
            counts[level] = parse_whole(number)
        except InputError as error:
            raise error.at(f"cluster {text!r}") from None
    cluster = Cluster.load(name) if name.endswith(".toml") else Cluster.named(name)
    return cluster.resized(counts)


def question_of(job: Job) -> PlanRequest:
    """What a job asks; loads the model."""
    from meshwright.capture.load import load_model

    cluster, asked = cluster_of(job.cluster), job.plan
    graph = load_model(job.model, job.batch).graph
    return PlanRequest(
        graph=cast_graph(graph, asked.dtype) if asked.dtype else graph,
        cluster=cluster,
        memory=parse_bytes(asked.memory) if asked.memory else Bytes(cluster.device.memory),
        training=Options(optimizer=asked.optimizer, mixed=asked.mixed),
        minimize=asked.minimize,
    )


def planned(job: Job) -> JobRow:
    """Search for the plan of a job, on one core: a sweep has others for the others."""
    from meshwright.search.joint.planner import best_plan

    asked = job.plan
    outcome: PlanResult = best_plan(
        question_of(job),
        Budget.parse(asked.budget),
        backend=backend_named(asked.backend),
        seed=asked.seed,
        cores=1,
    )
    plan, prediction = outcome.best
    return JobRow(
        devices=plan.cluster.devices,
        step_s=prediction.step,
        bound_s=outcome.bound,
        gap=outcome.gap,
        memory_bytes=prediction.memory.total,
        graphs=outcome.graphs,
        rewrites=len(outcome.rewrites),
        micro_batches=plan.options.micro_batches,
        zero=plan.options.zero,
        recompute=plan.options.recompute,
        search_s=outcome.seconds,
        stopped=outcome.stopped,
    )
