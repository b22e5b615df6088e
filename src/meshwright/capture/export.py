"""From an `Example` to an `OperatorGraph`, by `torch.export` on fake tensors.

Enters: a model, example inputs and a loss. Leaves: the graph of one forward pass, in the mode
(training or evaluation) in which the model is. Weights are neither read nor changed. A mistake of
the user is a sentence that names the line of the model where it shows.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import msgspec
import torch
from torch.autograd.function import Function
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from meshwright.base.errors import InputError
from meshwright.capture.operators.autograd_functions import as_operators
from meshwright.capture.operators.node_names import leaf_names
from meshwright.capture.operators.source_lines import user_line
from meshwright.capture.source.example import MODEL, Example
from meshwright.capture.trace.data_reads import ValueRead, ValuesNeededError, values_needed
from meshwright.capture.trace.fingerprint import (
    changed_settings,
    constant_text,
    modules_of,
    settings_of,
)
from meshwright.capture.trace.modes import decides, differing, other_mode
from meshwright.capture.trace.state_writes import (
    KEPT,
    LOST,
    refuse_baked_constants,
    refuse_state_writes,
)
from meshwright.capture.trace.tracing import Trace, replayed, traced
from meshwright.capture.trace.untraced import untraced
from meshwright.capture.trace.user_backward import user_backward_checked
from meshwright.capture.translation.branches import data_dependent_shape_error, decided, warnings_of
from meshwright.capture.translation.program import graph_of
from meshwright.graph.operator_graph import OperatorGraph
from meshwright.graph.traced import Alike, Traced


class Capture(NamedTuple):
    """A graph, and what its user should know of how it was captured."""

    graph: OperatorGraph
    warnings: tuple[str, ...] = ()


def capture(example: Example, name: str = "") -> OperatorGraph:
    """The operators of one forward pass, with its loss if there is one.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
    >>> graph = capture(Example(model=model, inputs=(torch.zeros(3, 4),)))
    >>> [operator.name for operator in graph.operators]
    ['0.linear', '1.relu']
    """
    return captured(example, name).graph


def captured(example: Example, name: str = "") -> Capture:
    """The same, with what was left out or fixed on the way."""
    title = name or type(example.model).__name__
    if next(example.model.parameters(), None) is None:
        raise InputError(
            f"model {title!r} has no parameters", "give a module that holds its nn.Parameters"
        )
    names, before = input_names(example), settings_of(example.model)

    def graph(one_trace: Trace, reads: Sequence[ValueRead | None]) -> OperatorGraph:
        return graph_of(
            one_trace.program,
            title,
            root=MODEL,
            input_names=names,
            reads=reads,
            returned=one_trace.returned,
        )

    with _sentences(example, title), ExitStack() as meanwhile:
        trace = _whole_trace(example, meanwhile)
        guarded, unchecked = decided(example, trace, graph)
        unguarded = msgspec.structs.replace(guarded, checks=(), guards=())
        written = [(attribute.path, attribute.name) for attribute in trace.memory.written]
        changing = (*written, *changed_settings(before, example.model))
        module = _traced_module(
            example, unguarded, trace, title, modules_of(example.model, changing)
        )
    notes = (*example.notes, *_loss_in_a_tuple(guarded), *unchecked, *warnings_of(trace, title))
    return Capture(msgspec.structs.replace(guarded, traced=module), notes)


def _loss_in_a_tuple(graph: OperatorGraph) -> Iterator[str]:
    """What was taken for the loss, where no name says so."""
    returned = None if graph.traced is None else graph.traced.returned
    if graph.loss is None or returned is None or returned.kind not in ("tuple", "list"):
        return
    for number, entry in returned.entries:
        if entry.tensor == graph.loss:
            yield (
                f"output {number} of what the model returns is taken for its loss, as the only "
                "number in it with a gradient; if it is another, return a loss function too"
            )


def exported(example: Example, title: str) -> ExportedProgram:
    """What `torch.export` traces of an example, if a trace tells all of it."""
    with _sentences(example, title), ExitStack() as meanwhile:
        return _whole_trace(example, meanwhile).program


def _whole_trace(example: Example, meanwhile: ExitStack) -> Trace:
    """A trace that tells all of what the model does, and how it is traced again meanwhile."""
    apart: set[type[Function]] = set()
    while True:
        with user_backward_checked(example.model, apart) as more:
            trace = traced(example)
        if not more:
            break
        meanwhile.enter_context(as_operators(more))
        apart |= more
    refuse_state_writes(trace.program, MODEL)
    refuse_baked_constants(trace.program)
    if trace.memory.remembered:
        with trace.memory.stale():
            again = replayed(example, trace.known, trace.decided)
        trace.memory.refuse_other(str(trace.program.graph) != str(again.program.graph))
    return trace


def _traced_module(
    example: Example, graph: OperatorGraph, trace: Trace, title: str, modules: tuple[Alike, ...]
) -> Traced:
    """Of which module a graph is the trace, and whether it is right in its other mode too."""
    training, other = example.model.training, ""
    if not training or decides(trace.modes, trace.program):

        def other_graph() -> OperatorGraph:
            with other_mode(example.model), _sentences(example, title):
                other_trace = traced(example)
            return graph_of(
                other_trace.program,
                title,
                root=MODEL,
                input_names=input_names(example),
                reads=(None,) * len(other_trace.reads),
                returned=other_trace.returned,
            )

        other = differing(graph, trace.modes.line or "", training=training, other=other_graph)
    return Traced(
        modules=modules,
        training=training,
        other_mode=other,
        fixed=_fixed(example),
        returned=None if graph.traced is None else graph.traced.returned,
    )


def _fixed(example: Example) -> tuple[tuple[str, str], ...]:
    """The arguments of a call that are no tensors, which its trace has taken for constants."""
    leaves = pytree.tree_leaves((example.inputs, dict(example.named), example.targets))
    pairs = zip(input_names(example), leaves, strict=True)
    return tuple(
        (name, constant_text(value)) for name, value in pairs if not isinstance(value, torch.Tensor)
    )


@contextmanager
def _sentences(example: Example, title: str) -> Iterator[None]:
    """Whatever goes wrong within, as a sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise _sentence(error, title, example) from error


def input_names(example: Example) -> tuple[str, ...]:
    """The user's names of all tensors that enter, in the order in which `Step` takes them.

    >>> from torch import nn
    >>> input_names(Example(model=nn.Linear(2, 2), inputs=(torch.zeros(1, 2),)))
    ('input',)
    """
    signature = inspect.signature(example.model.forward)
    try:
        signature.bind(*example.inputs, **example.named)
    except TypeError as error:
        raise InputError(
            f"{type(example.model).__name__}.forward{signature} does not take the example inputs "
            f"{_summary(example)}: {error}",
            "give one example for each argument that has no default",
        ) from error
    names: list[str] = []
    by_order = signature.bind_partial(*example.inputs)
    for name, value in by_order.arguments.items():
        names += leaf_names(name, value)
    for name, value in example.named.items():
        names += leaf_names(name, value)
    alone = len(example.targets) == 1
    names += leaf_names("targets", example.targets[0] if alone else example.targets)
    return tuple(names)


def _sentence(error: Exception, title: str, example: Example) -> InputError:
    """A failed trace as a sentence for the user."""
    place = user_line(error)
    if (needed := values_needed(error)) is not None and needed.counts:
        return data_dependent_shape_error(title, place)
    if _depends_on_data(error):
        return InputError(
            f"model {title!r} branches on the values of a tensor{place}",
            "choose with torch.where, or by shapes and settings, which are known beforehand",
        )
    if "a fake tensor in the exported program" in str(error):
        return InputError(LOST, KEPT)
    if ".numpy() is not supported for tensor subclasses" in str(error):
        return InputError(
            f"model {title!r} computes with NumPy{place}, which no graph tells",
            "compute it with torch",
        )
    construct = untraced(error, example, title, place)
    if construct is not None:
        return construct
    what = str(error).strip().splitlines()
    return InputError(
        f"model {title!r} fails on its example inputs {_summary(example)}{place}: "
        f"{type(error).__name__}: {what[0].rstrip('.;') if what else 'no message'}",
        "make model and inputs fit, so that it runs on them without Meshwright too",
    )


def _depends_on_data(error: BaseException | None) -> bool:
    """Whether this error, or one that it followed from, is about values unknown when tracing."""
    if error is None:
        return False
    known = isinstance(
        error,
        ValuesNeededError
        | GuardOnDataDependentSymNode
        | torch._subclasses.fake_tensor.DataDependentOutputException
        | torch._subclasses.fake_tensor.DynamicOutputShapeException,
    )
    said = "data-dependent" in str(error) or "cannot be called on meta tensors" in str(error)
    return known or said or _depends_on_data(error.__cause__ or error.__context__)


def _summary(example: Example) -> str:
    """The example inputs as their dtypes and shapes."""
    values = [*example.inputs, *example.named.values()]
    leaves = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    shown = (f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in leaves)
    return f"({', '.join(shown)})"
