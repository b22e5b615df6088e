"""Options of the verb `check`, and what they turn into."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.configs.written import Written

FlagsOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Megatron flags, in quotes, instead of CONFIG.")
]
DataOption = Annotated[
    int | None, typer.Option("--data", "--dp", min=1, help="Degree; default: what is left.")
]
TensorOption = Annotated[
    int | None, typer.Option("--tensor", "--tp", min=1, help="Degree of tensor parallelism.")
]
ContextOption = Annotated[
    int | None, typer.Option("--context", "--cp", min=1, help="Degree of context parallelism.")
]
PipelineOption = Annotated[
    int | None, typer.Option("--pipeline", "--pp", min=1, help="Stages of a pipeline.")
]
ExpertOption = Annotated[
    int | None, typer.Option("--expert", "--ep", min=1, help="Ways that experts are spread.")
]
VirtualOption = Annotated[
    int | None, typer.Option(min=1, help="Runs of layers on each stage (interleaved).")
]
MicroBatchesOption = Annotated[int | None, typer.Option(min=1, help="Micro-batches of a step.")]
ZeroOption = Annotated[int | None, typer.Option(min=0, max=3, help="Stage of ZeRO.")]
SyncEachOption = Annotated[
    bool | None,
    typer.Option(
        help="When ZeRO 2 and 3 sum gradients: after each micro-batch, or once a step (no_sync); "
        "default: as FSDP2, after each, but in a pipeline once."
    ),
]
ShardWithinOption = Annotated[
    int | None,
    typer.Option(min=1, help="Devices in a row that ZeRO shards among, with copies beyond (HSDP)."),
]
RecomputeOption = Annotated[
    bool, typer.Option("--recompute", "--ac", help="Activation checkpointing of layers.")
]
BetterOption = Annotated[
    bool, typer.Option(help="Look for the best configuration and for the best plan.")
]
PlanOption = Annotated[
    bool, typer.Option(help="With the better also the best plan of the joint search.")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", help="Also the settings that do not count.")
]

Given = dict[str, int | bool]
"""Degrees and settings by name."""

TRACES = (".json", ".pt2")
"""How files end that are models, not configurations."""


def given(**values: int | None) -> Given:
    """The degrees and settings that were given."""
    return {name: value for name, value in values.items() if value is not None}


def parted(
    config: str | None, model: str | None, flags: str | None, degrees: Given
) -> tuple[str | None, str | None]:
    """Which word is the file and which the model: with degrees or flags there is no file."""
    from meshwright.base.errors import InputError

    if degrees and flags is not None:
        raise InputError("--flags and degrees are both given", "give one of them")
    if not degrees and flags is None:
        if config is None:
            raise InputError(
                "there is nothing to check",
                "give a torchtitan .toml, a file with Megatron flags, --flags, or degrees such as "
                "--dp 4 --tp 8",
            )
        return config, model
    if model is not None:
        raise InputError(
            f"{config!r} and {model!r} are given besides "
            f"{'--flags' if flags is not None else 'degrees'}",
            "give a file or degrees, not both, and one model",
        )
    return None, config


def written(file: str | None, flags: str | None, degrees: Given, devices: int) -> Written:
    """What there is to check."""
    from meshwright.base.errors import InputError
    from meshwright.configs.megatron_flags import read_megatron
    from meshwright.configs.torchtitan_python import read_torchtitan_python
    from meshwright.configs.torchtitan_toml import read_torchtitan

    if flags is not None:
        return read_megatron(flags, devices)
    if file is None:
        return _of_degrees(degrees, devices)
    text = _text(file)
    try:
        match file.rpartition(".")[2]:
            case "toml":
                reader = read_torchtitan
            case "py":
                reader = read_torchtitan_python
            case _:
                reader = read_megatron
        return reader(text, devices)
    except InputError as error:
        raise error.at(file) from None


def require_own_software(software: str | None, what: Written) -> None:
    """Refuse to name the software of a configuration that says its own."""
    from meshwright.base.errors import InputError

    if software is not None and what.form != "options":
        raise InputError(
            f"--software is {software!r}, and the configuration is one of {what.form}, "
            "which says how it runs",
            "leave --software out, or give degrees such as --dp 4 --tp 8",
        )


def chosen_model(named: str | None, what: Written) -> str:
    """The model that is given, or the one that the configuration is about."""
    from meshwright.base.errors import InputError

    source = named or what.model
    if source is None:
        raise InputError(
            "the configuration does not say which model of the zoo it is for",
            "name one behind it, as zoo:llama3-8b or train.py:model",
        )
    return source


def chosen_batch(batch: int | None, what: Written, source: str) -> int | None:
    """Samples of a step; a trace has its own."""
    from meshwright.base.errors import InputError

    if batch is not None and what.batch is not None and batch != what.batch:
        raise InputError(
            f"--batch is {batch}, and the configuration says {what.batch} samples a step",
            "change the configuration, or leave --batch out",
        )
    return batch if source.endswith(TRACES) else batch or what.batch


def _of_degrees(degrees: Given, devices: int) -> Written:
    import math

    import msgspec

    from meshwright.baselines.degrees.parallel_config import ParallelConfig
    from meshwright.configs.written import Written, summed_by

    taken = math.prod(degrees.get(axis, 1) for axis in ("tensor", "context", "pipeline"))
    rest = {"data": max(1, devices // taken), "sequence": degrees.get("tensor", 1) > 1}
    config = msgspec.structs.replace(ParallelConfig(), **rest | degrees)
    if "sync_each" not in degrees:
        config = summed_by("torchtitan", config)
    return Written(form="options", config=config)


def _text(file: str) -> str:
    from pathlib import Path

    from meshwright.base.errors import InputError

    if file.endswith(TRACES) or ":" in file:
        raise InputError(
            f"{file!r} is a model, and no configuration is given",
            "give a file in front of it, --flags, or degrees such as --dp 4 --tp 8",
        )
    try:
        return Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file {file!r}", "give the path of a configuration") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file!r} cannot be read: {error}", "give a text file") from None
