"""Effective configuration of an export target, with its framework's defaults and software. Enters:
a `Target`, what is written for it. Leaves: the software that prices it, the machine that runs that,
and the configuration with what the target does by itself: gradients of a layer are reduced
together, and parameters gathered as they are needed.

What has a reader (Megatron, torchtitan) is read back, and priced as `meshwright check` prices it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.degrees.facts import Facts
from meshwright.baselines.degrees.parallel_config import ParallelConfig
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import Software
from meshwright.cluster.software import megatron_software, running
from meshwright.configs.megatron_flags import read_megatron
from meshwright.configs.torchtitan_python import read_torchtitan_python
from meshwright.configs.torchtitan_toml import read_torchtitan
from meshwright.configs.written import Written, settled
from meshwright.export.exported import TARGETS, Files
from meshwright.plan.options import LAYERWISE

READERS: Mapping[str, Callable[[str, int], Written]] = {
    "pretrain.sh": read_megatron,
    "job.toml": read_torchtitan,
    "meshwright_plan.py": read_torchtitan_python,
}
"""By the name of the file."""


class AsRun(NamedTuple):
    """What is priced."""

    config: ParallelConfig
    software: Software


def software_of(target: str, *, mixed: bool) -> Software:
    """What runs the kernels of a target; FSDP2 reduces gradients of 16-bit layers in float32."""
    match target:
        case "megatron":
            return megatron_software(tensor_overlap=False)
        case "jax":
            return Software(fuses=True)
        case "deepspeed":
            return Software(adds=True, wide=mixed)
        case _:
            return Software(wide=mixed)


def machine_of(cluster: Cluster, software: Software) -> Cluster:
    """A cluster that runs some software instead of another target's; what a cluster's own file says
    stays.
    """
    current = replace(cluster.device.running, products="")
    known = [software_of(target, mixed=mixed) for target in TARGETS for mixed in (False, True)]
    known += [megatron_software(tensor_overlap=True)]
    if current in known:
        plain = Software(products=cluster.device.running.products)
        cluster = replace(cluster, device=replace(cluster.device, software=plain))
    return running(cluster, software)


def with_target_defaults(config: ParallelConfig, target: str) -> ParallelConfig:
    """With what a target does without being told, and what its writer tells it always."""
    early = target == "megatron" and config.zero > 0
    return replace(config, bucket=LAYERWISE, early=early)


def as_run(
    files: Files, config: ParallelConfig, target: str, devices: int, facts: Facts | None
) -> AsRun:
    """What the files say; refuses a text that says something else than it should."""
    priced = AsRun(with_target_defaults(config, target), software_of(target, mixed=config.mixed))
    for name, text in files.items():
        if name not in READERS or facts is None:
            continue
        written = READERS[name](text, devices)
        reread = settled(written, facts)
        if _said(reread) != _said(config):
            raise InputError(
                f"{name} would say '{reread}', and '{config}' is meant",
                "report it: this is a defect of the export",
            )
        priced = AsRun(replace(reread, bucket=LAYERWISE), written.software)
    return priced


def _said(config: ParallelConfig) -> tuple[object, ...]:
    """What every reader must give back."""
    return (
        config.degrees, config.expert, config.chunks, config.stages, config.micro_batches,
        config.zero, config.replicas, config.recompute, config.recompute_layers,
    )  # fmt: skip
