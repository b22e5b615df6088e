"""Baseline strategies without a joint search: DP, ZeRO, EP, layer-wise MP, HEFT, OptCNN. Enters: a
graph, a cluster. Leaves: a `Plan` from each that applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from msgspec.structs import replace

from meshwright.base.errors import InputError
from meshwright.baselines.data import data_parallel, zero
from meshwright.baselines.expert import expert
from meshwright.baselines.layer_stages import model_parallel
from meshwright.baselines.mixture import expert_parallel, has_experts
from meshwright.baselines.operator_placement import operator_placement
from meshwright.baselines.optcnn import optcnn
from meshwright.cluster.cluster import Cluster
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan

Strategy = Callable[[OperatorGraph, Cluster], Plan]

BASELINES: Mapping[str, Strategy] = {
    "data parallel": data_parallel,
    "model parallel": model_parallel,
    "expert-designed": expert,
    "expert parallel": expert_parallel,
    "zero 1": zero(1),
    "zero 2": zero(2),
    "zero 3": zero(3),
    "operator placement": operator_placement,
    "optcnn": optcnn,
}
"""By name; each raises an `InputError` where it does not apply. "expert-designed" is
what papers compare with under that name: what a person who knows the kind of model would choose;
"expert parallel" cuts the experts of a mixture."""

_ONLY_FOR: Mapping[str, Callable[[OperatorGraph], bool]] = {"expert parallel": has_experts}
"""Strategies for one kind of model, of which nothing is said for others."""


def applied(
    graph: OperatorGraph, cluster: Cluster, training: Options | None = None
) -> Iterator[tuple[str, Plan | InputError]]:
    """The plan of every strategy, or why it does not apply.

    Of the training's options the optimizer and mixed precision count; the rest is the strategy's.
    """
    settings = training or Options()
    for name, strategy in BASELINES.items():
        if name in _ONLY_FOR and not _ONLY_FOR[name](graph):
            continue
        try:
            plan = strategy(graph, cluster)
        except InputError as error:
            yield name, error
        else:
            options = replace(plan.options, optimizer=settings.optimizer, mixed=settings.mixed)
            yield name, replace(plan, options=options)


def applicable(
    graph: OperatorGraph, cluster: Cluster, training: Options | None = None
) -> dict[str, Plan]:
    """The plans of all strategies that apply."""
    outcomes = applied(graph, cluster, training)
    return {name: plan for name, plan in outcomes if isinstance(plan, Plan)}
