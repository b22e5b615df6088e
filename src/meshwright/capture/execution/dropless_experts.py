"""Dropless mixture of experts (MoE): grouped products over rows sorted by expert. Enters: tokens,
their choices and weights, the experts' operands and body. Leaves: the weighted sum of what the
chosen experts give.

Rows are sorted by expert, so that the body's products are grouped ones; nothing is dropped and
counts are exact. On a device that holds some of the experts alone, `through` takes rows to the
devices that hold theirs, has them computed there and brings the results back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from meshwright.base.errors import InputError
from meshwright.graph.expert_body import ENDS, IDS, OPERANDS, ROWS, ExpertStage, operand, parse_body
from meshwright.graph.operator_graph import Attributes, Value

Compute = Callable[[Tensor, Tensor], Tensor]
"""The results of rows in the order of experts, given how many of them each expert has."""

Through = Callable[[Tensor, Tensor, Compute], Tensor]
"""The results of rows in the order of all experts, given how many each has and what computes them
where the experts are."""

Run = Callable[[str, Sequence[Tensor | None], Attributes], tuple[Tensor, ...]]
"""What runs one operator."""


def routed(
    run: Run,
    inputs: Sequence[Tensor | None],
    attributes: Mapping[str, Value],
    through: Through | None = None,
) -> Tensor:
    """The weighted sum of what the chosen experts make of each token."""
    x, index, weights, *operands = (tensor for tensor in inputs if tensor is not None)
    assert len(inputs) == OPERANDS + len(operands)
    experts, first, body = attributes["experts"], attributes.get("first", 0), attributes["body"]
    assert isinstance(experts, int)
    assert isinstance(first, int)
    stages = parse_body(str(body))

    def compute(rows: Tensor, counts: Tensor) -> Tensor:
        return _computed(run, stages, rows, counts, operands)

    flat, (tokens, chosen) = index.reshape(-1), index.shape
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=experts)
    if len(counts) > experts:
        raise InputError(
            f"a token chose expert {len(counts) - 1} of {experts}", "route to experts that exist"
        )
    rows = x[order // chosen]
    if through is None:
        held = counts[first : first + operands[0].shape[0]]
        if int(held.sum()) != len(flat):
            raise InputError(
                "a token chose an expert that this device does not hold",
                "run the plan on all its devices",
            )
        outputs = compute(rows, held)
    else:
        outputs = through(rows, counts, compute)
    by_token = outputs[order.argsort()].view(tokens, chosen, *outputs.shape[1:])
    return (by_token * weights.unsqueeze(-1)).sum(1)


def _computed(
    run: Run,
    stages: Sequence[ExpertStage],
    rows: Tensor,
    counts: Tensor,
    operands: Sequence[Tensor],
) -> Tensor:
    """The body on rows in the order of experts."""
    experts = torch.arange(len(counts), device=rows.device)
    present = {operand(n): tensor for n, tensor in enumerate(operands)} | {
        ROWS: rows,
        IDS: experts.repeat_interleave(counts, output_size=len(rows)),
        ENDS: counts.cumsum(0),
    }
    for stage in stages:
        outputs = run(stage.kind, [present[name] for name in stage.inputs], stage.attributes)
        present |= zip(stage.outputs, outputs, strict=False)
    return present[stages[-1].outputs[0]]
