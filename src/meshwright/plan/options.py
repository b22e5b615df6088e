"""Global options of a plan, the same for every op group. Enters: nothing. Leaves: `Options`: the
optimizer, micro-batches and their schedule, what runs again, what ZeRO shards among whom, buckets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from meshwright.base.errors import InputError, nearest
from meshwright.base.integers import require_whole
from meshwright.base.quantities import Bytes
from meshwright.cost.memory import OPTIMIZERS, Optimizer
from meshwright.graph.layers import recomputed_layers
from meshwright.graph.operator_graph import OperatorGraph

Schedule = Literal["gpipe", "1f1b", "interleaved"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)

SHARDS_GRADIENTS = 2
"""The stage of ZeRO from which on gradients are sharded."""

LAYERWISE = Bytes(-1)
"""In `Options.bucket`: a bucket for each repeated layer."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan decides for the whole graph."""

    optimizer: Optimizer = "adam"
    mixed: bool = False
    """Whether the optimizer keeps a float32 copy of 16-bit parameters."""
    micro_batches: int = 1
    schedule: Schedule = "1f1b"
    recompute: bool = False
    """Whether repeated layers run again in the backward pass instead of keeping what they made."""
    recompute_layers: int = 0
    """Of how many layers, if not of all (0), evenly spread over the graph (`recomputed_layers`)."""
    zero: int = 0
    """Sharding of what is copied: 1 the optimizer's state, 2 also gradients, 3 also parameters."""
    sync_each: bool = False
    """Whether gradients are summed over devices after each micro-batch (FSDP2's default), so that
    only shards of them are held until the next, and not once a step (its no_sync)."""
    shard_within: int = 0
    """Among how many devices in a row it is sharded, with copies beyond (HSDP: as many as a node
    has); 0: among all."""
    bucket: Bytes = Bytes(0)
    """Gradients of at least so many bytes are reduced together; 0: those of each unit by itself;
    LAYERWISE: those of each repeated layer, as FSDP's units and about as Megatron's buckets are."""
    early: bool = False
    """Whether what ZeRO 1 or 2 updated in shards is gathered as the next step needs it (Megatron's
    --overlap-param-gather), and not at the end of this one."""

    def __post_init__(self) -> None:
        require_whole(self.micro_batches, "the number of micro-batches is")
        for what, value, known in (
            ("optimizer", self.optimizer, OPTIMIZERS),
            ("schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise InputError(f"the {what} is {value!r}", nearest(value, known))
        if self.recompute_layers < 0:
            raise InputError(
                f"{self.recompute_layers} layers are recomputed", "give 0 for all, or how many"
            )
        if self.zero not in range(4):
            raise InputError(f"the ZeRO stage is {self.zero}", "give 0, 1, 2 or 3")
        if self.sync_each and self.zero < SHARDS_GRADIENTS:
            raise InputError(
                f"ZeRO {self.zero} holds whole gradients, whenever they are summed",
                "give ZeRO 2 or 3, or sum them once a step",
            )
        if self.shard_within and not self.zero:
            raise InputError(
                f"ZeRO 0 shards nothing within {self.shard_within} devices",
                "give a ZeRO stage too, or leave the devices out",
            )

    @property
    def sums(self) -> int:
        """How often a step sums gradients over devices."""
        return self.micro_batches if self.sync_each else 1

    @property
    def accumulates(self) -> bool:
        """Whether gradients of several micro-batches are added before they are summed."""
        return self.micro_batches > self.sums

    @property
    def sharded(self) -> str:
        """What is sharded among whom, in a few words."""
        among = f" within {self.shard_within} devices (HSDP)" if self.shard_within else ""
        each = ", gradients summed after each micro-batch" if self.sync_each else ""
        return f"ZeRO {self.zero}{among}{each}"

    def with_zero(self, stage: int) -> Options:
        """The same with another stage of ZeRO."""
        return msgspec.structs.replace(
            self,
            zero=stage,
            shard_within=self.shard_within if stage else 0,
            sync_each=self.sync_each and stage >= SHARDS_GRADIENTS,
        )

    @property
    def recomputed(self) -> str:
        """What is recomputed, in a word or two."""
        if not self.recompute:
            return "no"
        return f"{self.recompute_layers} layers" if self.recompute_layers else "yes"

    def runs_again(self, graph: OperatorGraph) -> Mapping[str, tuple[int, int]]:
        """The operators that run again in the backward pass, each with its layer."""
        return recomputed_layers(graph, self.recompute_layers) if self.recompute else {}
