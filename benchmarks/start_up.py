"""How long the command line takes to start: each command five times in a new process, the median.

The wall clock counts what else the machine does; processor seconds hardly do. Both are printed,
with the load average. `make bench` runs it.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from statistics import median

RUNS = 5

COMMANDS = (
    ["--help"],
    ["clusters"],
    ["place", "--nodes", "4", "--axes", "data=4,tensor=16", "--reduce", "data", "--bytes", "8GiB"],
)


def once(words: list[str]) -> tuple[float, float]:
    """Seconds on the clock and seconds of processors."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "meshwright", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return wall, used


if __name__ == "__main__":
    for words in COMMANDS:
        runs = [once(words) for _ in range(RUNS)]
        walls, used = ([run[kind] for run in runs] for kind in (0, 1))
        listed = ", ".join(f"{wall:.2f}" for wall in walls)
        print(f"meshwright {' '.join(words)}")
        print(f"  {median(walls):.2f} s (of {listed}), {median(used):.2f} s of processors")
    print(f"load average: {', '.join(f'{own:.1f}' for own in os.getloadavg())}, "
          f"{os.cpu_count()} cores")  # fmt: skip
