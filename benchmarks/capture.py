"""Speed and memory of capturing and pricing models. Run with `make bench`."""

from __future__ import annotations

import subprocess
import sys

MODELS = {"zoo:bert-large": "5 s", "zoo:llama3-70b": "20 s"}

WORK = """
import resource, sys, time
begin = time.perf_counter()
from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.operator import OperatorPricer
loaded = time.perf_counter()
graph = load_model(sys.argv[1]).graph
captured = time.perf_counter()
pricer = OperatorPricer(Cluster.named("dgx-h100").device)
for operator in graph.operators:
    pricer.price(graph.call(operator))
priced = time.perf_counter()
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
print(loaded - begin, captured - loaded, priced - captured, memory, len(graph.operators))
"""


def main() -> None:
    heads = ("operators", "imports", "capture", "price", "in all", "peak memory", "goal")
    print(f"{'model, a new process each':<28}" + "".join(f"{head:>13}" for head in heads))
    for model, goal in MODELS.items():
        command = [sys.executable, "-c", WORK, model]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        imports, capture, price, memory, operators = map(float, result.stdout.split())
        cells = [
            f"{operators:.0f}",
            f"{imports:.2f} s",
            f"{capture:.2f} s",
            f"{price:.2f} s",
            f"{imports + capture + price:.2f} s",
            f"{memory:.0f} MB",
            f"{goal}, 2 GB",
        ]
        print(f"{model:<28}" + "".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
