"""Dtypes by the names that graphs give them."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's dtype of a name.

    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
