"""Joint against sequential where tensors are cut because a batch is small: Unity's MLP.

    python benchmarks/joint_over_sequential.py

Sequential is as in `papers`: the graph that is cheapest on one device, then the joint search
without rewrites. On one device products and relu are fused; then no product can be cut along its
inner dim, as relu takes no pending sum, and activations are gathered at every layer.
"""

from __future__ import annotations

from functools import partial

import msgspec

from meshwright.capture.load import load_model
from meshwright.cluster.cluster import Cluster
from meshwright.cost.operator import OperatorPricer
from meshwright.plan.options import Options
from meshwright.search.budget import Budget
from meshwright.search.joint.planner import best_plan
from meshwright.search.joint.request.question import PlanRequest
from papers import _seconds
from sequential import sequential

CASES = ((16, 768), (16, 3072), (4, 256))
"""Nodes of Summit, and samples in a step."""

BUDGET = Budget.parse("300s")


def compared(nodes: int, batch: int) -> str:
    """One line of the table."""
    cluster = Cluster.named("summit", node=nodes)
    question = PlanRequest(
        graph=load_model("zoo:mlp", batch).graph,
        cluster=cluster,
        memory=cluster.device.memory,
        training=Options(optimizer="sgd"),
    )
    seconds = partial(_seconds, OperatorPricer(cluster.device))
    first = sequential(question.graph, seconds).graph
    rewritten = msgspec.structs.replace(question, graph=first)
    after = best_plan(rewritten, BUDGET, rewrites=False)
    joint = best_plan(question, BUDGET)
    one, other = (planned.best.prediction.step for planned in (after, joint))
    return (
        f"{cluster.devices:7} {batch:6} {one * 1e3:13.3f} {other * 1e3:9.3f} {one / other:6.2f}x"
        f" {joint.gap:8.1%}"
    )


def main() -> None:
    """Print the table."""
    print("devices  batch sequential ms  joint ms  ratio      gap")
    for nodes, batch in CASES:
        print(compared(nodes, batch), flush=True)


if __name__ == "__main__":
    main()
