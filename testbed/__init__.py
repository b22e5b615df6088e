"""A hierarchical network on one machine. Enters: a `Cluster`, the same that plans are made for.
Leaves: a tree of network namespaces in which its devices run as ranks, and the bytes that crossed
each edge. It knows nothing of plans or of what the ranks do. Needs root and pyroute2.
"""

from testbed.bed import Testbed
from testbed.counters import Carried, difference
from testbed.netlink import unavailable

__all__ = ["Carried", "Testbed", "difference", "unavailable"]
