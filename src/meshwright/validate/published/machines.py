"""Machine of a published row: a cluster of the catalogue. Enters: a row. Leaves: a cluster of the
catalogue with the row's devices, memory and software, or why there is none.
"""

from __future__ import annotations

import re

from msgspec.structs import replace

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.rates import HIDDEN_EXCHANGE, HIDDEN_TENSOR, SELECTIVE, Software
from meshwright.validate.published.models import EXPERTS
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
    ("vTrain", "a100"): "vtrain-a100",
}
"""Machines of single sources, by how source and GPU begin."""

UNFUSED = ("BigScience", "Sailor", "Korthikanti", "Megatron-LM README 2021", "vTrain")
"""Sources whose attention wrote its scores: Megatron-DeepSpeed and Megatron-LM before 2023."""

NVIDIA = ("Megatron-Bridge", "NVIDIA dgxc", "NeMo", "MLPerf", "Megatron-LM README model_table",
          "Megatron-LM examples")  # fmt: skip
"""Sources whose recipes let products hide tensor-parallel communication (userbuffers), and send
tokens with DeepEP or HybridEP; with virtual stages that overlaps with another micro-batch."""

ADDING = ("BigScience", "Sailor", "vTrain")
"""Sources whose gradients are added up micro-batch by micro-batch by kernels of their own
(DeepSpeed's pipeline)."""

JOINED = 26.06
"""The release of Megatron-Bridge since which the products of experts, what is between them and
scaling to 8 bits are one kernel."""

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
    nvidia, experts = row.source.startswith(NVIDIA), EXPERTS.search(row.note)
    virtual = (row.pp or 1) > 1 and (row.vp or 1) > 1
    return Software(
        fuses=compiled or not row.source.startswith(EAGER),
        flash=not row.source.startswith(UNFUSED),
        wide="pure" not in precision,
        products=products,
        joins=bool(products) and (_release(row) or 0.0) >= JOINED,
        adds=row.source.startswith(ADDING),
        scatters=row.source.startswith(UNFUSED),
        dispatched=int(experts[2]) if nvidia and experts else 0,
        keeps=SELECTIVE if _selective(row) else 1.0,
        gradient_bytes=_gradient_bytes(row),
        hidden_exchange=HIDDEN_EXCHANGE if nvidia and experts and virtual else 0.0,
        hidden_tensor=HIDDEN_TENSOR if nvidia or "async TP" in row.note else 0.0,
    )


def _selective(row: PublishedRow) -> bool:
    """Whether PyTorch runs some operators again; Megatron's attention is fused instead."""
    return row.recompute.startswith("selective") and row.source.startswith(EAGER)


def _gradient_bytes(row: PublishedRow) -> float:
    """Of BigScience's A100s: 16-bit gradients, since 2022-02-28 besides them a copy in float32 and
    gathered parameters (DeepSpeed's BF16_Optimizer). Of all others as they are wide.
    """
    match = re.search(r"measured (2022-\d\d-\d\d)", row.note)
    if match is None or not row.source.startswith("BigScience"):
        return 0.0
    return 8.0 if match[1] >= "2022-02-28" else 2.0


def _release(row: PublishedRow) -> float | None:
    """The release of Megatron-Bridge that a row is of: 26.04 of "26.04.01"."""
    match = re.match(r"Megatron-Bridge performance (\d+\.\d+)", row.source)
    return float(match[1]) if match else None
