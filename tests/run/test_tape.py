"""What a segment keeps: the gradients of autograd, and no value that no operator has saved."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from meshwright.run.exec.segment_execution import Leaf
from meshwright.run.exec.tape import entered, gradients, segment_tape

ACTIVATION = Leaf("x", 0, 0, parameter=False)
PARAMETER = Leaf("w", 1, 1, parameter=True)
CONSTANT = Leaf("c", 2, None, parameter=False)


def values() -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(0)
    return tuple(torch.from_numpy(rng.random((3, 3))) for _ in range(3))  # type: ignore[return-value]


def handed_on(leaf: Leaf, gradient: Tensor) -> Tensor:
    """Nothing is done with the gradient of a parameter."""
    return gradient


def computed(x: Tensor, w: Tensor, c: Tensor) -> list[Tensor]:
    return [(x @ w).tanh() + c, x + c]


def test_gradients_are_those_of_autograd() -> None:
    x, w, c = values()
    arriving = [torch.ones(3, 3), torch.full((3, 3), 2.0)]
    one, other = x.clone().requires_grad_(), w.clone().requires_grad_()
    expected = torch.autograd.grad(computed(one, other, c), (one, other), arriving)
    first, second, third = entered([ACTIVATION, PARAMETER, CONSTANT], [x, w, c], handed_on)
    grads = gradients(
        segment_tape([first, second, third], computed(first, second, third)), arriving
    )
    assert grads[2] is None
    for mine, theirs in zip(grads, expected, strict=False):
        assert mine is not None
        assert torch.equal(mine, theirs)


def test_a_gradient_of_a_parameter_is_in_memory_until_it_is_added() -> None:
    """One of the first parameter is gone before that of the second is made."""
    alive: list[int] = []
    came: list[weakref.ref[Tensor]] = []
    sums: dict[str, Tensor] = {}

    def add(leaf: Leaf, gradient: Tensor) -> Tensor:
        came.append(weakref.ref(gradient))
        sums[leaf.tensor] = sums.get(leaf.tensor, 0) + gradient
        alive.append(sum(reference() is not None for reference in came))
        return sums[leaf.tensor]

    x, w, v = values()
    leaves = [PARAMETER, PARAMETER._replace(tensor="v")]
    for _ in range(2):
        first, second = entered(leaves, [w, v], add)
        kept = segment_tape([first, second], [((x @ first) @ second).sum()])
        totals = gradients(kept, [torch.ones((), dtype=x.dtype)])
    assert alive == [1, 1, 1, 1]
    one, other = w.clone().requires_grad_(), v.clone().requires_grad_()
    expected = torch.autograd.grad(((x @ one) @ other).sum(), (one, other))
    for total, reference_grad in zip(totals, expected, strict=True):
        assert total is not None
        torch.testing.assert_close(total, 2 * reference_grad)


def test_where_no_gradient_arrives_none_leaves() -> None:
    leaves = list(entered([ACTIVATION], [values()[0]], handed_on))
    kept = segment_tape(leaves, [leaves[0] * 2])
    assert gradients(kept, [None]) == (None,)


@pytest.mark.parametrize(("saved", "stays"), [(False, False), (True, True)])
def test_a_value_stays_only_if_an_operator_saved_it(saved: bool, stays: bool) -> None:
    array = np.ones(4)
    alive = weakref.ref(array)
    leaves = list(entered([ACTIVATION], [torch.from_numpy(array)], handed_on))
    outputs = [leaves[0].exp() * leaves[0] if saved else leaves[0] + 1.0]
    kept = segment_tape(leaves, outputs)
    del array, leaves, outputs
    assert (alive() is not None) == stays
    assert gradients(kept, [torch.ones(4)])[0] is not None
