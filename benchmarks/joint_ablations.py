"""What each part of the joint search is worth: time and predicted step without it, as in Unity's
Table 2.

    python benchmarks/joint_ablations.py [--model zoo:bert-large] [--samples 4] [--nodes 1 2 4]

Each row is a new process in which functions of the search are replaced:
    splitting            the whole graph is one segment, with as many variants as one has
    caches               costs of units and legs, fields and pieces of calls are computed again
    dynamic programming  no frames, no algebra, no OptCNN: walks from the other baselines
    symmetry             layers that repeat are laid out, priced and rewritten one by one, and
                         factors that do the same are varied one by one
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import combinations
from typing import Any
from unittest.mock import patch

import msgspec

from joint_cases import Case, Row, searched
from meshwright import baselines
from meshwright.graph import pieces
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.rewrite.graphs.patterns import RuleSet
from meshwright.search.joint import phases
from meshwright.search.joint.algebra import rewrites
from meshwright.search.joint.algebra.graph_segments import GraphSegment, segments
from meshwright.search.joint.coarse import graph_context, layout_dp
from meshwright.sharding import unit
from meshwright.sharding.reshard import Codes
from meshwright.sharding.states import WHOLE
from meshwright.sharding.unit import OpGroup
from meshwright.simulate.additive import AdditiveCosts

BUDGET = "120s"
EVERYTHING = "everything"


def without_splitting(patches: ExitStack) -> None:
    """One segment."""

    def whole(graph: OperatorGraph, rules: RuleSet) -> tuple[GraphSegment, ...]:
        return segments(graph, rules, least=len(graph.operators) + 1)

    patches.enter_context(patch.object(rewrites, "segments", whole))


def without_caches(patches: ExitStack) -> None:
    """Nothing is kept."""

    def forgetful(call: Callable[..., Any], forget: Callable[[Any], None]) -> Callable[..., Any]:
        def anew(self: object, *arguments: object, **named: object) -> Any:
            forget(self)
            return call(self, *arguments, **named)

        return anew

    def costs(additive: AdditiveCosts) -> None:
        for known in (additive.known.of_unit, additive.known.of_leg, additive.known.resharded):
            known.clear()

    def fields(context: graph_context.GraphContext) -> None:
        context._costings.clear()
        context._fields.clear()
        context._pipelines.clear()

    for owner, method, forget in (
        (AdditiveCosts, "unit", costs),
        (AdditiveCosts, "leg", costs),
        (graph_context.GraphContext, "field", fields),
        (layout_dp.LayoutDP, "choices", lambda layout_search: layout_search._known.clear()),
    ):
        anew = forgetful(getattr(owner, method), forget)
        patches.enter_context(patch.object(owner, method, anew))
    uncached = pieces.largest_piece.__wrapped__
    patches.enter_context(patch.object(unit, "largest_piece", uncached))


def without_dynamic_programming(patches: ExitStack) -> None:
    """Only walks."""
    for phase in ("frames", "algebra"):
        patches.enter_context(patch.object(phases.SearchPhases, phase, lambda _: None))
    others = {name: baseline for name, baseline in baselines.BASELINES.items() if name != "optcnn"}
    patches.enter_context(patch.object(baselines, "BASELINES", others))


def without_symmetry(patches: ExitStack) -> None:
    """Everything by itself."""

    def alone(_: OperatorGraph, groups: Sequence[OpGroup], *__: object) -> list[int]:
        return list(range(len(groups)))

    def unlike(graph: OperatorGraph, rules: RuleSet) -> tuple[GraphSegment, ...]:
        every = enumerate(segments(graph, rules))
        return tuple(msgspec.structs.replace(segment, alike=n) for n, segment in every)

    def turns(_: AdditiveCosts, chosen: Codes) -> Iterator[tuple[tuple[int, ...], ...]]:
        open_ = [f for f in range(chosen.shape[1]) if (chosen[:, f] >= WHOLE).any()]
        yield from (((f,),) for f in open_)
        yield from (((one,), (other,)) for one, other in combinations(open_, 2))

    patches.enter_context(patch.object(graph_context, "nodes", alone))

    def kinds(additive: AdditiveCosts) -> list[int]:
        additive.known = type(additive.known)()
        return alone(additive.graph, additive.units)

    patches.enter_context(patch.object(AdditiveCosts, "_kinds", kinds))
    patches.enter_context(patch.object(rewrites, "segments", unlike))
    patches.enter_context(patch.object(layout_dp, "_turns", turns))


ABLATIONS: dict[str, Callable[[ExitStack], None]] = {
    EVERYTHING: lambda _: None,
    "without splitting": without_splitting,
    "without caches": without_caches,
    "without dynamic programming": without_dynamic_programming,
    "without symmetry": without_symmetry,
}


def ablated(name: str, case: Case) -> Row:
    """Search without something, in a new process."""
    done = subprocess.run(
        [sys.executable, __file__, "--ablation", name],
        input=msgspec.json.encode(case),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Row)


def table(model: str, samples: int, nodes: int) -> None:
    """Print a row for each ablation, beside everything."""
    case = Case(
        model=model, batch=6 * nodes * samples, cluster=f"summit node={nodes}", budget=BUDGET
    )
    whole: Row | None = None
    for name in ABLATIONS:
        row = ablated(name, case)
        whole = whole or row
        longer, slower = row.cpu / whole.cpu, row.step / whole.step
        print(
            f"{row.devices:7}  {name:28} {row.seconds:8.1f} {row.cpu:8.1f} {longer:6.2f}"
            f"{row.step * 1e3:11.3f} {slower:6.3f}  {row.stopped}",
            flush=True,
        )


def main() -> None:
    """Print the table, or do one search for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:bert-large")
    parser.add_argument("--samples", type=int, default=4, help="for each device")
    parser.add_argument("--nodes", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--ablation", choices=ABLATIONS)
    arguments = parser.parse_args()
    if arguments.ablation:
        with ExitStack() as patches:
            ABLATIONS[arguments.ablation](patches)
            row = searched(msgspec.json.decode(sys.stdin.buffer.read(), type=Case))
        sys.stdout.buffer.write(msgspec.json.encode(row))
        return
    print("devices  search                        seconds      CPU  ratio    step ms  ratio")
    for nodes in arguments.nodes:
        table(arguments.model, arguments.samples, nodes)


if __name__ == "__main__":
    main()
