"""libtorch's log level in the fork server, set before torch is imported: errors only. In a network
without names it would complain of every connection.
"""

from __future__ import annotations

import os

# libtorch reads it once, when it is loaded.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
