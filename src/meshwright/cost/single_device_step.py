"""Memory traffic of the optimizer's update (PyTorch's foreach kernels). Leaves: how often each
parameter's bytes are read or written.
"""

from __future__ import annotations

from meshwright.cost.memory import Optimizer

TRAFFIC: dict[Optimizer, int] = {"sgd": 3, "momentum": 6, "adam": 19}
"""How often PyTorch's update over lists of tensors reads or writes each parameter's bytes."""
