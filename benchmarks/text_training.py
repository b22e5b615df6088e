"""A GPT of bytes, trained on the documentation of Python by plans as PyTorch users train, against
one device.

Run as `PYTHONPATH=tests python benchmarks/text_training.py [STEPS]` (300 steps, about 1.1 M
parameters in float64, some minutes on two cores). A third of the steps on four ranks (data x tensor
parallelism, ZeRO 1), where a rank is killed five steps after a checkpoint; the rest from there on
two (ZeRO 3). AdamW with groups, a one-cycle schedule, clipping by `torch.nn.utils`, accumulation,
evaluation, DCP with `get_state_dict` and `set_state_dict`. Prints the largest differences and adds
a row to `text_training.jsonl`; exit code 1 if a loss is 1e-5 off.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from meshwright.capture.load import load_graph
from meshwright.capture.source.example import Example
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import RankError, run_ranks
from meshwright.sharding.layout import Layout
from meshwright.sharding.units import units
from support import text_bodies as bodies

ROWS = Path(__file__).with_suffix(".jsonl")
ALLOWED = 1e-5


def plan_of(graph: OperatorGraph, *roles: str, zero: int) -> Plan:
    cluster = Cluster.named("laptop").resized({"process": 2 ** len(roles)})
    layouts = [
        Layout(tuple(role if role in unit.extents else "replica" for role in roles))
        for unit in units(graph)
    ]
    return Plan.of("by hand", graph, cluster, layouts, Options(zero=zero))


def trained(sizes: bodies.Sizes) -> bodies.Trained:
    """By two plans, the first of which is killed."""
    tokens, targets = bodies.batch_of(bodies.text(), sizes, 0)
    example = Example(
        model=bodies.gpt_of(sizes), inputs=(tokens,), loss=bodies.loss_of, targets=(targets,)
    )
    graph = load_graph(example).graph
    saved = sizes.steps // 3
    with tempfile.TemporaryDirectory() as folder:
        first = bodies.Run(folder, 0, sizes.steps, saved=saved, killed=saved + 5)
        try:
            run_ranks(
                bodies.by_plan,
                plan_of(graph, "sample", "channel", zero=1),
                sizes,
                first,
                ranks=4,
                timeout=None,
            )
        except RankError as error:
            print(f"killed: {str(error).splitlines()[0]}", flush=True)
        before = bodies.Trained(**ast.literal_eval(Path(folder, "losses0").read_text()))
        rest = bodies.Run(folder, saved, sizes.steps, resumed=True)
        plan = plan_of(graph, "sample", zero=3)
        after = run_ranks(bodies.by_plan, plan, sizes, rest, ranks=2, timeout=None)[0]
    assert isinstance(after, bodies.Trained)
    return bodies.Trained(*(one | two for one, two in zip(before, after, strict=True)))


def furthest(one: dict[int, float], other: dict[int, float]) -> float:
    """The largest relative difference."""
    assert one.keys() == other.keys(), (sorted(one), sorted(other))
    return max(abs(one[step] - other[step]) / abs(other[step]) for step in one)


def main(steps: int) -> int:
    sizes = bodies.Sizes(steps=steps)
    alone = bodies.alone(sizes)
    resumed = trained(sizes)
    losses_off = furthest(resumed.losses, alone.losses)
    row = {
        "when": datetime.now(UTC).date().isoformat(),
        "steps": steps,
        "parameters": sum(parameter.numel() for parameter in bodies.gpt_of(sizes).parameters()),
        "first loss": alone.losses[0],
        "last loss": alone.losses[steps - 1],
        "last held out": list(alone.held_out.values())[-1] if alone.held_out else None,
        "losses off": losses_off,
        "norms off": furthest(resumed.norms, alone.norms),
        "held out off": furthest(resumed.held_out, alone.held_out) if alone.held_out else None,
    }
    print(json.dumps(row))
    with ROWS.open("a") as rows:
        rows.write(json.dumps(row) + "\n")
    return int(losses_off > ALLOWED)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
