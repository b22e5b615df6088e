"""For the server of ranks, which imports it before torch: what libtorch says below an error stays
unsaid. In a network without names it would complain of every connection.
"""

from __future__ import annotations

import os

# libtorch reads it once, when it is loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
