"""Speed of matching: from scratch, and kept up to date after each rewrite.

Run with `make bench`; prints what it measures, with all rules of the library.
"""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc

from meshwright.capture.load import load_model
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.library import library

MODELS = ("zoo:inception-v3", "zoo:bert-large")
PARAMETERS = {"d": (2, 4), "e": (2,), "m": (2,), "after": (0, 1, 2)}
REWRITES = 200


def milliseconds(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    return (
        f"median {1e3 * statistics.median(ordered):.2f} ms, "
        f"nine in ten below {1e3 * ordered[len(ordered) * 9 // 10]:.2f} ms"
    )


def measure(graph: OperatorGraph, compiled: RuleSet) -> None:
    scratch = []
    for _ in range(5):
        begin = time.perf_counter()
        matcher = Matcher(graph, compiled, PARAMETERS)
        count = len(matcher.matches)
        scratch.append(time.perf_counter() - begin)
    print(f"{graph.name}: {len(graph.operators)} operators, {count} matches")
    rate = count / statistics.median(scratch)
    print(f"  from scratch       {milliseconds(scratch)}; {rate:,.0f} matches a second")
    draws, kept, matches = random.Random(0), [], 0
    for _ in range(REWRITES):
        match = draws.choice(matcher.matches)
        begin = time.perf_counter()
        matcher = matcher.rewrite(match)
        matches += len(matcher.matches)
        kept.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    again = Matcher(matcher.graph, compiled, PARAMETERS).matches
    anew = time.perf_counter() - begin
    assert again == matcher.matches
    print(f"  after each rewrite {milliseconds(kept)}; {matches / sum(kept):,.0f} matches a second")
    print(f"  from scratch after {REWRITES} rewrites {1e3 * anew:.0f} ms, "
          f"{anew / statistics.median(kept):.0f} times as long")  # fmt: skip
    tracemalloc.start()
    held = Matcher(graph, compiled, PARAMETERS)
    assert held.matches
    print(f"  memory of a matcher {tracemalloc.get_traced_memory()[0] / 2**20:.1f} MiB")
    tracemalloc.stop()


def main() -> None:
    begin = time.perf_counter()
    compiled = RuleSet(library())
    took = 1e3 * (time.perf_counter() - begin)
    print(f"{len(compiled.rules)} rules, read and compiled in {took:.0f} ms")
    for model in MODELS:
        measure(load_model(model).graph, compiled)


if __name__ == "__main__":
    main()
