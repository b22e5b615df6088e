"""Ranks that share the GPU do so by CUDA's multi-process service, where it is installed: one
service for all workers of pytest-xdist.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from meshwright.run.launch.gpus import mps_service


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before workers start; they inherit the environment that names the service."""
    if torch.cuda.is_available() and not hasattr(session.config, "workerinput"):
        service = ExitStack()
        service.enter_context(mps_service())
        session.config.add_cleanup(service.close)
