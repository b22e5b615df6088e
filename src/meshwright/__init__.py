"""Meshwright plans distributed deep-learning training on hierarchical clusters.

The names below are the public interface; everything else may move. They are loaded when first
used, so that `import meshwright` costs next to nothing.

>>> from meshwright import Cluster
>>> Cluster.named("dgx-h100", node=2).devices
16
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.cluster.model import Cluster as Cluster
    from meshwright.foundation.errors import InputError as InputError
    from meshwright.place.axes import Axis as Axis
    from meshwright.place.placement import Placement as Placement
    from meshwright.place.placement import placements as placements
    from meshwright.plan.file import load_plan as load_plan
    from meshwright.plan.file import save_plan as save_plan
    from meshwright.plan.model import Plan as Plan
    from meshwright.price.backend import BACKENDS as BACKENDS
    from meshwright.price.step import Pricer as Pricer
    from meshwright.reduce.dsl import Program as Program
    from meshwright.reduce.hierarchy import reduction_hierarchy as reduction_hierarchy
    from meshwright.reduce.lower import lower as lower
    from meshwright.reduce.plan import ReductionPlan as ReductionPlan
    from meshwright.reduce.predict import cheapest as cheapest
    from meshwright.reduce.predict import predict as predict
    from meshwright.reduce.synthesize import synthesize as synthesize
    from meshwright.run.hook import use_reduction_plan as use_reduction_plan
    from meshwright.run.module import parallelize as parallelize
    from meshwright.run.programs import all_reduce as all_reduce
    from meshwright.search.budget import Budget as Budget
    from meshwright.search.compare import compare as compare
    from meshwright.search.rank import Ranker as Ranker
    from meshwright.search.rank import Reduction as Reduction
    from meshwright.search.rank import rank as rank
    from meshwright.simulate.simulation import simulate as simulate_plan

__version__ = "0.1.0"

_ROOMS = {
    "Cluster": "cluster.model",
    "InputError": "foundation.errors",
    "Axis": "place.axes",
    "Placement": "place.placement",
    "placements": "place.placement",
    "load_plan": "plan.file",
    "parallelize": "run.module",
    "save_plan": "plan.file",
    "Plan": "plan.model",
    "BACKENDS": "price.backend",
    "Pricer": "price.step",
    "Program": "reduce.dsl",
    "reduction_hierarchy": "reduce.hierarchy",
    "lower": "reduce.lower",
    "ReductionPlan": "reduce.plan",
    "cheapest": "reduce.predict",
    "predict": "reduce.predict",
    "synthesize": "reduce.synthesize",
    "use_reduction_plan": "run.hook",
    "all_reduce": "run.programs",
    "Budget": "search.budget",
    "compare": "search.compare",
    "Ranker": "search.rank",
    "Reduction": "search.rank",
    "rank": "search.rank",
    # Not by its own name, which is that of its room: importing that would hide the function.
    "simulate_plan": "simulate.simulation:simulate",
}
"""Where each name is; behind a colon what it is called there."""

__all__ = ["BACKENDS", "Axis", "Budget", "Cluster", "InputError", "Placement", "Plan", "Pricer"]
__all__ += ["Program", "Ranker", "Reduction", "ReductionPlan", "all_reduce", "cheapest", "compare"]
__all__ += ["load_plan", "lower", "parallelize", "placements", "predict", "rank"]
__all__ += ["reduction_hierarchy"]
__all__ += ["save_plan", "simulate_plan", "synthesize", "use_reduction_plan"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _ROOMS[name].partition(":")
    return getattr(import_module(f"{__name__}.{module}"), own or name)
