"""Sharded parameters of a rank (tensor parallelism, ZeRO 1 to 3) and their gradients. Enters: a
script. Leaves: `Parameters`: this rank's piece of each, what the optimizer sees of it, and its
gradient.

A sharded parameter (ZeRO) is cut once more, into whole rows, over the devices that would hold
copies: the optimizer sees the rank's shard, and the piece is gathered before it is used. With ZeRO
1 and 2 the shard is a part of the piece, which stays; with ZeRO 3 it is apart, and the piece goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from meshwright.capture.operators.torch_dtypes import torch_dtype
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import shape_of
from meshwright.lower.buckets import BucketParameter, ElementRange
from meshwright.lower.device_mesh import Coordinates
from meshwright.lower.script import Script
from meshwright.run.comm.resharding import Resharder


class Sharing(NamedTuple):
    """How a piece is cut among devices."""

    stretches: tuple[ElementRange, ...]
    """The elements of each member's shard."""
    own: int
    """This rank's place among them."""

    def shard(self, flat: Tensor) -> Tensor:
        """The shard of this rank."""
        return self.shards(flat)[self.own]

    def shards(self, flat: Tensor) -> list[Tensor]:
        """Each member's shard."""
        return [flat[first:last] for first, last in self.stretches]

    @property
    def sizes(self) -> list[int]:
        """Elements of each member's shard."""
        return [last - first for first, last in self.stretches]


class ParameterPiece:
    """A part of one parameter, on this rank."""

    def __init__(
        self,
        name: str,
        box: Box,
        data: Tensor,
        sharing: Sharing | None,
        *,
        trained: bool,
        stays: bool = False,
    ) -> None:
        self.name, self.box, self.sharing = name, box, sharing
        self.data = data
        """The piece; of a sharded one only good between gathering and the next update."""
        self.stays = sharing is None or stays
        """Whether the piece is there all the time."""
        seen = data if sharing is None else sharing.shard(data.view(-1))
        if not self.stays:
            seen = seen.clone()
        self.seen = nn.Parameter(seen, requires_grad=trained)
        """What the optimizer updates."""
        self._memory = self.seen.data_ptr()
        self.parameter = self.seen
        """As users see it: the same memory, as a plain tensor or as a DTensor."""
        self.gradient: Tensor | None = None
        """Of what is seen, from the last step."""

    @property
    def accumulated(self) -> Tensor | None:
        """What users have as its gradient, of this rank's numbers."""
        gradient, parameter = self.parameter.grad, self.parameter
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            # Of a term that users compute of parameters, as a penalty, it may lie otherwise.
            whole: Any = gradient.detach()
            gradient = whole.redistribute(placements=parameter.placements)
        return None if gradient is None else local_part(gradient).view(self.seen.shape)

    def hand_out(self, gradient: Tensor) -> None:
        """Let users have a gradient, besides what they have already."""
        before = self.accumulated
        total = gradient.view(self.seen.shape) if before is None else before + gradient
        # Laid out as the parameter is, as PyTorch's own gradients are.
        self.parameter.grad = laid_out(total.contiguous(), self.parameter)

    @property
    def moved(self) -> bool:
        """Whether users have put other memory in the parameter's place."""
        parameter = self.parameter
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
        return local.data_ptr() != self._memory

    @property
    def kept(self) -> Tensor:
        """The piece without a gradient, which stays when a sharded one gives its memory back."""
        data = self.data.detach()
        return data if self.stays else data.clone()

    def hide(self) -> None:
        """Give back the memory of a sharded piece; what is seen stays."""
        if not self.stays:
            self.data.untyped_storage().resize_(0)

    def show(self) -> None:
        """Have memory for the piece, whatever is in it.

        Memory that is there stays where it is: it may be on its way to another rank, and to resize
        it moves it even if it is large enough.
        """
        storage = self.data.untyped_storage()
        if not storage.nbytes():
            storage.resize_(self.data.nbytes)


def local_part(tensor: Tensor) -> Tensor:
    """What this rank has of a parameter, of its gradient or of an optimizer's state."""
    whole = tensor.detach()
    return whole.to_local() if isinstance(whole, DTensor) else whole


def whole_of(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]
) -> DTensor:
    """A DTensor of which this rank has some; its memory is that of the local tensor."""
    strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides
    )


def laid_out(local: Tensor, parameter: nn.Parameter) -> Tensor:
    """Numbers for what this rank has of a parameter, as the parameter is seen."""
    if not isinstance(parameter, DTensor):
        return local.view(parameter.shape)
    part = local.view(parameter.to_local().shape)
    return whole_of(part, parameter.device_mesh, parameter.placements, parameter.shape)


class Parameters:
    """All pieces of a rank."""

    def __init__(
        self, script: Script, mover: Resharder, coordinates: Coordinates, device: torch.device
    ) -> None:
        self._script, self._mover, self._here, self._device = script, mover, coordinates, device
        self.pieces: dict[str, ParameterPiece] = dict(self._pieces())

    def _pieces(self) -> Iterator[tuple[str, ParameterPiece]]:
        parallel = self._script.parallel
        kept = {bucketed.name: bucketed for b in self._script.buckets for bucketed in b.parameters}
        for parameter in parallel.plan.graph.parameters:
            name, spec = parameter.tensor.name, parameter.tensor.spec
            origin = parallel.made.get(name)
            if origin is None or not origin.forward.holds(self._here):
                continue
            box = origin.forward.box(self._here)
            data = torch.zeros(shape_of(box), dtype=torch_dtype(spec.dtype), device=self._device)
            sharing = self._sharing(kept.get(name), shape_of(box))
            stays = self._script.plan.options.zero < 3
            yield (
                name,
                ParameterPiece(name, box, data, sharing, trained=parameter.trainable, stays=stays),
            )

    def _sharing(self, kept: BucketParameter | None, shape: tuple[int, ...]) -> Sharing | None:
        if kept is None or not kept.shards:
            return None
        stretches = kept.stretches(self._script.parallel.machine, shape)
        return Sharing(stretches, self._mover.members(kept.shards).index(self._mover.rank))
