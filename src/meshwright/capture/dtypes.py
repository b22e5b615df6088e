"""Dtypes by the names that graphs give them."""

from __future__ import annotations

import torch


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's dtype of a name.

    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
