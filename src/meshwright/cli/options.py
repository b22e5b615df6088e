"""Options that several verbs share, and what they turn into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from meshwright.cli import completion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshwright.cluster.model import Cluster
    from meshwright.graph.model import OperatorGraph
    from meshwright.graph.notation import Definition
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
TopOption = Annotated[int, typer.Option(help="Most lines of a table.")]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON for scripts, see docs/json.md.")]


def chosen_cluster(
    name: str, nodes: int | None, gpus: int | None, resize: list[str] | None
) -> Cluster:
    """The cluster that the options name, resized."""
    from meshwright.base.errors import InputError, shown
    from meshwright.base.integers import parse_whole
    from meshwright.cluster.model import Cluster

    sizes = {level: n for level, n in (("node", nodes), ("gpu", gpus)) if n is not None}
    for text in resize or ():
        level, _, number = text.partition("=")
        if not number.strip().isdecimal():
            raise InputError(f"--resize {shown(text)} is no LEVEL=N", "write it as 'rack=2'")
        try:
            sizes[level.strip()] = parse_whole(number)
        except InputError as error:
            raise error.at(f"--resize {level.strip()}") from None
    cluster = Cluster.load(name) if name.endswith(".toml") else Cluster.named(name)
    return cluster.resized(sizes)


def chosen(given: str, allowed: tuple[_T, ...], option: str) -> _T:
    """The allowed value that was given."""
    from meshwright.base.errors import InputError, nearest

    for value in allowed:
        if value == given:
            return value
    raise InputError(f"{option} is {given!r}", nearest(given, allowed))


def captured_graph(
    model: str,
    batch: int | None,
    dtype: str | None = None,
    operators: Mapping[str, Definition] | None = None,
) -> OperatorGraph:
    """The graph of a model, cast if asked; what its user should know goes to standard error."""
    from meshwright.base.errors import InputError
    from meshwright.graph.dtypes import FP8, dtype_named, in_dtype

    try:
        dtype = dtype_named("bf16" if dtype == FP8 else dtype) if dtype is not None else None
    except InputError as error:
        raise error.at("--dtype") from None
    from meshwright.capture.load import load_model

    captured = load_model(model, batch, operators or {})
    for warning in captured.warnings:
        typer.echo(f"meshwright: {warning}", err=True)
    return captured.graph if dtype is None else in_dtype(captured.graph, dtype)


def with_sequence(model: str, sequence: int | None) -> str:
    """The text of a model with so many tokens a sample."""
    from meshwright.base.errors import InputError

    if sequence is None:
        return model
    if not model.startswith(("zoo:", "hf:")):
        raise InputError(
            f"--seq is {sequence}, and {model!r} decides the length of its samples itself",
            "give it to your function, as file.py:function?sequence=4096",
        )
    name, _, options = model.partition("?")
    given = [own for own in options.split("&") if own and not own.startswith("sequence=")]
    return f"{name}?{'&'.join((*given, f'sequence={sequence}'))}"


def in_precision(cluster: Cluster, dtype: str | None) -> Cluster:
    """The cluster, whose devices run products with weights in fp8 if that is asked for."""
    from msgspec.structs import replace

    from meshwright.graph.dtypes import FP8

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


def require_place(option: str, path: str | None) -> None:
    """Refuse a file that could not be written, before the work whose result it is for."""
    from meshwright.base.errors import InputError
    from meshwright.base.files import require_writable

    if path is not None:
        try:
            require_writable(path)
        except InputError as error:
            raise error.at(option) from None


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
