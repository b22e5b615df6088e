"""On which machine a published row ran. Enters: a row. Leaves: a cluster of the catalogue with the
row's devices, memory and software, or why there is none.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import divisors
from meshwright.base.units import Bytes
from meshwright.cluster.model import Cluster
from meshwright.cluster.rates import Software
from meshwright.validate.published.rows import PublishedRow

MACHINES = {
    "a100": "hgx-a100",
    "h100_96gb_500w": "grand-teton-h100",
    "h100": "hgx-h100",
    "h200": "dgx-h200",
    "b200": "dgx-b200",
    "b300": "dgx-b300",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "gh200": "alps-gh200",
    "v100": "jean-zay-v100",
    "mi300x": "mi300x",
    "tpu-v6e": "tpu-v6e",
    "tpu-v5p": "tpu-v5p",
    "tpu7x": "tpu7x",
}
"""By how the name of a GPU begins; the first that fits."""

OWN = {
    ("BigScience", "a100"): "jean-zay-a100",
    ("fms-fsdp", "a100"): "vela-a100",
    ("fms-fsdp", "h100"): "vela-h100",
}
"""Machines of single sources, by how source and GPU begin."""

UNFUSED = ("BigScience", "Sailor", "Korthikanti", "Megatron-LM README 2021")
"""Sources whose attention wrote its scores: Megatron-DeepSpeed and Megatron-LM before 2023."""

EAGER = ("llm-foundry", "torchtitan")
"""Sources that run PyTorch's own kernels, unless they say that they compile."""


def machine_of(row: PublishedRow) -> Cluster:
    """The machine of a row."""
    if row.gpus is None:
        raise InputError(f"{row.model}: gpus is missing or no whole number", "fill it in")
    cluster = Cluster.named(_name(row))
    inner = cluster.levels[-1]
    each = max(n for n in divisors(row.gpus) if n <= inner.cardinality)
    sizes = {inner.name: each}
    if len(cluster.levels) > 1:
        sizes[cluster.levels[0].name] = row.gpus // each
    elif row.gpus != each:
        raise InputError(
            f"{row.gpus} devices, and cluster {cluster.name!r} is one machine of "
            f"{inner.cardinality}",
            "give fewer",
        )
    device = replace(cluster.device, software=software_of(row))
    memory = re.search(r"_(\d+)gb", row.gpu)
    if memory is not None and device.memory < Bytes(10**9) * int(memory[1]):
        device = replace(device, memory=Bytes(10**9 * int(memory[1])))
    elif memory is not None and device.memory > Bytes(2**30) * int(memory[1]):
        device = replace(device, memory=Bytes(2**30 * int(memory[1])))
    return replace(cluster.resized(sizes), device=device)


def _name(row: PublishedRow) -> str:
    for (source, gpu), name in OWN.items():
        if row.source.startswith(source) and row.gpu.startswith(gpu):
            return name
    for gpu, name in MACHINES.items():
        if row.gpu.startswith(gpu):
            return name
    raise InputError(f"no machine of the catalogue has {row.gpu!r}", nearest(row.gpu, MACHINES))


def software_of(row: PublishedRow) -> Software:
    """How a row's framework runs kernels."""
    compiled = row.compile in ("yes", "xla")
    precision = row.dtype.lower()
    products = "fp4" if "fp4" in precision else "fp8" if "fp8" in precision else ""
    if "rowwise" in precision:
        # torchtitan's own table has it as fast as bf16: scaling rows takes what products save.
        products = ""
    return Software(
        fuses=compiled or not row.source.startswith(EAGER),
        flash=not row.source.startswith(UNFUSED),
        wide="pure" not in precision,
        products=products,
    )
