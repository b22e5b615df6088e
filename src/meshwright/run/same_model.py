"""Compatibility check of a module and a plan: parameters, tied weights, module settings. Enters: a
module and a plan's graph. Leaves: nothing, or a sentence with both values.

Compared are parameters (names, which are tied, which are trained), and what decides what modules
compute (`capture.settings`): a plan runs its own graph, whatever the module's forward says. Shapes
and dtypes are compared when values are taken over (`state`).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from meshwright.base.errors import InputError
from meshwright.capture.trace.fingerprint import modules_of
from meshwright.capture.trace.user_backward import refuse_gradient_hooks
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.traced import Traced
from meshwright.run.state.model_state import names_of

REMEDY = "give the model that the plan was made for, or plan for this one"


def model_mismatch(model: nn.Module, graph: OperatorGraph) -> InputError | None:
    """What is wrong with a module for a plan, if anything."""
    try:
        refuse_other_model(model, graph)
    except InputError as error:
        return error
    return None


def refuse_other_model(model: nn.Module, graph: OperatorGraph) -> None:
    """Refuse a module that is not the one whose graph this is."""
    refuse_gradient_hooks(model)
    if graph.traced is not None:
        difference = graph.traced.difference(Traced(modules=modules_of(model)))
        if difference is not None:
            raise InputError(difference, REMEDY)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    known = {name: planned for planned in graph.parameters for name in names_of(planned)}
    for name in parameters:
        if name not in known:
            raise InputError(
                f"the model has a parameter {name!r}, which the plan's graph {graph.name!r} does "
                "not know",
                REMEDY,
            )
    _refuse_other_ties(parameters, graph)
    for name, parameter in parameters.items():
        if parameter.requires_grad is not known[name].trainable:
            raise InputError(
                f"requires_grad of {name!r} is {parameter.requires_grad}, and in the plan "
                f"{known[name].trainable}",
                "freeze parameters before the model is captured and planned for",
            )


def _refuse_other_ties(parameters: Mapping[str, nn.Parameter], graph: OperatorGraph) -> None:
    for planned in graph.parameters:
        first, *others = [name for name in names_of(planned) if name in parameters]
        for name in others:
            if parameters[name] is not parameters[first]:
                raise InputError(
                    f"{name!r} is a parameter of its own, and in the plan it is tied to {first!r}",
                    REMEDY,
                )
    owners = {name: owner.tensor.name for owner in graph.parameters for name in names_of(owner)}
    seen: dict[int, str] = {}
    for name, parameter in parameters.items():
        first = seen.setdefault(id(parameter), name)
        if owners[first] != owners[name]:
            raise InputError(
                f"{name!r} is tied to {first!r}, and in the plan a parameter of its own", REMEDY
            )
