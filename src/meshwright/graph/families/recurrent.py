"""Recurrent layers over a sequence (lstm, gru) and single cells (lstm_cell, gru_cell).

    split    role        cuts
    sample   sample      x and the states
    hidden   parameter   every gate of the weights, the cell state, and the results; where the
                         weights have their gates as a dim of their own (`graph.gates`)

Along hidden units every part reads all of x and of the hidden state. A cell is independent then. Of
a sequence each step but the first needs what the others have made of the step before: the parts
all-reduce the hidden state, each with zeros for what is not its own, once a step in both passes.
The flops are those of the products: each weight matrix meets each step of each sample once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from meshwright.base.quantities import Bytes
from meshwright.graph.family import (
    Family,
    Saved,
    ShapeError,
    Split,
    Wanted,
    integer,
    replaced,
    tensor,
)
from meshwright.graph.operator_graph import ITEM_BYTES, Attributes, Call, Spec

_GATES = 3
"""Dims of a weight matrix that has its gates apart."""


def gates_of(call: Call) -> dict[int, int]:
    """The inputs of a recurrent layer whose rows are grouped by gate, with the number of gates.

    None of a layer with a projection, whose hidden state is no gate's, or of any other operator.

    >>> x, w = Spec("float32", (2, 3)), Spec("float32", (9, 3))
    >>> gates_of(Call(kind="gru_cell", inputs=(x, x, w, w), outputs=(x,)))
    {2: 3, 3: 3}
    """
    family = KINDS.get(call.kind)
    if not isinstance(family, Recurrent | Cell):
        return {}
    gates, hidden = 2 + family.states, tensor(call, 1).shape[-1]
    weights = call.inputs[1 + family.states :]
    if any(weight is None or weight.shape[0] != gates * hidden for weight in weights):
        return {}
    return {1 + family.states + i: gates for i in range(len(weights))}


def _are_apart(call: Call, states: int) -> bool:
    """Whether the weights have their gates as a dim of their own."""
    return len(tensor(call, 1 + states).shape) == _GATES


def _piece(call: Call, split: Split, start: int) -> Attributes:
    """The first hidden unit of a piece: it has to find its part of the whole hidden state."""
    if split.name != "hidden":
        return call.attributes
    return replaced(call.attributes, first_hidden=integer(call, "first_hidden", 0) + start)


@final
class Recurrent(Family):
    """x, the initial states and the weights of all layers give the outputs and the final states.

    `states` is 2 for lstm (hidden and cell) and 1 for gru; `kept` how many numbers of the hidden
    size the backward pass needs of each step: gates and states.
    """

    products = True

    def __init__(self, *, states: int, kept: int) -> None:
        self.states, self._kept = states, kept

    def _hidden(self, call: Call) -> int:
        """Hidden units that are computed: in a piece fewer than it reads."""
        if _are_apart(call, self.states):
            return tensor(call, 1 + self.states).shape[1]
        return tensor(call, 1).shape[-1]

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The last layer's hidden states, and the last states of all layers."""
        x, hidden = tensor(call, 0), tensor(call, 1)
        directions = 2 if call.get("bidirectional", False) else 1
        if hidden.shape[0] != directions * integer(call, "num_layers", 1):
            raise ShapeError(f"the initial state is {hidden.shape}: a row for each layer is wanted")
        width = self._hidden(call)
        first = Spec(hidden.dtype, (*hidden.shape[:-1], width))
        others = (tensor(call, 1 + i) for i in range(1, self.states))
        return (Spec(x.dtype, (*x.shape[:-1], directions * width)), first, *others)

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The sample dim, if there is one, and hidden units."""
        x = tensor(call, 0).shape
        if len(x) < 3:
            return ()
        sample = 0 if call.get("batch_first", False) else 1
        weights = (None,) * (len(call.inputs) - 1 - self.states)
        states = (1,) * self.states
        samples = Split(
            name="sample",
            role="sample",
            extent=x[sample],
            inputs=(sample, *states, *weights),
            outputs=(sample, *states),
        )
        one_layer = tensor(call, 1).shape[0] == 1
        if not one_layer or not _are_apart(call, self.states):
            return (samples,)
        return samples, self._along_hidden(call, x[1 - sample])

    def _along_hidden(self, call: Call, steps: int) -> Split:
        rest = self.states - 1
        others = len(call.inputs) - 1 - self.states
        return Split(
            name="hidden",
            role="parameter",
            extent=self._hidden(call),
            inputs=(None, None, *(2,) * rest, *(1,) * others),
            outputs=(2,) * (1 + self.states),
            statistics=tensor(call, 1).elements if steps > 1 else 0,
            rounds=(steps - 1, steps - 1),
        )

    def _steps(self, call: Call) -> int:
        """Steps of all samples."""
        x = tensor(call, 0)
        return x.elements // x.shape[-1]

    def _per_cell(self, call: Call) -> int:
        """Weights of one layer in one direction."""
        return (len(call.inputs) - 1 - self.states) // tensor(call, 1).shape[0]

    def _matrices(self, call: Call) -> tuple[int, ...]:
        """Elements of each weight that is a matrix, 0 for a bias."""
        dims, weights = tensor(call, 1 + self.states), call.inputs[1 + self.states :]
        # A projection is a matrix without gates; its layer has none apart.
        ranks = len(dims.shape)
        return tuple(w.elements if w is not None and len(w.shape) == ranks else 0 for w in weights)

    def _recurs(self, call: Call) -> tuple[bool, ...]:
        """Which weights take the state of the step before."""
        hidden, per_cell = tensor(call, 1).shape[-1], self._per_cell(call)
        weights = call.inputs[1 + self.states :]
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
        per_cell = self._per_cell(call)
        reads_x = [i % per_cell == 0 and i < directions * per_cell for i in range(len(matrices))]
        for_x = sum(2 * steps * n for n, first in zip(matrices, reads_x, strict=True) if first)
        for_state = sum(
            2 * samples * n for n, recurring in zip(matrices, recurs, strict=True) if recurring
        )
        weights = tuple(
            2 * steps * n + (0 if first else 2 * (steps - samples if recurring else steps) * n)
            for n, first, recurring in zip(matrices, reads_x, recurs, strict=True)
        )
        return (for_x, for_state, *(0,) * (self.states - 1), *weights)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Inputs, weights, outputs, and gates and states of every step."""
        hidden = tensor(call, 1)
        per_step = hidden.shape[0] * self._hidden(call) * self._kept
        if call.get("first_hidden") is not None:
            per_step += hidden.shape[-1]
        extra = Bytes(self._steps(call) * per_step * ITEM_BYTES[hidden.dtype])
        return Saved(inputs=tuple(range(len(call.inputs))), outputs=(0,), extra=extra)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A piece of the hidden units knows the first of them."""
        return _piece(call, split, start)


@final
class Cell(Family):
    """One step: x, the states and two weights give the new states."""

    products = True

    def __init__(self, *, states: int, kept: int) -> None:
        self.states, self._kept = states, kept

    def outputs(self, call: Call) -> tuple[Spec, ...]:
        """The new states look like the old ones, in a piece as many units as it computes."""
        hidden = tensor(call, 1)
        if _are_apart(call, self.states):
            width = tensor(call, 1 + self.states).shape[1]
            hidden = Spec(hidden.dtype, (*hidden.shape[:-1], width))
        return (hidden, *(tensor(call, 1 + i) for i in range(1, self.states)))

    def splits(self, call: Call) -> tuple[Split, ...]:
        """The sample dim, if there is one, and hidden units."""
        rank, others = len(tensor(call, 0).shape), len(call.inputs) - 1 - self.states
        samples = Split(
            name="sample",
            role="sample",
            extent=tensor(call, 0).shape[0],
            inputs=(0,) * (1 + self.states) + (None,) * others,
            outputs=(0,) * self.states,
        )
        splits = (samples,) * (rank > 1)
        if not _are_apart(call, self.states):
            return splits
        hidden = Split(
            name="hidden",
            role="parameter",
            extent=call.outputs[0].shape[-1],
            inputs=(None, None, *(rank - 1,) * (self.states - 1), *(1,) * others),
            outputs=(rank - 1,) * self.states,
        )
        return (*splits, hidden)

    def _products(self, call: Call) -> tuple[int, int]:
        """Flops of the product with x and of that with the state."""
        x, state = tensor(call, 0), tensor(call, 1)
        weight = tensor(call, 1 + self.states)
        rows = weight.elements // weight.shape[-1]
        return 2 * x.elements * rows, 2 * state.elements * rows

    def flops(self, call: Call) -> int:
        """Both products."""
        return sum(self._products(call))

    def gradient_flops(self, call: Call) -> tuple[int, ...]:
        """A product each for x, the hidden state and both weights."""
        with_x, with_state = self._products(call)
        biases = (0,) * (len(call.inputs) - 3 - self.states)
        cell_state = (0,) * (self.states - 1)
        return (with_x, with_state, *cell_state, with_x, with_state, *biases)

    def saved(self, call: Call, wanted: Wanted) -> Saved:
        """Inputs, weights, and the gates."""
        extra = Bytes(call.outputs[0].bytes * self._kept)
        return Saved(inputs=tuple(range(len(call.inputs))), extra=extra)

    def piece(self, call: Call, split: Split, start: int, stop: int) -> Attributes:
        """A piece of the hidden units knows the first of them."""
        return _piece(call, split, start)


KINDS: Mapping[str, Family] = {
    "lstm": Recurrent(states=2, kept=6),
    "gru": Recurrent(states=1, kept=5),
    "rnn_tanh": Recurrent(states=1, kept=1),
    "rnn_relu": Recurrent(states=1, kept=1),
    "lstm_cell": Cell(states=2, kept=5),
    "gru_cell": Cell(states=1, kept=5),
}
