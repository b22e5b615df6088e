"""Modules preloaded by the fork server (`set_forkserver_preload`), once for all ranks.

A rank that imports it all by itself computes for a second and a half before its first step.
"""

import numpy as np
import torch._dynamo  # noqa: F401 (the first optimizer that is made imports it)

import meshwright.run.training  # noqa: F401
from meshwright.base import compiled

# Numba reads its tables of types when the first compiled function is called.
compiled.copy_row(np.zeros((1, 1)), 0, np.zeros((1, 1)), 0)
