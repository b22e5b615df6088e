"""Training and evaluation mode: does one graph compute both? Enters: a module that is traced.
Leaves: what the other mode computes otherwise, in words; nothing if operators know it themselves.

Executors turn off dropout, and have batch norms use their running statistics, when evaluating.
Whatever else depends on `self.training` is decided once, in the trace. So reads of it are noticed,
and if any is not by a module that is known, the other mode is traced too, and compared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

import msgspec
from torch import nn
from torch.export import ExportedProgram
from torch.nn.modules import batchnorm, dropout
from torch.nn.modules import module as torch_module

from meshwright.base.errors import InputError
from meshwright.capture.operators.nodes import kind_of_node
from meshwright.capture.operators.source_lines import calling_line, is_user_file
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.operator_graph import Attributes, Operator, OperatorGraph

COPIES = ("alias", "clone", "contiguous")
VIEWS = ("_unsafe_view", "flatten", "reshape", "unflatten", "view")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")

_KNOWN = {str(module.__file__) for module in (batchnorm, torch_module)}
_LAYERS = Path(str(nn.__file__)).parent


class Reads:
    """Who asked a module for its mode."""

    def __init__(self) -> None:
        self.line: str | None = None
        """The first line whose use of it is not known."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Trace inside of this."""

        def asked(module: nn.Module) -> bool:
            if self.line is None and not _is_known(sys._getframe(1).f_code.co_filename, module):
                self.line = calling_line()
            return bool(vars(module)["training"])

        def told(module: nn.Module, value: bool) -> None:
            vars(module)["training"] = value

        nn.Module.training = property(asked, told)  # type: ignore[assignment]
        try:
            yield
        finally:
            del nn.Module.training


def _is_known(file: str, module: nn.Module) -> bool:
    """Whether executors do what code in a file does with a module's mode; traces only look."""
    if file == dropout.__file__:
        return type(module) is nn.Dropout
    part_of_model = Path(file).is_relative_to(_LAYERS) or is_user_file(Path(file))
    return file in _KNOWN or not part_of_model


def decides(reads: Reads, program: ExportedProgram) -> bool:
    """Whether a trace may hold something that belongs to one mode alone."""
    if reads.line is not None:
        return True
    for node in program.graph.nodes:
        kind = kind_of_node(node)
        attention = kind == "scaled_dot_product_attention" and len(node.args) > 4 and node.args[4]
        if (
            attention
            or node.kwargs.get("dropout_p")
            or (kind == "dropout" and not _of_module(node))
        ):
            return True
    return False


def _of_module(node: object) -> bool:
    """Whether a dropout is called by the module for it."""
    stack = getattr(node, "meta", {}).get("nn_module_stack") or {}
    last = next(reversed(stack.values()), ("", ""))
    return "torch.nn.modules.dropout.Dropout" in str(last[1])


@contextmanager
def other_mode(model: nn.Module) -> Iterator[None]:
    """Every module in the mode in which the model is not."""
    before = [(module, module.training) for module in model.modules()]
    model.train(not model.training)
    try:
        yield
    finally:
        for module, mode in before:
            module.training = mode


def differing(
    graph: OperatorGraph, line: str, *, training: bool, other: Callable[[], OperatorGraph]
) -> str:
    """What the other mode computes that this graph does not; empty if nothing."""
    read = f"; self.training is read{line}" if line else ""
    name = "evaluation" if training else "training"
    try:
        other_graph = other()
    except InputError as error:
        return f"in {name} mode the model cannot be traced ({error.problem})"
    ours = evaluation_graph(graph) if training else graph
    theirs = evaluation_graph(other_graph) if training else other_graph
    if training and any(map(_random, other_graph.operators)):
        # An executor that evaluates draws nothing.
        theirs = other_graph
    ours, theirs = _without_copies(ours), _without_copies(theirs)
    if canonical_hash(ours) == canonical_hash(theirs):
        return ""
    place = _first_difference(ours, theirs)
    return f"in {name} mode the model computes something else{place}{read}"


def evaluation_graph(graph: OperatorGraph) -> OperatorGraph:
    """What an executor computes in evaluation mode."""
    return msgspec.structs.replace(
        graph,
        operators=tuple(
            msgspec.structs.replace(operator, attributes=_evaluating(operator))
            for operator in graph.operators
        ),
    )


def _without_copies(graph: OperatorGraph) -> OperatorGraph:
    """The graph without what says how values lie in memory; dropout lets them lie otherwise."""
    same: dict[str | None, str | None] = {}
    kept = []
    for operator in graph.operators:
        inputs = tuple(same.get(name, name) for name in operator.inputs)
        if (
            operator.kind in COPIES
            and operator.outputs[0].spec == graph.specs[str(operator.inputs[0])]
        ):
            same[operator.outputs[0].name] = inputs[0]
        else:
            kind = "reshape" if operator.kind in VIEWS else operator.kind
            attributes = () if kind == "reshape" else operator.attributes
            kept.append(
                msgspec.structs.replace(operator, kind=kind, inputs=inputs, attributes=attributes)
            )
    outputs = tuple(str(same.get(name, name)) for name in graph.outputs)
    loss = None if graph.loss is None else str(same.get(graph.loss, graph.loss))
    return msgspec.structs.replace(graph, operators=tuple(kept), outputs=outputs, loss=loss)


def _evaluating(operator: Operator) -> Attributes:
    attributes = dict(operator.attributes)
    match operator.kind:
        case "dropout":
            attributes = {"train": False}
        case "scaled_dot_product_attention":
            attributes.pop("dropout_p", None)
        case "batch_norm" if len(operator.inputs) > 3 and operator.inputs[3] is not None:
            attributes["training"] = False
        case kind if kind in RECURRENT and not attributes.get("dropout"):
            attributes["train"] = False
    return tuple(sorted(attributes.items()))


def _random(operator: Operator) -> bool:
    """Whether an operator of a model in evaluation draws all the same."""
    attributes = dict(operator.attributes)
    dropping = operator.kind == "dropout" and attributes.get("train", True)
    return bool(dropping or attributes.get("dropout_p"))


def _first_difference(one: OperatorGraph, other: OperatorGraph) -> str:
    for left, right in zip_longest(one.operators, other.operators):
        if left is None or right is None or _said(left) != _said(right):
            operator = left or right
            return f", first at {operator.name!r}" if operator is not None else ""
    return ""


def _said(operator: Operator) -> tuple[object, ...]:
    return (
        operator.kind,
        operator.attributes,
        operator.layer,
        tuple(tensor.shape for tensor in operator.outputs),
    )
