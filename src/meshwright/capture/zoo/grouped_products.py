"""The grouped matrix product: rows sorted by group, each group with a matrix of its own.

PyTorch's own (`torch.nn.functional.grouped_mm`) refuses everything but bfloat16 on meta tensors
and float64 everywhere, so this one is registered as a custom operator that takes any dtype and
device. `torch.export` keeps it as one node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("meshwright::_grouped_mm", mutates_args=())
def grouped_mm(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each row times the matrix of its group; group g owns the rows from ends[g - 1] to ends[g].

    >>> rows, matrices = torch.ones(3, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)])
    >>> grouped_mm(rows, matrices, torch.tensor([1, 3]))[:, 0].tolist()
    [1.0, 2.0, 2.0]
    """
    groups = _groups(rows, ends)
    return torch.cat([group @ matrix for group, matrix in zip(groups, matrices, strict=True)])


@grouped_mm.register_fake
def _(rows: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], matrices.shape[2])


@torch.library.custom_op("meshwright::grouped_outer", mutates_args=())
def grouped_outer(rows: Tensor, others: Tensor, ends: Tensor) -> Tensor:
    """For each group the product of its rows, transposed, with its other rows."""
    pairs = zip(_groups(rows, ends), _groups(others, ends), strict=True)
    return torch.stack([group.T @ other for group, other in pairs])


@grouped_outer.register_fake
def _(rows: Tensor, others: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], rows.shape[1], others.shape[1])


def _groups(rows: Tensor, ends: Tensor) -> tuple[Tensor, ...]:
    return rows.tensor_split(ends[:-1].cpu().long())


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    rows, matrices, ends = ctx.saved_tensors
    to_rows = grouped_mm(gradient, matrices.transpose(1, 2).contiguous(), ends)
    return to_rows, grouped_outer(rows, gradient, ends), None


grouped_mm.register_autograd(_backward, setup_context=_keep)
