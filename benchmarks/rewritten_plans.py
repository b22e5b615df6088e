"""One-device plans with and without rewrites, for `one_device.py`.

    python benchmarks/rewritten_plans.py FOLDER

Merges whatever the rules of RULES fit, one place after the other, and prints what is predicted on
an H200 for the graph as it is and for the merged one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.graph.cast import cast_graph
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.file import save_plan
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.rewrite.graphs.match import Matcher
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.rewrite.library import shipped_rules
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from meshwright.simulate.simulation import simulate

RULES = ("linear-bias-merge-three", "linear-merge", "linear-bias-merge", "conv-merge")
CASES = (
    ("zoo:bert-large", 16, "bfloat16"),
    ("zoo:bert-large", 1, "bfloat16"),
    ("zoo:inception-v3", 64, None),
    ("zoo:llama3-8b?layers=4", 1, "bfloat16"),
)


def merged(graph: OperatorGraph) -> OperatorGraph:
    rules = tuple(rule for rule in shipped_rules() if rule.name in RULES)
    rules = tuple(sorted(rules, key=lambda rule: RULES.index(rule.name)))
    matcher = Matcher(graph, RuleSet(rules))
    while matcher.matches:
        best = min(matcher.matches, key=lambda match: RULES.index(match.rule.name))
        matcher = matcher.rewrite(best)
    return matcher.graph


def main() -> None:
    folder = Path(sys.argv[1])
    cluster = Cluster.named("h200", gpu=1)
    print("model, batch | operators | predicted ms | merged: operators | predicted ms")
    for source, batch, dtype in CASES:
        graph = load_model(source, batch).graph
        graph = graph if dtype is None else cast_graph(graph, dtype)
        shown = []
        for kind, variant in (("plain", graph), ("merged", merged(graph))):
            layouts = [Layout(()) for _ in units(variant)]
            plan = Plan.of(kind, variant, cluster, layouts, Options(optimizer="adam"))
            name = source.split(":")[1].split("?")[0]
            named = msgspec.structs.replace(plan, model=source)
            save_plan(named, folder / f"{name}-{batch}-{kind}.json")
            step = simulate(plan).prediction.step
            shown.append(f"{len(variant.operators)} | {step * 1e3:.2f}")
        print(f"{source}, {batch} | {' | '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
