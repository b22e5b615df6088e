"""Sharded tensor of a checkpoint: a rank's chunks, as `torch.distributed.checkpoint` wants them.
Enters: what the rank keeps, and which of it it owns. Leaves: a `Sharded`, which
`torch.distributed.checkpoint` saves and loads as one whole tensor.

It has the shape of the whole and no data of its own: it can be copied and averaged (EMA), element
by element, and nothing else can be computed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from meshwright.base.errors import InputError
from meshwright.graph.pieces import Box
from meshwright.lower.boxes import shape_of
from meshwright.lower.ownership import Region, without
from meshwright.run.state.model_state import view_of_box

ATEN = torch.ops.aten

BY_ELEMENT = {
    *(ATEN.clone.default, ATEN.detach.default, ATEN.copy_.default, ATEN.lerp_.Scalar),
    *(ATEN.add_.Tensor, ATEN.mul_.Tensor),
}
"""Operators that a rank can apply to what it keeps."""


class Chunk(NamedTuple):
    """A box that this rank has, as a view of what it keeps."""

    box: Box
    data: Tensor
    owned: bool

    @property
    def offset(self) -> torch.Size:
        """Where it begins."""
        return torch.Size(first for first, _ in self.box)

    @property
    def place(self) -> ChunkStorageMetadata:
        """Where it lies in the whole."""
        return ChunkStorageMetadata(self.offset, torch.Size(shape_of(self.box)))


class Sharded(Tensor):
    """A whole tensor of which this rank has some chunks; it writes those that it owns."""

    chunks: tuple[Chunk, ...]
    kept: Tensor
    """All that this rank has of it."""
    lies: tuple[Sequence[Region], Sequence[Box]]
    """Its regions, and the boxes of them that are owned."""

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], kept: Tensor, regions: Sequence[Region], owned: Sequence[Box]
    ) -> Sharded:
        """From what is kept, a row of regions, and the boxes of them that are owned.

        No two chunks overlap, so that torch finds each by where it begins.
        """
        wrapper: Sharded = torch.Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=kept.dtype, device=kept.device
        )
        wrapper.kept, wrapper.lies = kept, (regions, owned)
        others = [box for region in regions for box in without(region.box, owned)]
        wrapper.chunks = tuple(
            Chunk(box, view_of_box(kept, regions, box), written)
            for boxes, written in ((owned, True), (others, False))
            for box in boxes
        )
        return wrapper

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"Sharded({list(self.shape)}, here {[chunk.box for chunk in self.chunks]})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: object, arguments: Sequence[Any] = (), named: Any = None
    ) -> Any:
        pieces = [value for value in arguments if isinstance(value, cls)]
        plain = [value for value in arguments if isinstance(value, Tensor) and value.dim()]
        first = pieces[0] if pieces else None
        if (
            function in BY_ELEMENT
            and first is arguments[0]
            and len(plain) == len(pieces)
            and all(piece.lies == first.lies for piece in pieces)
        ):
            values = (value.kept if isinstance(value, cls) else value for value in arguments)
            result = function(*values, **(named or {}))
            return first if result is first.kept else cls(first.shape, result, *first.lies)
        raise InputError(
            f"{function} was called on a tensor that is in pieces on several ranks",
            "gather the state with full_state, or hand it to torch.distributed.checkpoint",
        )

    def __reduce_ex__(self, _: object) -> Any:
        raise InputError(
            "a state_dict of which this rank has pieces is pickled (torch.save, deepcopy)",
            "save whole_state(), or use torch.distributed.checkpoint",
        )

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        return [
            WriteItem(
                index=MetadataIndex(name, chunk.offset),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk.place,
                    properties=TensorProperties.create_from_tensor(chunk.data),
                    size=self.size(),
                ),
            )
            for chunk in self.chunks
            if chunk.owned
        ]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [chunk.place for chunk in self.chunks]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(chunk.data for chunk in self.chunks if chunk.offset == index.offset)
