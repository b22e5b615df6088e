"""Megatron-LM's flags. Enters: text in which they stand, as a shell script or a list, and a number
of devices. Leaves: a `Written`.

Names are those of `megatron/training/arguments.py` (2025, commit 000c4ac2). Of a script the
assignments NAME=VALUE are read, so that $NAME and ${NAME:-8} are known; nothing is run. Ranks are
numbered tp-cp-ep-dp-pp, innermost first, or tp-cp-ep-pp-dp with --use-tp-pp-dp-mapping; data
parallelism takes what is left of the devices.

    --use-distributed-optimizer            ZeRO 1
    --data-parallel-sharding-strategy      optim 1, optim_grads 2, optim_grads_params 3 (FSDP)
    --recompute-granularity full           layers run again; selective is what attention here does
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import divisors, parse_whole
from meshwright.baselines.degrees.configured import virtual_stage_starts, with_virtual_stage_layers
from meshwright.baselines.degrees.parallel_config import (
    INNERMOST_FIRST,
    PIPELINE_INSIDE,
    ParallelConfig,
)
from meshwright.cluster.rates import Software
from meshwright.cluster.software import megatron_software
from meshwright.configs.megatron_model import SIZES, model_source_of_flags, stated_sizes
from meshwright.configs.written import Written, micro_batches_of

DEGREES = (
    "tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size",
    "expert-model-parallel-size",
)  # fmt: skip
LAYOUT = "pipeline-model-parallel-layout"
INSTANCES = "num-distributed-optimizer-instances"
COUNTED = {
    *DEGREES, *SIZES, "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank", LAYOUT, "sequence-parallel",
    "use-distributed-optimizer", INSTANCES,
    "data-parallel-sharding-strategy", "use-tp-pp-dp-mapping", "recompute-granularity",
    "recompute-method", "recompute-num-layers",
    "recompute-activations", "micro-batch-size", "global-batch-size", "bf16", "fp16", "optimizer",
    "expert-tensor-parallel-size", "overlap-param-gather", "tp-comm-overlap", "fp8-format",
    "moe-enable-deepep", "moe-token-dispatcher-type", "overlap-moe-expert-parallel-comm",
}  # fmt: skip
SILENT = {
    "use-megatron-fsdp", "use-custom-fsdp", "use-torch-fsdp2", "recompute-modules",
    "overlap-p2p-communication", "no-overlap-p2p-communication", "cp-comm-type",
    "no-async-tensor-model-parallel-allreduce", "data-parallel-random-init",
    "moe-router-topk", "moe-grouped-gemm",
}  # fmt: skip
"""About parallelism, known, and not counted."""

ABOUT = re.compile(r"parallel|pipeline|recompute|expert|fsdp|shard")
"""What flags about parallelism are called."""

SHARDING = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}

_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_ASSIGNED = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s(]+)\s*$", re.MULTILINE)
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
_WORD = re.compile(r"[^\s()\"']+")


class _Flags(NamedTuple):
    """Flags by name, without dashes; a switch has no value."""

    values: Mapping[str, str | None]

    def whole(self, name: str, default: int) -> int:
        """A number, or what it is without the flag."""
        if name not in self.values:
            return default
        text = self.values[name] or ""
        try:
            return parse_whole(text)
        except InputError:
            raise InputError(
                f"--{name} is {text!r}", "write a number, or assign the variable in the same file"
            ) from None

    def has(self, name: str) -> bool:
        """Whether a switch is set."""
        return name in self.values


def read_megatron(text: str, devices: int) -> Written:
    """The flags in a text.

    >>> read_megatron("--tensor-model-parallel-size 4 --bf16", 16).config.degrees
    {'tensor': 4, 'context': 1, 'data': 4, 'pipeline': 1}
    """
    flags = _flags(text)
    if not flags.values.keys() & {*COUNTED, *SILENT}:
        raise InputError(
            "there are no flags of Megatron in it",
            "give a file with flags such as --tensor-model-parallel-size 8, or a torchtitan .toml",
        )
    tensor, pipeline, context, expert = (flags.whole(name, 1) for name in DEGREES)
    taken = max(1, tensor * pipeline * context)
    data = max(1, devices // taken)
    micro_batch = max(1, flags.whole("micro-batch-size", 1))
    batch = flags.whole("global-batch-size", micro_batch * data)
    count, problems = micro_batches_of(batch, micro_batch, data, "--global-batch-size")
    stages = _stages(flags)
    half = "bfloat16" if flags.has("bf16") else "float16" if flags.has("fp16") else None
    chunks = _virtual(flags, stages, pipeline)
    config = ParallelConfig(
        data=data,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=expert,
        chunks=chunks,
        uneven=bool(stages),
        micro_batches=count,
        zero=_zero(flags),
        recompute=flags.values.get("recompute-granularity") == "full",
        recompute_layers=_some_layers(flags) * pipeline * chunks,
        sequence=flags.has("sequence-parallel") and tensor > 1,
        optimizer="sgd" if flags.values.get("optimizer") == "sgd" else "adam",
        mixed=half is not None,
        folded=flags.values.get("expert-tensor-parallel-size") == "1",
        early=flags.has("overlap-param-gather"),
        order=PIPELINE_INSIDE if flags.has("use-tp-pp-dp-mapping") else INNERMOST_FIRST,
    )
    config = config.with_replicas(_replicas(flags, config))
    if stages and min(stages) > 0:
        config = with_virtual_stage_layers(config, stages)
    each = flags.whole("num-layers-per-virtual-pipeline-stage", 0)
    return Written(
        form="megatron",
        config=config,
        batch=batch,
        dtype=half or "float32",
        layers_each=each or None,
        model=model_source_of_flags(flags.values),
        sizes=stated_sizes(flags.values),
        problems=problems,
        notes=(*_notes(flags), *_note_on_stages(stages)),
        ignored=tuple(f"--{name}" for name in flags.values if not _about(name)),
        software=_software(flags),
    )


def _software(flags: _Flags) -> Software:
    """How Megatron runs what the flags say."""
    once = flags.has("moe-enable-deepep") or flags.values.get("moe-token-dispatcher-type") == "flex"
    return megatron_software(
        tensor_overlap=flags.has("tp-comm-overlap"),
        copies=flags.whole("moe-router-topk", 2) if once else 0,
        exchange_overlap=flags.has("overlap-moe-expert-parallel-comm"),
        products="fp8" if flags.has("fp8-format") else "",
    )


def _flags(text: str) -> _Flags:
    plain = _COMMENT.sub("", text.replace("\\\n", " "))
    known = {name: value.strip("\"'") for name, value in _ASSIGNED.findall(plain)}

    def value(match: re.Match[str]) -> str:
        braced, default, bare = match.groups()
        name = braced or bare
        held = known.get(name, default)
        # NAME=${NAME:-8} means 8: what the shell had before is not known.
        return match[0] if held is None else (default or match[0]) if name in held else held

    for name in known:
        known[name] = _USED.sub(value, known[name])
    flags: dict[str, str | None] = {}
    last: str | None = None
    for word in _WORD.findall(_USED.sub(value, plain)):
        if word.startswith("--") and len(word) > 2:
            name, equals, argument = word[2:].partition("=")
            flags[name] = argument if equals else None
            last = None if equals else name
        elif last is not None:
            flags[last], last = word, None
    return _Flags(flags)


def _zero(flags: _Flags) -> int:
    strategy = flags.values.get("data-parallel-sharding-strategy")
    fsdp = flags.has("use-megatron-fsdp") or flags.has("use-custom-fsdp")
    if flags.has("use-torch-fsdp2"):
        return 3
    if fsdp and strategy is not None:
        if strategy not in SHARDING:
            raise InputError(
                f"--data-parallel-sharding-strategy is {strategy!r}", nearest(strategy, SHARDING)
            )
        return SHARDING[strategy]
    return 1 if flags.has("use-distributed-optimizer") else 0


def _replicas(flags: _Flags, config: ParallelConfig) -> int:
    """Copies of what ZeRO shards."""
    copies = flags.whole(INSTANCES, 1) if config.zero else 1
    if copies < 1 or config.data % copies:
        raise InputError(
            f"--{INSTANCES} is {copies}, which does not divide data {config.data}",
            f"give one of {', '.join(map(str, divisors(config.data)))}",
        )
    return copies


def _stages(flags: _Flags) -> tuple[int, ...]:
    """The layers of each stage that a layout gives (E embedding, t layer, L loss); none without."""
    text = flags.values.get(LAYOUT) or ""
    if flags.has(LAYOUT) and not re.fullmatch(r"[Et*0-9,|mL]+", text):
        raise InputError(f"--{LAYOUT} is {text!r}", 'write each stage, as in "Et*3|t*4|t*4|t*3L"')
    layers = []
    for stage in text.split("|") if text else ():
        counted = re.findall(r"t(?:\*(\d+))?", stage)
        layers.append(sum(int(count) if count else 1 for count in counted))
    return tuple(layers)


def _some_layers(flags: _Flags) -> int:
    """Of how many layers in each stage activation checkpointing is; 0: of all."""
    if flags.values.get("recompute-method") != "block":
        return 0
    return flags.whole("recompute-num-layers", 1)


def _virtual(flags: _Flags, stages: tuple[int, ...], pipeline: int) -> int:
    if stages and len(stages) % pipeline:
        raise InputError(
            f"--{LAYOUT} has {len(stages)} stages, which pipeline {pipeline} does not divide",
            f"give a multiple of {pipeline} stages",
        )
    if stages:
        return max(1, len(stages) // pipeline)
    return flags.whole("num-virtual-stages-per-pipeline-rank", 1)


def _note_on_stages(stages: tuple[int, ...]) -> Iterator[str]:
    layers = sum(stages)
    if not stages or min(stages) > 0 or layers < max(2, len(stages)):
        return
    cuts = [0, *virtual_stage_starts(range(layers), len(stages)), layers]
    priced = tuple(second - first for first, second in pairwise(cuts))
    if priced != stages:
        said, counted = (" + ".join(map(str, layer_counts)) for layer_counts in (stages, priced))
        yield f"stages of {said} layers are priced as {counted}"


def _notes(flags: _Flags) -> list[str]:
    notes = [
        f"--{name} is not known here and not counted; {nearest(name, COUNTED)}"
        for name in flags.values
        if ABOUT.search(name) and name not in COUNTED and name not in SILENT
    ]
    selective = flags.values.get("recompute-granularity") == "selective"
    if selective or flags.has("recompute-activations"):
        notes.append("selective recomputation is priced as none: attention keeps no scores here")
    return notes


def _about(name: str) -> bool:
    return name in COUNTED or name in SILENT or bool(ABOUT.search(name))
