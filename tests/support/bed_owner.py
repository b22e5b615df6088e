"""A process that owns a testbed until it is killed."""

from __future__ import annotations

import sys

from meshwright.cluster.cluster import Cluster
from support.bed_bodies import sleeping
from testbed import Testbed

if __name__ == "__main__":
    with Testbed(Cluster.load(sys.argv[1])) as bed:
        print(*bed.leaves, bed.fabric, flush=True)
        bed.run(sleeping)
