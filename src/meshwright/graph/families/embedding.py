"""Embedding tables: embedding and embedding_bag.

    dim                 role        cuts
    index dims, bags    sample (the first), attribute
    channel             parameter   the table by column
    vocabulary          reduction   the table by row; a part gives zeros for rows it does not hold
    bag                 reduction   what each bag holds, if bags are equally large and added up

Where gradients are divided by how often an index occurs in the batch (`scale_grad_by_freq`), nobody
but who sees all indices can: only columns are cut then.
Only the rows that are read count as traffic, not the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    name_of,
    replaced,
    role_of,
    tensor,
)
from meshwright.graph.operator_graph import ITEM_BYTES, Attributes, Call, Spec


def embedding_traffic(call: Call) -> Bytes:
    """Indices, one row of the table for each of them, and what comes out."""
    table, indices = tensor(call, 0), tensor(call, 1)
    row = table.shape[1] * ITEM_BYTES[table.dtype]
    return Bytes(indices.bytes + indices.elements * row + sum(out.bytes for out in call.outputs))


def table_splits(call: Call) -> tuple[Split, Split]:
    """By column and by row of the table."""
    rows, columns = tensor(call, 0).shape
    rest: tuple[None, ...] = (None,) * (len(call.inputs) - 1)
    last = len(call.outputs[0].shape) - 1
    channel = Split(
        name="channel", role="parameter", extent=columns, inputs=(1, *rest), outputs=(last,)
    )
    vocabulary = Split(
        name="vocabulary",
        role="reduction",
        extent=rows,
        inputs=(0, *rest),
        outputs=(None,),
    )
    return channel, vocabulary


def piece_of_table(call: Call, split: Split, start: int) -> Attributes:
    """A piece of the rows knows its first row."""
    if split.name != "vocabulary":
        return call.attributes
    return replaced(call.attributes, first=integer(call, "first", 0) + start)


@final
class Embedding(Family):
    """table[rows, columns] and indices[...] give out[..., columns]."""

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A row for each index."""
        table, indices = tensor(call, 0), tensor(call, 1)
        if len(table.shape) != 2:
            raise ShapeError(f"the table is {table.shape}, not (rows, columns)")
        return (Spec(table.dtype, (*indices.shape, table.shape[1])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Every dim of the output, and the rows of the table."""
        channel, vocabulary = table_splits(call)
        if call.get("scale_grad_by_freq"):
            return (channel,)
        indices = tuple(
            Split(
                name=name_of(dim),
                role=role_of(dim),
                extent=size,
                inputs=(None, dim),
                outputs=(dim,),
            )
            for dim, size in enumerate(tensor(call, 1).shape)
        )
        return (*indices, channel, vocabulary)

    def traffic(self, call: Call) -> Bytes:
        """The rows that are read."""
        return embedding_traffic(call)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """The indices."""
        return Saved(inputs=(1,))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A piece of the rows knows its first row."""
        return piece_of_table(call, split, start)


@final
class EmbeddingBag(Family):
    """Rows of a table added up (mode 0), averaged (1) or their maximum (2), bag by bag.

    Of ATen's four outputs only the first is kept. With offsets, indices[n] are bags of any size,
    which cannot be cut without looking. indices[bags, n] are bags of equal size and no offsets:
    ATen does not know them, but `functional.embedding_bag` does.
    """

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """A row for each bag."""
        table, indices = tensor(call, 0), tensor(call, 1)
        bags = indices if len(indices.shape) == 2 else tensor(call, 2)
        last = bool(call.get("include_last_offset", False)) and len(indices.shape) == 1
        return (Spec(table.dtype, (bags.shape[0] - last, table.shape[1])),)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """Bags of equal size; columns; rows and contents of bags that are only added up."""
        channel, vocabulary = table_splits(call)
        if call.get("scale_grad_by_freq"):
            return (channel,)
        splits = []
        adds = integer(call, "mode", 0) == 0
        if len(tensor(call, 1).shape) == 2:
            splits.append(self._along_indices(call, 0, adds=False))
            if adds:
                splits.append(self._along_indices(call, 1, adds=True))
        return (*splits, channel, vocabulary) if adds else (*splits, channel)

    def _along_indices(self, call: Call, dim: int, *, adds: bool) -> Split:
        """A cut of the bags or, where they are added up, of what each bag holds."""
        weights = (dim if spec is not None else None for spec in call.inputs[2:])
        return Split(
            name="bag" if adds else "sample",
            role="reduction" if adds else "sample",
            extent=tensor(call, 1).shape[dim],
            inputs=(None, dim, *weights),
            outputs=(None if adds else 0,),
        )

    def flops(self, call: Call) -> int:
        """One for each element of each row that is read."""
        return tensor(call, 1).elements * tensor(call, 0).shape[1]

    def traffic(self, call: Call) -> Bytes:
        """The rows that are read."""
        return embedding_traffic(call)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Everything but the table."""
        return Saved(inputs=tuple(range(1, len(call.inputs))))

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A piece of the rows knows its first row."""
        return piece_of_table(call, split, start)


KINDS: Mapping[str, Family] = {"embedding": Embedding(), "embedding_bag": EmbeddingBag()}
