"""Random numbers that a forward pass draws in Python, by `random` or NumPy.

Enters: a reader, as a context around the pass. Leaves: the lines that drew. A trace cannot repeat
such a draw, so what it decides is fixed: a comparison (`random.random() < p`, as LayerDrop has it)
by the reader, which knows both sides; any other use stays what was drawn, and is told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from meshwright.capture.operators.source_lines import model_line
from meshwright.capture.trace.data_reads import ValueReader

_FLOATS: tuple[tuple[ModuleType, str], ...] = (
    (random, "random"),
    (random, "uniform"),
    (np.random, "rand"),
    (np.random, "random"),
    (np.random, "random_sample"),
    (np.random, "uniform"),
)
"""What draws a number that is compared with a probability."""


class _Draw(float):
    """A number drawn by Python, whose comparisons the reader decides."""

    reader: ValueReader
    compared = False

    def _compare(self, other: object) -> bool:
        self.compared = True
        return self.reader.decide(model_line())

    __lt__ = __le__ = __gt__ = __ge__ = _compare


@contextmanager
def watched(reader: ValueReader) -> Iterator[None]:
    """Tell a reader which lines draw in Python otherwise than to compare, once the context ends;
    nothing for a line that is not known. Random states are as before.
    """
    drawn: list[tuple[str, _Draw]] = []
    kept = [(module, name, getattr(module, name)) for module, name in _FLOATS]
    with _same_states() as changed:
        for module, name, function in kept:
            setattr(module, name, _drawing(function, reader, drawn))
        try:
            yield
        finally:
            for module, name, function in kept:
                setattr(module, name, function)
            reader.drawing += dict.fromkeys(line for line, draw in drawn if not draw.compared)
            reader.drawing += [""] if changed() else []


def _drawing(
    function: Callable[..., Any], reader: ValueReader, drawn: list[tuple[str, _Draw]]
) -> Callable[..., Any]:
    def draw(*args: Any, **named: Any) -> Any:
        line = model_line()
        if not line:
            return function(*args, **named)
        with _same_states():
            value = function(*args, **named)
        if not isinstance(value, float):
            value = np.asarray(value)
            drawn.append((line, _Draw(0)))
            return value
        number = _Draw(value)
        number.reader = reader
        drawn.append((line, number))
        return number

    return draw


@contextmanager
def _same_states() -> Iterator[Callable[[], bool]]:
    """Random states that are afterwards as they were; asked, whether they have changed so far."""
    states = random.getstate(), np.random.get_state()

    def changed() -> bool:
        return repr(states) != repr((random.getstate(), np.random.get_state()))

    try:
        yield changed
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
