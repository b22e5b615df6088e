"""Meshwright plans distributed deep-learning training on hierarchical clusters.

The names below are the public interface, in two parts: the main path, from a model to a training
step, and placements and reductions alone. They are stable; everything else may move. They are
loaded when first used, so that `import meshwright` costs next to nothing, and PyTorch is loaded by
those that need it. No name is that of a room (`plan`, `capture`, `simulate`, `lower`): whoever
imports a module of a room would put the room in the place of the function.

>>> from meshwright import Cluster
>>> Cluster.named("dgx-h100", node=2).devices
16
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshwright.base.version import VERSION

if TYPE_CHECKING:
    from meshwright.base.errors import InputError as InputError
    from meshwright.capture.capture_model import capture_model as capture_model
    from meshwright.cluster.cluster import Cluster as Cluster
    from meshwright.collectives.dsl import Program as Program
    from meshwright.collectives.hierarchy import reduction_hierarchy as reduction_hierarchy
    from meshwright.collectives.islands.island_reduction_plan import (
        IslandReductionPlan as IslandReductionPlan,
    )
    from meshwright.collectives.lowering import lower_program as lower_program
    from meshwright.collectives.predict import cheapest as cheapest
    from meshwright.collectives.predict import predict as predict
    from meshwright.collectives.reduction_plan import ReductionPlan as ReductionPlan
    from meshwright.collectives.synthesize import synthesize as synthesize
    from meshwright.configs.explain_plan import explain_plan as explain_plan
    from meshwright.configs.find_plan import find_plan as find_plan
    from meshwright.cost.alpha_beta import Pricer as Pricer
    from meshwright.cost.backend import BACKENDS as BACKENDS
    from meshwright.graph.operator_graph import OperatorGraph as OperatorGraph
    from meshwright.plan.file import load_plan as load_plan
    from meshwright.plan.file import save_plan as save_plan
    from meshwright.plan.plan import Measurement as Measurement
    from meshwright.plan.plan import Plan as Plan
    from meshwright.plan.plan import Prediction as Prediction
    from meshwright.run.comm.ddp_hook import use_reduction_plan as use_reduction_plan
    from meshwright.run.comm.programs import all_reduce as all_reduce
    from meshwright.run.module import Parallelized as Parallelized
    from meshwright.run.module import parallelize as parallelize
    from meshwright.search.budget import Budget as Budget
    from meshwright.search.compare import compare as compare
    from meshwright.search.joint.request.question import PlanResult as PlanResult
    from meshwright.search.rank import Ranker as Ranker
    from meshwright.search.rank import Ranking as Ranking
    from meshwright.search.rank import Reduction as Reduction
    from meshwright.search.rank import rank as rank
    from meshwright.sharding.axes import Axis as Axis
    from meshwright.sharding.placement import Placement as Placement
    from meshwright.sharding.placement import placements as placements
    from meshwright.simulate.simulation import simulate as simulate_plan  # noqa: F401
    from meshwright.simulate.throughput import throughput as throughput

__version__ = VERSION

MAIN_PATH = {
    "Cluster": "cluster.cluster",
    "capture_model": "capture.capture_model",
    "OperatorGraph": "graph.operator_graph",
    "find_plan": "configs.find_plan",
    "PlanResult": "search.joint.request.question",
    "Plan": "plan.plan",
    "save_plan": "plan.file",
    "load_plan": "plan.file",
    "simulate_plan": "simulate.simulation:simulate",
    "Prediction": "plan.plan",
    "throughput": "simulate.throughput",
    "explain_plan": "configs.explain_plan",
    "compare": "search.compare",
    "Budget": "search.budget",
    "parallelize": "run.module",
    "Parallelized": "run.module",
    "Measurement": "plan.plan",
    "InputError": "base.errors",
}
"""From a model to a training step, in the order in which one meets them: where each name is, and
behind a colon what it is called there."""

REDUCTIONS = {
    "Axis": "sharding.axes",
    "Placement": "sharding.placement",
    "placements": "sharding.placement",
    "Reduction": "search.rank",
    "Pricer": "cost.alpha_beta",
    "BACKENDS": "cost.backend",
    "Ranker": "search.rank",
    "rank": "search.rank",
    "Ranking": "search.rank",
    "reduction_hierarchy": "collectives.hierarchy",
    "synthesize": "collectives.synthesize",
    "Program": "collectives.dsl",
    "predict": "collectives.predict",
    "cheapest": "collectives.predict",
    "lower_program": "collectives.lowering",
    "ReductionPlan": "collectives.reduction_plan",
    "IslandReductionPlan": "collectives.islands.island_reduction_plan",
    "all_reduce": "run.comm.programs",
    "use_reduction_plan": "run.comm.ddp_hook",
}
"""Placements and reductions alone, the same way."""

_ROOMS = {**MAIN_PATH, **REDUCTIONS}

__all__ = [*MAIN_PATH, *REDUCTIONS]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _ROOMS[name].partition(":")
    try:
        return getattr(import_module(f"{__name__}.{module}"), attribute or name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"meshwright.{name} needs PyTorch, which is not installed; "
            'install it with: pip install "meshwright[torch]".',
            name="torch",
        ) from None
