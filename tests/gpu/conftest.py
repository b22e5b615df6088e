"""Ranks that share the GPU do so by CUDA's multi-process service, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from meshwright.run.launch.gpus import sharing_service


@pytest.fixture(scope="session", autouse=True)
def shared_gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        yield
        return
    with sharing_service():
        yield
