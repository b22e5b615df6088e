"""Branch analysis: which data reads of a trace become guards, assertions or refusals. Enters: a
trace and how to make a graph of it. Leaves: the graph, its guards, and warnings.

A read that inputs decide becomes a guard. One that depends on parameters is turned, to see what
the model does on its other side: if it raises an error, the read was an assertion, which is left
out with a warning; if it does the same, the read decides nothing; otherwise the model is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshwright.base.errors import InputError
from meshwright.capture.source.example import Example
from meshwright.capture.trace.data_reads import ValueRead
from meshwright.capture.trace.finiteness import is_of_finiteness
from meshwright.capture.trace.tracing import Trace, reads_on_real_inputs, replayed
from meshwright.capture.translation.guards import UndecidedError
from meshwright.graph.canonical import canonical_hash
from meshwright.graph.operator_graph import OperatorGraph

Graph = Callable[[Trace, Sequence[ValueRead | None]], OperatorGraph]
"""The graph of a trace, with a guard for each read that is given."""


def decided(example: Example, trace: Trace, graph: Graph) -> tuple[OperatorGraph, tuple[str, ...]]:
    """The graph of a trace with its guards, and warnings about assertions that are left out."""
    try:
        return graph(trace, trace.reads), ()
    except UndecidedError as error:
        undecided = error.reads
    plain = graph(trace, (None,) * len(trace.reads))
    asserted: dict[str, None] = {}
    finite: dict[str, None] = {}
    for number in undecided:
        line = trace.reads[number].line
        asks = is_of_finiteness(trace.program, number - len(trace.reads))
        if asks and line in finite:
            continue
        if _is_assertion(example, trace, number):
            asserted[line] = None
        elif asks:
            finite[line] = None
        elif not _is_idle(example, trace, number, plain, graph):
            raise _refusal(plain.name, trace.reads[number])
    kept = [None if number in undecided else read for number, read in enumerate(trace.reads)]
    warnings = [
        f"what model {plain.name!r} asserts{_at(source_line)} is not checked when it runs"
        for source_line in asserted
    ]
    warnings += [
        f"model {plain.name!r} asks{_at(source_line)} whether its numbers are finite: a plan "
        "always does what is done for the example's"
        for source_line in finite
    ]
    return graph(trace, kept), tuple(warnings)


def warnings_of(trace: Trace, title: str) -> Iterator[str]:
    """What a trace has fixed that changes from step to step."""
    for line in trace.decided:
        yield (
            f"model {title!r} branches on random numbers{_at(line)}: always the side with more "
            "operators is taken, so that LayerDrop and the like are off"
        )
    for line in trace.drawing:
        yield (
            f"model {title!r} draws random numbers in Python{_at(line)}: each step uses those "
            "that were drawn when it was captured"
        )


def _is_assertion(example: Example, trace: Trace, number: int) -> bool:
    """Whether the model raises an error of its own if a read is turned."""
    read = trace.reads[number]
    if read.asserted or not isinstance(read.value, bool):
        return read.asserted
    try:
        reads_on_real_inputs(example, trace.decided, turned=number)
    except Exception:
        # Whatever the user's code raises: that is what an assertion does.
        return True
    return False


def _is_idle(
    example: Example, trace: Trace, number: int, plain: OperatorGraph, graph: Graph
) -> bool:
    """Whether the model computes the same if a read is turned."""
    if not isinstance(trace.reads[number].value, bool):
        return False
    known = reads_on_real_inputs(example, trace.decided, turned=number)
    other = replayed(example, known, trace.decided)
    turned = graph(other, (None,) * len(other.reads))
    return canonical_hash(turned) == canonical_hash(plain)


def _refusal(title: str, read: ValueRead) -> InputError:
    if read.counts:
        return data_dependent_shape_error(title, _at(read.line))
    return InputError(
        f"model {title!r} branches on the values of a tensor{_at(read.line)}, and they depend on "
        "its parameters or on random numbers",
        "choose with torch.where, or by inputs, shapes and settings, which are known beforehand",
    )


def data_dependent_shape_error(title: str, place: str) -> InputError:
    """The sentence for a model that selects as many elements as its data says."""
    return InputError(
        f"the shape of what model {title!r} selects depends on data{place}",
        "select with a mask or with torch.where, which keep the shape",
    )


def _at(line: str) -> str:
    return f" at {line}" if line else ""
