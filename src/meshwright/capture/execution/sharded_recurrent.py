"""Tensor-parallel LSTM, GRU and their cells, sharded along hidden units.

Enters: a piece's call and operands. Leaves: its units of the outputs and states, through which
gradients flow back. With h the whole hidden state, W x + U h the rows of this piece's units,
    lstm  i, f, g, o = W x + U h + b     c' = σ(f) c + σ(i) tanh(g)       h' = σ(o) tanh(c')
    gru   r, z, n = W x + b, R, Z, N = U h + d
          m = tanh(n + σ(r + R) N)       h' = (1 - σ(z + Z)) m + σ(z + Z) h
Before the next step the pieces put their units of h' together: an all-reduce of h', which is zero
where another piece has it, and in the backward pass one of its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional

from meshwright.capture.execution.kernels import STATES, stacked
from meshwright.capture.execution.sharded_softmax import JointReductions, in_float32
from meshwright.graph.operator_graph import Call


class _Units(NamedTuple):
    """The hidden units of a piece among all."""

    first: int
    size: int
    every: int
    together: JointReductions


class _Whole(Function):
    """The state of all units, given those of this piece."""

    @staticmethod
    def forward(ctx: Any, piece: Tensor, units: _Units) -> Tensor:
        ctx.units = units
        whole = piece.new_zeros((*piece.shape[:-1], units.every))
        whole[..., units.first : units.first + units.size] = piece
        return units.together.summed(in_float32(whole)).to(piece.dtype)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> tuple[Tensor, None]:
        units: _Units = ctx.units
        total = units.together.summed(in_float32(arriving[0]).clone())
        piece = total[..., units.first : units.first + units.size]
        return piece.to(arriving[0].dtype), None


class _Cell(NamedTuple):
    """The weights of this piece's units."""

    of_state: Tensor
    bias: Tensor | None
    """That which is added to the product with the state."""
    gated: bool
    """Whether it is a gru."""

    def step(self, of_x: Tensor, whole: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Some units of the hidden state, and of the state that the next step starts from.

        `state` is the cell state of an lstm, the hidden state of a gru.
        """
        of_state = functional.linear(whole, self.of_state, self.bias)
        if self.gated:
            (r, z, n), (past_r, past_z, past_n) = of_x.chunk(3, -1), of_state.chunk(3, -1)
            kept = torch.sigmoid(z + past_z)
            candidate = torch.tanh(n + torch.sigmoid(r + past_r) * past_n)
            hidden = candidate + kept * (state - candidate)
            return hidden, hidden
        i, f, g, o = (of_x + of_state).chunk(4, -1)
        cell = torch.sigmoid(f) * state + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


def states(
    call: Call, operands: Sequence[Tensor | None], together: JointReductions
) -> tuple[Tensor, ...]:
    """The results of a piece, as the library orders them."""
    count = STATES[call.kind]
    x, whole, *rest = stacked(operands, 1 + count)
    of_x, of_state, bias, past = (*rest[count - 1 :], None, None)[:4]
    first = call.get("first_hidden")
    assert x is not None
    assert whole is not None
    assert of_x is not None
    assert of_state is not None
    assert isinstance(first, int)
    units = _Units(first, of_state.shape[0] // (2 + count), whole.shape[-1], together)
    state = rest[0] if count > 1 else whole[..., first : first + units.size]
    assert state is not None
    cell = _Cell(of_state, past, count == 1)
    entering = functional.linear(x, of_x, bias)
    if call.kind.endswith("_cell"):
        return cell.step(entering, whole, state)[:count]
    return _sequence(call, cell, entering, (whole, state), units)


def _sequence(
    call: Call, cell: _Cell, entering: Tensor, initial: tuple[Tensor, Tensor], units: _Units
) -> tuple[Tensor, ...]:
    time = 1 if call.get("batch_first", False) else 0
    whole, local_state = (state[0] for state in initial)
    hiddens: list[Tensor] = []
    for step in entering.unbind(time):
        if hiddens:
            whole = _Whole.apply(hiddens[-1], units)  # type: ignore[no-untyped-call]
        hidden, local_state = cell.step(step, whole, local_state)
        hiddens.append(hidden)
    last = (hiddens[-1][None], local_state[None])[: STATES[call.kind]]
    return (torch.stack(hiddens, time), *last)
