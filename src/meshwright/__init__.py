"""Meshwright plans distributed deep-learning training on hierarchical clusters.

The names below are the public interface, in two parts: the main path, from a model to a training
step, and placements and reductions alone. They are stable; everything else may move. They are
loaded when first used, so that `import meshwright` costs next to nothing, and PyTorch is loaded by
those that need it. No name is that of a room (`plan`, `capture`, `simulate`, `reduce`): whoever
imports a module of a room would put the room in the place of the function.

>>> from meshwright import Cluster
>>> Cluster.named("dgx-h100", node=2).devices
16
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from meshwright.foundation.version import VERSION

if TYPE_CHECKING:
    from meshwright.capture.model import capture_model as capture_model
    from meshwright.cluster.model import Cluster as Cluster
    from meshwright.foundation.errors import InputError as InputError
    from meshwright.graph.model import OperatorGraph as OperatorGraph
    from meshwright.place.axes import Axis as Axis
    from meshwright.place.placement import Placement as Placement
    from meshwright.place.placement import placements as placements
    from meshwright.plan.file import load_plan as load_plan
    from meshwright.plan.file import save_plan as save_plan
    from meshwright.plan.model import Measurement as Measurement
    from meshwright.plan.model import Plan as Plan
    from meshwright.plan.model import Prediction as Prediction
    from meshwright.price.alpha_beta import Pricer as Pricer
    from meshwright.price.backend import BACKENDS as BACKENDS
    from meshwright.reduce.dsl import Program as Program
    from meshwright.reduce.hierarchy import reduction_hierarchy as reduction_hierarchy
    from meshwright.reduce.lower import lower as lower
    from meshwright.reduce.plan import ReductionPlan as ReductionPlan
    from meshwright.reduce.predict import cheapest as cheapest
    from meshwright.reduce.predict import predict as predict
    from meshwright.reduce.synthesize import synthesize as synthesize
    from meshwright.run.hook import use_reduction_plan as use_reduction_plan
    from meshwright.run.module import Parallelized as Parallelized
    from meshwright.run.module import parallelize as parallelize
    from meshwright.run.programs import all_reduce as all_reduce
    from meshwright.search.budget import Budget as Budget
    from meshwright.search.compare import compare as compare
    from meshwright.search.find import explain_plan as explain_plan
    from meshwright.search.find import find_plan as find_plan
    from meshwright.search.joint.question import Planned as Planned
    from meshwright.search.rank import Ranker as Ranker
    from meshwright.search.rank import Ranking as Ranking
    from meshwright.search.rank import Reduction as Reduction
    from meshwright.search.rank import rank as rank
    from meshwright.simulate.simulation import simulate as simulate_plan  # noqa: F401

__version__ = VERSION

MAIN_PATH = {
    "Cluster": "cluster.model",
    "capture_model": "capture.model",
    "OperatorGraph": "graph.model",
    "find_plan": "search.find",
    "Planned": "search.joint.question",
    "Plan": "plan.model",
    "save_plan": "plan.file",
    "load_plan": "plan.file",
    "simulate_plan": "simulate.simulation:simulate",
    "Prediction": "plan.model",
    "explain_plan": "search.find",
    "compare": "search.compare",
    "Budget": "search.budget",
    "parallelize": "run.module",
    "Parallelized": "run.module",
    "Measurement": "plan.model",
    "InputError": "foundation.errors",
}
"""From a model to a training step, in the order in which one meets them: where each name is, and
behind a colon what it is called there."""

REDUCTIONS = {
    "Axis": "place.axes",
    "Placement": "place.placement",
    "placements": "place.placement",
    "Reduction": "search.rank",
    "Pricer": "price.alpha_beta",
    "BACKENDS": "price.backend",
    "Ranker": "search.rank",
    "rank": "search.rank",
    "Ranking": "search.rank",
    "reduction_hierarchy": "reduce.hierarchy",
    "synthesize": "reduce.synthesize",
    "Program": "reduce.dsl",
    "predict": "reduce.predict",
    "cheapest": "reduce.predict",
    "lower": "reduce.lower",
    "ReductionPlan": "reduce.plan",
    "all_reduce": "run.programs",
    "use_reduction_plan": "run.hook",
}
"""Placements and reductions alone, the same way."""

_ROOMS = {**MAIN_PATH, **REDUCTIONS}

__all__ = [*MAIN_PATH, *REDUCTIONS]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _ROOMS[name].partition(":")
    try:
        return getattr(import_module(f"{__name__}.{module}"), own or name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"meshwright.{name} needs PyTorch, which is not installed; "
            'install it with: pip install "meshwright[torch]".',
            name="torch",
        ) from None
