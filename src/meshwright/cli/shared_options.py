"""Options that several verbs share, and what they turn into."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from meshwright.cli import completion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshwright.cluster.cluster import Cluster
    from meshwright.cluster.island_cluster import Machine
    from meshwright.graph.notation import Definition
    from meshwright.graph.operator_graph import OperatorGraph
    from meshwright.plan.plan import Plan
    from meshwright.search.budget import Budget
    from meshwright.search.rank import Ranker

_T = TypeVar("_T", bound=str)

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="zoo:NAME, file.py:function, hf:Class, a saved graph, ...",
        autocompletion=completion.models,
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        help="A name from 'meshwright clusters' or a .toml file.",
        autocompletion=completion.clusters,
    ),
]
NodesOption = Annotated[int | None, typer.Option(help="How many instances of the level 'node'.")]
GpusOption = Annotated[int | None, typer.Option(help="How many instances of the level 'gpu'.")]
ResizeOption = Annotated[
    list[str] | None,
    typer.Option("--resize", metavar="LEVEL=N", help="Cardinality of any level; repeatable."),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="PART", help="Leave out node3 or node3.gpu5; repeatable."),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--slow", metavar="PART=SHARE", help="A straggler: node3=0.8 computes at 80 %; repeatable."
    ),
]
AxesOption = Annotated[
    str, typer.Option(metavar="NAME=SIZE,...", help="Parallelism axes, as data=4,tensor=16.")
]
BytesOption = Annotated[
    str, typer.Option("--bytes", help="Payload on each device, with a unit.", metavar="SIZE")
]
BackendOption = Annotated[
    str, typer.Option(help="nccl, gloo, rings or pairs: which algorithms run.")
]
AlgorithmOption = Annotated[
    str, typer.Option(help="ring, tree, or best: the faster one for each step.")
]
LimitOption = Annotated[int, typer.Option(help="Most steps of a program.")]
RulesOption = Annotated[
    str, typer.Option(help="literal: the printed rules; paper: Master with AllReduce only.")
]
HierarchyOption = Annotated[
    str,
    typer.Option(help="Synthesis hierarchy: hardware, axis, reduction, row, column or system."),
]
BatchOption = Annotated[int | None, typer.Option(help="Samples in a step.")]
DtypeOption = Annotated[
    str | None,
    typer.Option(help="Cast the model: bf16, fp16, or fp8 (products, the rest in bf16)."),
]
SequenceOption = Annotated[
    int | None,
    typer.Option("--seq", min=1, metavar="N", help="Tokens of a sample, of zoo: and hf: models."),
]
SoftwareOption = Annotated[
    str | None,
    typer.Option(
        "--software",
        metavar="NAME",
        help="What is priced: eager (PyTorch), compiled, or megatron; default: eager, as 'run' is.",
    ),
]
TopOption = Annotated[int, typer.Option(help="Most lines of a table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts, see docs/json.md.")]


def chosen_cluster(
    name: str, nodes: int | None, gpus: int | None, resize: list[str] | None
) -> Cluster:
    """The regular cluster that the options name, resized."""
    from meshwright.base.errors import InputError
    from meshwright.cluster.cluster import Cluster

    machine = chosen_machine(name, nodes, gpus, resize, None, None)
    if not isinstance(machine, Cluster):
        islands = ", ".join(island.name for island in machine.islands)
        raise InputError(
            f"cluster {machine.name!r} is a sum of islands ({islands}), and not regular",
            f"name one island, as {name}#{machine.islands[0].name}, or take 'meshwright plan'",
        )
    return machine


def chosen_machine(
    name: str,
    nodes: int | None,
    gpus: int | None,
    resize: list[str] | None,
    without: list[str] | None,
    slow: list[str] | None,
) -> Machine:
    """The cluster that the options name, resized, without what is out."""
    from meshwright.base.errors import InputError
    from meshwright.cluster.catalogue import irregular_names
    from meshwright.cluster.cluster import Cluster
    from meshwright.cluster.degraded import degraded
    from meshwright.cluster.island_toml import load_machine, named_machine

    sizes = _sizes(nodes, gpus, resize)
    first, _, _ = name.partition("#")
    machine: Machine
    if first.endswith(".toml"):
        machine = load_machine(name)
    elif first in irregular_names():
        machine = named_machine(name)
    else:
        machine = Cluster.named(name)
    if isinstance(machine, Cluster):
        machine = machine.resized(sizes)
    elif sizes:
        raise InputError(
            f"--nodes, --gpus and --resize are about one island, and {machine.name!r} has several",
            "write the sizes into its file, or leave parts out with --without",
        )
    gone = [part for text in without or () for part in text.split(",")]
    return degraded(machine, gone, slow_parts(slow))


def slow_parts(slow: list[str] | None) -> dict[str, float]:
    """Parts of a machine and their speed, from PART=SHARE."""
    from meshwright.base.errors import InputError, shown

    speeds: dict[str, float] = {}
    for text in slow or ():
        part, _, share = (half.strip() for half in text.partition("="))
        try:
            speed = float(share)
        except ValueError:
            raise InputError(
                f"--slow {shown(text)} is no PART=SHARE", "write it as 'node3.gpu5=0.8'"
            ) from None
        if speeds.setdefault(part, speed) != speed:
            raise InputError(
                f"--slow gives {part!r} the speeds {speeds[part]:g} and {speed:g}", "keep one"
            )
    return speeds


def _sizes(nodes: int | None, gpus: int | None, resize: list[str] | None) -> dict[str, int]:
    """Cardinalities by the name of the level."""
    from meshwright.base.errors import InputError, shown
    from meshwright.base.integers import parse_whole

    sizes = {level: n for level, n in (("node", nodes), ("gpu", gpus)) if n is not None}
    for text in resize or ():
        level, _, number = text.partition("=")
        if not number.strip().isdecimal():
            raise InputError(f"--resize {shown(text)} is no LEVEL=N", "write it as 'rack=2'")
        try:
            sizes[level.strip()] = parse_whole(number)
        except InputError as error:
            raise error.at(f"--resize {level.strip()}") from None
    return sizes


def chosen(choice: str, allowed: tuple[_T, ...], option: str) -> _T:
    """The allowed value that was given."""
    from meshwright.base.errors import InputError, nearest

    for value in allowed:
        if value == choice:
            return value
    raise InputError(f"{option} is {choice!r}", nearest(choice, allowed))


def captured_graph(
    model: str,
    batch: int | None,
    dtype: str | None = None,
    operators: Mapping[str, Definition] | None = None,
) -> OperatorGraph:
    """The graph of a model, or of a plan as it was rewritten, cast if asked; what its user should
    know goes to standard error.
    """
    from meshwright.base.errors import InputError
    from meshwright.graph.cast import FP8, cast_graph, dtype_named
    from meshwright.plan.file import load_plan, looks_like_plan

    if model.endswith(".json") and looks_like_plan(model):
        if batch is not None or dtype is not None:
            raise InputError(
                f"{model!r} is a plan, with its batch and dtype built in", "leave them out"
            )
        return load_plan(model).graph

    try:
        dtype = dtype_named("bf16" if dtype == FP8 else dtype) if dtype is not None else None
    except InputError as error:
        raise error.at("--dtype") from None
    from meshwright.capture.load import load_model

    captured = load_model(model, batch, operators or {})
    for warning in captured.warnings:
        typer.echo(f"meshwright: {warning}", err=True)
    return captured.graph if dtype is None else cast_graph(captured.graph, dtype)


def graph_of_plan(plan: Plan) -> OperatorGraph:
    """The model as its code says, in the plan's dtype; the plan may have rewritten it."""
    if not plan.model:
        return plan.graph
    from meshwright.capture.recognised.user_operators import definitions_in

    dtypes = {parameter.tensor.dtype for parameter in plan.graph.parameters}
    graph = captured_graph(plan.model, plan.batch, operators=definitions_in(plan.graph))
    if {parameter.tensor.dtype for parameter in graph.parameters} != dtypes and len(dtypes) == 1:
        from meshwright.graph.cast import cast_graph

        return cast_graph(graph, dtypes.pop())
    return graph


def as_run(cluster: Cluster, dtype: str | None, software: str | None) -> Cluster:
    """The cluster, whose devices run that software, and products with weights in fp8 if asked."""
    from msgspec.structs import replace

    from meshwright.base.errors import InputError
    from meshwright.cluster.software import cluster_with_software
    from meshwright.graph.cast import FP8

    try:
        cluster = cluster_with_software(cluster, software)
    except InputError as error:
        raise error.at("--software") from None
    if dtype != FP8:
        return cluster
    device = cluster.device
    return replace(cluster, device=replace(device, software=replace(device.running, products=FP8)))


def chosen_budget(text: str) -> Budget:
    """How long a search may go on."""
    from meshwright.base.errors import InputError
    from meshwright.search.budget import Budget

    try:
        return Budget.parse(text)
    except InputError as error:
        raise error.at("--budget") from None


def require_output_path(option: str, path: str | None) -> None:
    """Refuse a file that could not be written, before the work whose result it is for."""
    from meshwright.base.errors import InputError
    from meshwright.base.files import require_writable

    if path is not None:
        try:
            require_writable(path)
        except InputError as error:
            raise error.at(option) from None


def require_places(**options: str | None) -> None:
    """Refuse files that could not be written, and one file for two outputs."""
    from meshwright.base.errors import InputError

    named = {f"--{name}": path for name, path in options.items() if path is not None}
    for option, path in named.items():
        require_output_path(option, path)
        for other, same in named.items():
            if other < option and os.path.realpath(same) == os.path.realpath(path):
                raise InputError(f"{other} and {option} are both {path!r}", "name two files")


def set_aside(*paths: str | None) -> str:
    """Sentences on what was in files before: it gets other names, which no file has."""
    from itertools import count
    from pathlib import Path

    sentences = ""
    for place in (Path(path) for path in paths if path is not None):
        if place.exists():
            stems = (f"{place.stem}.before{'' if n == 1 else n}" for n in count(1))
            names = (place.with_stem(stem) for stem in stems)
            before = next(name for name in names if not name.exists())
            place.replace(before)
            sentences += f" What {place} was before is in {before}."
    return sentences


def require_lines(top: int) -> None:
    """Refuse a table of no lines."""
    from meshwright.base.integers import require_whole

    require_whole(top, "--top is")


def chosen_ranker(
    cluster: Cluster, backend: str, algorithm: str, limit: int, rules: str, hierarchy: str
) -> Ranker:
    """What the options say about prices and programs."""
    from meshwright.base.errors import InputError
    from meshwright.collectives.hierarchy import HIERARCHY_KINDS
    from meshwright.collectives.synthesize import RULES
    from meshwright.cost.alpha_beta import Pricer
    from meshwright.cost.backend import ALGORITHMS, backend_named
    from meshwright.search.rank import Ranker

    way, library = chosen(algorithm, ALGORITHMS, "--algorithm"), backend_named(backend)
    if way not in {"best", *(known for _, known in library.table)}:
        raise InputError(f"{backend} has no {way} algorithm", "take --algorithm ring or best")
    return Ranker(
        Pricer(cluster, library, way),
        limit=limit,
        rules=chosen(rules, RULES, "--rules"),
        kind=chosen(hierarchy, HIERARCHY_KINDS, "--hierarchy"),
    )
