"""Options of the verb `plan`, and what they turn into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.base.quantities import Bytes
    from meshwright.cluster.cluster import Cluster
    from meshwright.plan.options import Options
    from meshwright.plan.plan import Plan
    from meshwright.search.budget import Budget

EXPLAINING = 20
"""Of a budget, the part that each search of an explanation gets."""

DEFAULT = "plan.json"
"""Where a plan is written unless something else is said."""

BudgetOption = Annotated[
    str, typer.Option(help="Of the search: a time (20s), or a number of proposals (5000).")
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**32, help="Seed of the search's random numbers.")
]
MemoryOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What a device may hold; by default what it has.")
]
MinimizeOption = Annotated[str, typer.Option(help="time, memory or device-hours.")]
ParetoOption = Annotated[
    bool, typer.Option("--pareto", help="Show the plans that none beats in both time and memory.")
]
DevicesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Plan for up to N devices: the number with the most throughput a device.",
    ),
]
OptimizerOption = Annotated[str, typer.Option(help="sgd, momentum or adam.")]
MixedOption = Annotated[
    bool, typer.Option("--mixed", help="The optimizer keeps float32 copies of 16-bit parameters.")
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(metavar="UNIT=LAYOUT", help="Lay out units of that name so; repeatable."),
]
ForbidOption = Annotated[
    list[str] | None,
    typer.Option(metavar="ROLE@LEVEL", help="Not this role on this level; repeatable."),
]
FixOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A degree, or stages=2, zero=1 ...; repeatable."),
]
HeldDataOption = Annotated[
    int | None, typer.Option("--data", "--dp", min=1, help="Hold the degree of DP.")
]
HeldTensorOption = Annotated[
    int | None,
    typer.Option(
        "--tensor", "--tp", min=1, help="Hold that of TP: configurations by degrees only."
    ),
]
HeldContextOption = Annotated[
    int | None, typer.Option("--context", "--cp", min=1, help="Hold that of CP, as --tp.")
]
HeldPipelineOption = Annotated[
    int | None, typer.Option("--pipeline", "--pp", min=1, help="Hold the stages of the pipeline.")
]
HeldExpertOption = Annotated[
    int | None, typer.Option("--expert", "--ep", min=1, help="Hold the degree of EP, as --tp.")
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="None of these rewrite rules; repeatable."),
]
RulesOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Further rewrite rules, which are proved at once."),
]
CertificatesOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Their proofs, from 'rules verify --certify': saves time."),
]
StartOption = Annotated[str | None, typer.Option(metavar="PLAN", help="A plan to start from.")]
OutOption = Annotated[
    str | None,
    typer.Option(
        "--out", "-o", "--save", metavar="FILE", help="Write the plan here.", show_default=DEFAULT
    ),
]
PapersOption = Annotated[
    bool, typer.Option("--papers", help="Show also the strategies that papers compare with.")
]
ProgramsOption = Annotated[
    bool, typer.Option(help="Synthesize reduction programs, or take single collectives.")
]
ForOption = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="TARGET",
        help="Search only what a system can be told: pytorch, megatron, torchtitan ...",
    ),
]
ExplainOption = Annotated[
    bool, typer.Option(help="Tell also the runner-up of every decision, and the graph.")
]
CoresOption = Annotated[
    int | None, typer.Option(min=1, help="How many cores work; by default all.")
]
TopOption = Annotated[int, typer.Option(help="Most lines of the graph and of the decisions.")]


def chosen_place(out: str | None) -> str:
    """The file of the plan. What was not named by the user replaces nothing but a plan."""
    from pathlib import Path

    from meshwright.base.errors import InputError
    from meshwright.cli.shared_options import require_output_path
    from meshwright.plan.file import looks_like_plan
    from meshwright.plan.island_plan import is_island_plan

    path = out or DEFAULT
    require_output_path("--out", path)
    known = looks_like_plan(path) or is_island_plan(path)
    if out is None and Path(path).exists() and not known:
        raise InputError(f"{path!r} is there already and is no plan", "name a file with --out")
    return path


def chosen_memory(text: str | None, cluster: Cluster) -> Bytes:
    """What a plan may hold on a device."""
    from meshwright.base.errors import InputError
    from meshwright.base.quantities import format_bytes, parse_bytes

    has = cluster.device.memory
    if text is None:
        return has
    try:
        limit = parse_bytes(text)
    except InputError as error:
        raise error.at("--memory") from None
    if limit > has:
        raise InputError(
            f"--memory is {text} and a device of {cluster.name!r} has {format_bytes(has)}",
            "give at most that, or a cluster with larger devices",
        )
    if limit <= 0:
        raise InputError(f"--memory is {text}", "give more than nothing, as '38 GB'")
    return limit


def chosen_training(optimizer: str, mixed: bool) -> Options:
    """What the user decides about training."""
    from meshwright.cli.shared_options import chosen
    from meshwright.cost.memory import OPTIMIZERS
    from meshwright.plan.options import Options

    return Options(optimizer=chosen(optimizer, OPTIMIZERS, "--optimizer"), mixed=mixed)


def chosen_start(path: str | None, devices: int | None) -> Plan | None:
    """The plan that a search starts from."""
    from meshwright.base.errors import InputError
    from meshwright.plan.file import load_plan

    if path is None:
        return None
    if devices is not None:
        raise InputError(
            "--start is a plan for one machine, and --devices tries several", "give one of the two"
        )
    try:
        return load_plan(path)
    except InputError as error:
        raise error.at("--start") from None


def require_devices(devices: int | None, cluster: Cluster) -> None:
    """Refuse more devices than there are."""
    from meshwright.base.errors import InputError

    if devices is not None and devices > cluster.devices:
        raise InputError(
            f"--devices is {devices} and {cluster.name!r} has {cluster.devices}",
            "give at most that, or a larger cluster (--nodes)",
        )


def searches(budget: Budget) -> Budget | None:
    """Of a search's budget, what each search that explains its answer gets; none of a number of
    proposals, so that what it buys stays what it was.
    """
    from meshwright.base.quantities import Seconds
    from meshwright.search.budget import Budget

    return None if budget.seconds is None else Budget(seconds=Seconds(budget.seconds / EXPLAINING))


def require_target(target: str | None, devices: int | None, start: str | None) -> None:
    """A target that is known, asked for with what goes with it."""
    if target is None:
        return
    from meshwright.base.errors import InputError
    from meshwright.export.exported import target_named

    target_named(target)
    for name, value in (("--devices", devices), ("--start", start)):
        if value is not None:
            raise InputError(
                f"--for {target} is given with {name}, which is for plans of any kind",
                f"leave {name} or --for out",
            )
