"""Recurrent layers over a sequence (lstm, gru) and single cells (lstm_cell, gru_cell).

Only the sample dim can be cut: every step of a sequence needs the whole state of the step before,
and the rows of the weights are grouped by gate. The flops are those of the products: each weight
matrix meets each step of each sample once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.foundation.units import Bytes
from meshwright.graph.family import Family, Saved, ShapeError, Split, Wanted, integer, tensor
from meshwright.graph.model import ITEM_BYTES, Call, Spec


@final
class Recurrent(Family):
    """x, the initial states and the weights of all layers give the outputs and the final states.

    `states` is 2 for lstm (hidden and cell) and 1 for gru; `kept` how many numbers of the hidden
    size the backward pass needs of each step: gates and states.
    """

    products = True

    def __init__(self, *, states: int, kept: int) -> None:
        self._states, self._kept = states, kept

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The last layer's hidden states, and the last states of all layers."""
        x, hidden = tensor(call, 0), tensor(call, 1)
        directions = 2 if call.get("bidirectional", False) else 1
        if hidden.shape[0] != directions * integer(call, "num_layers", 1):
            raise ShapeError(f"the initial state is {hidden.shape}: a row for each layer is wanted")
        final_states = (tensor(call, 1 + i) for i in range(self._states))
        width = directions * hidden.shape[-1]
        return (Spec(x.dtype, (*x.shape[:-1], width)), *final_states)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The sample dim, if there is one."""
        x = tensor(call, 0).shape
        if len(x) < 3:
            return ()
        sample = 0 if call.get("batch_first", False) else 1
        weights = (None,) * (len(call.inputs) - 1 - self._states)
        states = (1,) * self._states
        return (
            Split(
                name="sample",
                role="sample",
                extent=x[sample],
                inputs=(sample, *states, *weights),
                outputs=(sample, *states),
            ),
        )

    def _steps(self, call: Call) -> int:
        """Steps of all samples."""
        x = tensor(call, 0)
        return x.elements // x.shape[-1]

    def _matrices(self, call: Call) -> tuple[int, ...]:
        """Elements of each weight that is a matrix, 0 for a bias."""
        weights = call.inputs[1 + self._states :]
        return tuple(w.elements if w is not None and len(w.shape) == 2 else 0 for w in weights)

    def _recurs(self, call: Call) -> tuple[bool, ...]:
        """Which weights take the state of the step before."""
        hidden = tensor(call, 1).shape[-1]
        per_cell = len(self._matrices(call)) // tensor(call, 1).shape[0]
        weights = call.inputs[1 + self._states :]
        return tuple(
            i % per_cell == 1 and w is not None and w.shape[-1] == hidden
            for i, w in enumerate(weights)
        )

    def flops(self, call: Call) -> int:
        """Every matrix meets every step."""
        return 2 * self._steps(call) * sum(self._matrices(call))

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """Each matrix takes a product for itself and one for what it multiplied.

        The product for what the first layer multiplied counts for x, that for the first step of
        what recurs counts for the initial state.
        """
        steps = self._steps(call)
        matrices, recurs = self._matrices(call), self._recurs(call)
        samples = tensor(call, 1).elements // tensor(call, 1).shape[0] // tensor(call, 1).shape[-1]
        directions = 2 if call.get("bidirectional", False) else 1
        per_cell = len(matrices) // tensor(call, 1).shape[0]
        reads_x = [i % per_cell == 0 and i < directions * per_cell for i in range(len(matrices))]
        for_x = sum(2 * steps * n for n, first in zip(matrices, reads_x, strict=True) if first)
        for_state = sum(2 * samples * n for n, own in zip(matrices, recurs, strict=True) if own)
        weights = tuple(
            2 * steps * n + (0 if first else 2 * (steps - samples if own else steps) * n)
            for n, first, own in zip(matrices, reads_x, recurs, strict=True)
        )
        return (for_x, for_state, *(0,) * (self._states - 1), *weights)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Inputs, weights, outputs, and gates and states of every step."""
        hidden = tensor(call, 1)
        per_step = hidden.shape[0] * hidden.shape[-1] * self._kept
        extra = Bytes(self._steps(call) * per_step * ITEM_BYTES[hidden.dtype])
        return Saved(inputs=tuple(range(len(call.inputs))), outputs=(0,), extra=extra)


@final
class Cell(Family):
    """One step: x, the states and two weights give the new states."""

    products = True

    def __init__(self, *, states: int, kept: int) -> None:
        self._states, self._kept = states, kept

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The new states look like the old ones."""
        return tuple(tensor(call, 1 + i) for i in range(self._states))

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The sample dim, if there is one."""
        if len(tensor(call, 0).shape) < 2:
            return ()
        weights = (None,) * (len(call.inputs) - 1 - self._states)
        return (
            Split(
                name="sample",
                role="sample",
                extent=tensor(call, 0).shape[0],
                inputs=(0,) * (1 + self._states) + weights,
                outputs=(0,) * self._states,
            ),
        )

    def _products(self, call: Call) -> tuple[int, int]:
        """Flops of the product with x and of that with the state."""
        x, state = tensor(call, 0), tensor(call, 1)
        rows = tensor(call, 1 + self._states).shape[0]
        return 2 * x.elements * rows, 2 * state.elements * rows

    def flops(self, call: Call) -> int:
        """Both products."""
        return sum(self._products(call))

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """A product each for x, the hidden state and both weights."""
        with_x, with_state = self._products(call)
        biases = (0,) * (len(call.inputs) - 3 - self._states)
        cell_state = (0,) * (self._states - 1)
        return (with_x, with_state, *cell_state, with_x, with_state, *biases)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Inputs, weights, and the gates."""
        state = tensor(call, 1)
        extra = Bytes(state.bytes * self._kept)
        return Saved(inputs=tuple(range(len(call.inputs))), extra=extra)


KINDS: Mapping[str, Family] = {
    "lstm": Recurrent(states=2, kept=6),
    "gru": Recurrent(states=1, kept=5),
    "lstm_cell": Cell(states=2, kept=5),
    "gru_cell": Cell(states=1, kept=5),
}
