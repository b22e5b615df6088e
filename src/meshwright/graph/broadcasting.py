"""PyTorch's rule of broadcasting: shapes align at their last dims, and size 1 stretches."""

from __future__ import annotations

from meshwright.graph.family import ShapeError


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all these shapes stretch to.

    >>> broadcast((4, 1, 3), (5, 1))
    (4, 5, 3)
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = set(sizes) - {1}
        if len(wide) > 1:
            raise ShapeError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def stretched(shape: tuple[int, ...], dim: int, rank: int) -> int | None:
    """The dim of an operand that a dim of the result, of this rank, runs along; None if stretched.

    >>> stretched((5, 1), 1, 3), stretched((5, 1), 2, 3)
    (0, None)
    """
    operand_dim = dim - (rank - len(shape))
    return operand_dim if operand_dim >= 0 and shape[operand_dim] != 1 else None
