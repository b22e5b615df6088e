"""Batch-independence test: unknown operators that treat each sample alone. Enters: a captured
graph. Leaves: the same graph in which such operators say so, in the attribute `independent` that
`graph.families.opaque` reads.

An operator that no family tells about is tried out: on random samples together, and on each of
them alone. If results and gradients are equal to the last bit, or nearly, in every trial, its first
dim may be cut. That is evidence from a few samples, not a proof for all; where a trial fails, or
would take much memory, nothing is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import torch
from torch import Tensor

from meshwright.capture.execution.kernels import run_operator
from meshwright.graph.families import has_family
from meshwright.graph.operator_graph import Call, Operator, OperatorGraph, Spec

TRIALS, SAMPLES, MOST_ELEMENTS = 3, 4, 10_000_000

UNTRIED = "batch_norm"
"""In the names of kinds that PyTorch's kernels do not check: channel statistics that are cut like
samples make them write beyond their memory."""

WHOLE = -1
"""What every sample needs all of."""


def with_independent_samples(graph: OperatorGraph) -> OperatorGraph:
    """The graph in which unknown operators say along which dims their samples lie."""
    by_call: dict[Call, tuple[int, ...] | None] = {}
    operators: list[Operator] = []
    for operator in graph.operators:
        if not has_family(operator):
            call = graph.call(operator)
            if call not in by_call:
                by_call[call] = independent_dims(call)
            operator = _marked(operator, by_call[call])
        operators.append(operator)
    return msgspec.structs.replace(graph, operators=tuple(operators)) if by_call else graph


def independent_dims(call: Call) -> tuple[int, ...] | None:
    """The dim of each input and output along which samples lie, if they pass every trial.

    >>> x = Spec("float32", (8, 3))
    >>> independent_dims(Call(kind="aten.sinh", inputs=(x,), outputs=(x,)))
    (0, 0)
    >>> independent_dims(Call(kind="aten.logcumsumexp", inputs=(x,), outputs=(x,),
    ...     attributes=(("dim", 0),))) is None
    True
    """
    extents = {spec.shape[:1] for spec in call.outputs}
    if len(extents) != 1 or extents == {()} or UNTRIED in call.kind:
        return None
    ((extent,),) = extents
    inputs = tuple(0 if spec and spec.shape[:1] == (extent,) else WHOLE for spec in call.inputs)
    if extent < 2 or 0 not in inputs or _elements(call, inputs, extent) > MOST_ELEMENTS:
        return None
    samples = min(extent, SAMPLES)
    passed = all(_passes(call, inputs, samples, seed) for seed in range(TRIALS))
    return (*inputs, *(0,) * len(call.outputs)) if passed else None


def _marked(operator: Operator, dims: tuple[int, ...] | None) -> Operator:
    if dims is None:
        return operator
    attributes = {**dict(operator.attributes), "independent": dims}
    return msgspec.structs.replace(operator, attributes=tuple(sorted(attributes.items())))


def _elements(call: Call, inputs: Sequence[int], extent: int) -> int:
    """Elements that a trial needs: a few samples, and whole whatever is not cut."""
    share = min(extent, SAMPLES) / extent
    sizes = [0 if spec is None else spec.elements for spec in call.inputs]
    entering = sum(n * (share if dim == 0 else 1) for n, dim in zip(sizes, inputs, strict=True))
    return math.ceil(entering + share * sum(spec.elements for spec in call.outputs))


def _passes(call: Call, inputs: Sequence[int], samples: int, seed: int) -> bool:
    """Whether samples together give what each of them gives alone."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        None if spec is None else _random(spec, samples if dim == 0 else None, generator)
        for spec, dim in zip(call.inputs, inputs, strict=True)
    ]

    def alone(sample: int) -> list[Tensor | None]:
        return [
            t if t is None or dim == WHOLE else t[sample : sample + 1]
            for t, dim in zip(tensors, inputs, strict=True)
        ]

    try:
        together = run_operator(call.kind, tensors, call.attributes)
        each = [run_operator(call.kind, alone(i), call.attributes) for i in range(samples)]
        joined = [torch.cat(results) for results in zip(*each, strict=True)]
        for one, other in ((list(together), joined), _gradients(tensors, together, joined, seed)):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
    except Exception:
        # Whatever a foreign operator raises, or an unequal result: nothing is known of it.
        return False
    return True


def _gradients(
    tensors: Sequence[Tensor | None],
    together: Sequence[Tensor],
    joined: Sequence[Tensor],
    seed: int,
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of what enters, by way of the samples together and alone."""
    entering = [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]
    numbers = [n for n, output in enumerate(together) if output.requires_grad]
    if not numbers or not entering:
        return [], []
    generator = torch.Generator().manual_seed(seed)
    arriving = [
        torch.randn(together[n].shape, generator=generator).to(together[n].dtype) for n in numbers
    ]

    def backward(results: Sequence[Tensor]) -> list[Tensor]:
        chosen = [results[n] for n in numbers]
        gradients = torch.autograd.grad(
            chosen, entering, arriving, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return list(gradients)

    try:
        one = backward(together)
    except RuntimeError:
        # It has no derivative, so that none can be wrong.
        return [], []
    return one, backward(joined)


def _random(spec: Spec, samples: int | None, generator: torch.Generator) -> Tensor:
    """Random values; whole numbers are 0 or 1, since they may be indices."""
    shape = spec.shape if samples is None else (samples, *spec.shape[1:])
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()
    return torch.randint(0, 2, shape, generator=generator).to(dtype)
