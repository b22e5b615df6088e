"""One trace of an example by `torch.export`, with what its Python code has read out of tensors.

Enters: an example. Leaves: a `Trace`, on fake tensors. A model that branches on data is first run
on its real inputs (`reads_on_real_inputs`), so that the trace takes the branches that the example
takes; a branch on random numbers alone takes the side with more operations (LayerDrop drops none).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from meshwright.capture.operators.ctc import CtcLoss
from meshwright.capture.source.example import MODEL, Example, Step
from meshwright.capture.source.returning import flatten_output
from meshwright.capture.trace.data_reads import Number, ValueRead, ValueReader, values_needed
from meshwright.capture.trace.fake_tensors import is_on_meta, with_fake_tensors
from meshwright.capture.trace.modes import Reads
from meshwright.capture.trace.plain_constructs import higher_order_constructs_replaced
from meshwright.capture.trace.python_random import watched
from meshwright.capture.trace.python_state import ChangedAttributes, attributes_restored
from meshwright.graph.returned import Returned

Sides = Mapping[str, bool]
"""Of branches on random numbers, by line, which side is taken."""

Known = Sequence[tuple[str, Number]]
"""What a model reads on its real inputs: line and value of each read."""


class Trace(NamedTuple):
    """What `torch.export` gave, and what it rests on."""

    program: ExportedProgram
    """Its first output is the loss, its last ones are what else is returned and the reads."""
    returned: Returned | None
    """What the model returned, by the numbers of those outputs; None if there is no loss."""
    reads: tuple[ValueRead, ...]
    known: Known | None
    """The values that were known of the reads."""
    decided: Sides
    drawing: tuple[str, ...]
    """Lines that draw random numbers in Python, which stay what they were in this trace."""
    memory: ChangedAttributes
    """What the forward pass keeps for its next call."""
    modes: Reads
    """Who asked for the mode, training or evaluation."""


class _Watch:
    """What makes the reader of each call of a step, and the reader of its last one."""

    def __init__(self, reader: Callable[[], ValueReader]) -> None:
        self.fresh, self.reader = reader, reader()
        self.returned: Returned | None = None


class _Watched(Step):
    """A step that gives what was read besides its output."""

    def __init__(self, example: Example, reader: Callable[[], ValueReader]) -> None:
        super().__init__(example)
        # In an object of its own: an attribute that forward writes is state of a model.
        self.watch = _Watch(reader)

    def forward(self, *arguments: Any) -> object:
        """The output, what else is returned with a loss, and the tensors that were read."""
        self.watch.reader = reader = self.watch.fresh()
        with higher_order_constructs_replaced(), watched(reader), reader:
            with CtcLoss() as ctc:
                inputs, named, targets = arguments
                output = self.model(*inputs, **named)
                loss = self.loss_of(output, targets)
                returned, tensors = (None, ()) if loss is output else flatten_output(output)
            self.watch.returned, loss = returned, ctc.gathered(loss)
        return pytree.tree_map(_plain, loss), tensors, tuple(read.tensor for read in reader.reads)


def _plain(output: object) -> object:
    """An output that a trace can give; nothing for a cache or another object."""
    return output if isinstance(output, Tensor | bool | int | float | str) else None


def traced(example: Example) -> Trace:
    """The trace of an example, by the sides of random branches that do the most."""
    trace, sides = _with_values(example, {}), dict[str, bool]()
    most = _operations(example, sides) if trace.decided else 0
    for line in tuple(trace.decided):
        operations = _operations(example, {**sides, line: True})
        if operations > most:
            most, sides[line] = operations, True
    return _with_values(example, sides) if sides else trace


def _operations(example: Example, sides: Sides) -> int:
    """How many operations an example does if random branches take these sides; 0 if it cannot."""
    try:
        return _run(example, lambda: ValueReader(sides=sides)).operations
    except Exception:
        # This side cannot be taken here, whatever the reason.
        return 0


def reads_on_real_inputs(example: Example, sides: Sides, *, turned: int | None = None) -> Known:
    """What a model reads on its real inputs; a read may be turned, to see what it decides."""
    reader = _run(example, lambda: ValueReader(sides=sides, turned=turned))
    return [(read.line, read.value) for read in reader.reads]


def _run(example: Example, reader: Callable[[], ValueReader]) -> ValueReader:
    """Run a model as in training, and leave its state and random states as they were."""
    step = _Watched(example, reader)
    arguments = example.inputs, dict(example.named), example.targets
    state = [
        tensor.detach() for tensor in (*step.parameters(), *step.buffers()) if not tensor.is_meta
    ]
    kept = [(tensor, tensor.clone()) for tensor in state]
    with torch.random.fork_rng(), silent(), redirect_stdout(StringIO()):
        try:
            with (
                with_fake_tensors(step, arguments) as faked_inputs,
                ChangedAttributes(step, MODEL).watched(),
            ):
                step(*faked_inputs)
        finally:
            for tensor, value in kept:
                tensor.copy_(value)
    return step.watch.reader


def replayed(example: Example, known: Known | None, sides: Sides) -> Trace:
    """The trace in which reads have these values; None if there are none."""
    step = _Watched(example, lambda: ValueReader(known, sides))
    arguments = _distinct((example.inputs, dict(example.named), example.targets))
    memory, modes, kept = ChangedAttributes(step, MODEL), Reads(), attributes_restored(step)
    with (
        silent(),
        with_fake_tensors(step, arguments) as faked_inputs,
        memory.watched(),
        modes.noted(),
        kept,
    ):
        program = torch.export.export(step, faked_inputs, strict=False)
    reader = step.watch.reader
    return Trace(
        program=program,
        returned=step.watch.returned,
        reads=tuple(reader.reads),
        known=known,
        decided=reader.decided,
        drawing=tuple(reader.drawing),
        memory=memory,
        modes=modes,
    )


def has_values(example: Example) -> bool:
    """Whether an example can be run, not only traced."""
    return not is_on_meta(Step(example), (example.inputs, dict(example.named), example.targets))


def _with_values(example: Example, sides: Sides) -> Trace:
    try:
        return replayed(example, None, sides)
    except Exception as error:
        if values_needed(error) is None or not has_values(example):
            raise
    return replayed(example, reads_on_real_inputs(example, sides), sides)


@contextmanager
def silent() -> Iterator[None]:
    """Without what PyTorch prints and logs of a trace that fails; our sentence says it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            # Traces warn of side effects (recurrent modules cache their weights in a list) and of
            # what they leave out (torch.compile); the model itself warns when it runs.
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _distinct(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The same arguments with no tensor given twice, since one object is traced as one input."""
    seen: set[int] = set()

    def own(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        repeated = id(value) in seen
        seen.add(id(value))
        return value.detach().clone() if repeated else value

    copied: tuple[object, ...] = pytree.tree_map(own, arguments)
    return copied
